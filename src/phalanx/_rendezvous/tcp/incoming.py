"""Those that connect to a host: they join it if it decides, wait, or are sent on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from phalanx import _wire as wire
from phalanx._core.rounds import Endpoint, Round
from phalanx._logs import logger
from phalanx._rendezvous.tcp.follower import Follower
from phalanx._rendezvous.tcp.link import Link, PeerUnreachable
from phalanx._wire import rendezvous_frames

if TYPE_CHECKING:
    from phalanx._rendezvous.tcp.tcp_decider import TcpDecider

_HELD = 2.0
"""Seconds that one who asks is kept waiting while we still follow another."""
_WATCHED = 1.0
"""Seconds between looks whether somebody has come to the place where it began."""
_LOOKED = 0.25
"""Seconds between looks for those that have not come after another has taken over."""
_FIRST_WORD = 10.0
"""Seconds in which one that connects must say who it is."""
_LAST_WORDS = 3.0


class IncomingPeers:
    """Receives other hosts, for a seat."""

    def __init__(self, decider: TcpDecider) -> None:
        """Nobody has come."""
        self._decider = decider
        self._asked: list[tuple[Link, rendezvous_frames.JoinRequest]] = []
        self._refused: set[str] = set()
        """What was said of those that began with something else."""

    async def take(self, link: Link) -> None:
        """Somebody has connected."""
        frame: wire.Frame | None = None
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(_FIRST_WORD):
                frame = await anext(link.frames())
        if isinstance(frame, rendezvous_frames.JoinRequest):
            await self._receive(link, frame)
            return
        if (
            isinstance(frame, rendezvous_frames.LeaderMoved)
            and frame.app == self._decider.part.run_id
        ):
            await self._abdicate(frame.contact)
        elif frame is not None:
            await self._refuse(link, frame)
        link.close()

    async def _refuse(self, link: Link, frame: wire.Frame) -> None:
        """One that has the token begins with something else than who it is."""
        kind = type(frame).__name__
        if kind not in self._refused:
            self._refused.add(kind)
            logger.warning("phalanx: refused a host: it sent %s instead of a request to join", kind)
        await link.send(
            rendezvous_frames.JoinRefused(reason=f"it sent {kind} instead of a request to join")
        )

    async def _receive(self, link: Link, meet: rendezvous_frames.JoinRequest) -> None:
        decider = self._decider
        if decider.leader is not None:
            await decider.leader.serve(link, meet)
            return
        self._asked.append((link, meet))
        await asyncio.sleep(_HELD)
        if (link, meet) in self._asked and decider.leader_contact is not None:
            self._asked.remove((link, meet))
            await link.send(rendezvous_frames.LeaderMoved(contact=decider.leader_contact))
            link.close()

    def answer(self) -> None:
        """It is known who decides: have those that wait join us, or send them there."""
        decider = self._decider
        asked, self._asked = self._asked, []
        for link, meet in asked:
            if link.is_over:
                continue  # others came, and it had waited longest
            if decider.leader is not None:
                decider.do(decider.leader.serve(link, meet))
            elif decider.leader_contact is not None:
                decider.do(link.send(rendezvous_frames.LeaderMoved(contact=decider.leader_contact)))

    async def _abdicate(self, contact: Endpoint) -> None:
        """The app goes on elsewhere: follow there, unless something has begun here."""
        decider = self._decider
        leader = decider.leader
        if leader is None or decider.round is not None:
            return
        decider.leader = None
        for link in leader.links:
            await link.send(rendezvous_frames.LeaderMoved(contact=contact))
            link.close()
        decider.do(Follower(decider).run(contact))

    async def look_for(self, round_: Round) -> None:
        """Find out which members of the last round, that have not come to us, have ended."""
        decider = self._decider
        while (leader := decider.leader) is not None and leader.is_taking_over:
            await asyncio.sleep(_LOOKED)
            there = {link.agent for link in leader.links}
            for agent in [m.agent for m in round_.members if m.agent not in there]:
                contact = decider.contacts.get(agent)
                if agent == decider.part.agent or contact is None:
                    continue
                try:
                    link = await decider.connector.connect(contact)
                    link.close()  # it is there, and will come
                except PeerUnreachable as error:
                    if error.closed:
                        leader.count_out(agent)

    async def watch_the_beginning(self) -> None:
        """Have those that come to the place where it began sent to where it goes on."""
        decider = self._decider
        while decider.leader is not None and not decider.is_over:
            await asyncio.sleep(_WATCHED)
            with contextlib.suppress(PeerUnreachable):
                link = await decider.connector.connect(decider.part.endpoint)
                if decider.meet is not None:
                    await link.send(
                        rendezvous_frames.LeaderMoved(
                            app=decider.part.run_id, contact=decider.meet.contact
                        )
                    )
                await link.flush(_LAST_WORDS)
                link.close()

    def close(self) -> None:
        """Let those that wait go."""
        for link, _ in self._asked:
            link.close()
