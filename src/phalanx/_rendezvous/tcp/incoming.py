"""Hosts that connect to this one: they join if it decides, wait, or are sent on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from phalanx import _wire as wire
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Round
from phalanx._logs import logger
from phalanx._rendezvous.tcp.connections.connector import Connector
from phalanx._rendezvous.tcp.connections.link import CONNECTING, Link, PeerUnreachable
from phalanx._rendezvous.tcp.connections.listener import Do
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.state import TcpState
from phalanx._wire.rendezvous_frames import (
    AgentAsked,
    AgentTold,
    JoinRefused,
    JoinRequest,
    LeaderMoved,
)

_HELD = 2.0
"""Seconds that one who asks is kept waiting while we still follow another."""
_WATCHED = 1.0
"""Seconds between looks whether somebody has come to the original endpoint."""
_LOOKED = 0.25
"""Seconds between looks for those that have not come after another has taken over."""
_FIRST_WORD = 10.0
"""Seconds in which one that connects must say who it is."""
_LAST_WORDS = 3.0


class IncomingPeers:
    """Receives the hosts that connect, and looks for those that should."""

    def __init__(
        self,
        host: TcpHost,
        state: TcpState,
        connector: Connector,
        do: Do,
        follow: Callable[[Endpoint], None] | None,
    ) -> None:
        """Nobody has come. `follow` has this host follow whoever decides at a contact.

        Without it another party says who decides.
        """
        self._host = host
        self._state = state
        self._connector = connector
        self._do = do
        self._follow = follow
        self._asked: list[tuple[Link, JoinRequest]] = []
        self._refused: set[str] = set()
        """What was said of those that began with something else."""

    async def take(self, link: Link) -> None:
        """Somebody has connected."""
        frame: wire.Frame | None = None
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(_FIRST_WORD):
                frame = await anext(link.frames())
        if isinstance(frame, JoinRequest):
            await self._receive(link, frame)
            return
        if isinstance(frame, AgentAsked):
            await link.send(AgentTold(agent=self._host.agent))
        elif isinstance(frame, LeaderMoved) and frame.app == self._host.run_id:
            await self._abdicate(frame.contact)
        elif frame is not None:
            await self._refuse(link, frame)
        link.close()

    async def _refuse(self, link: Link, frame: wire.Frame) -> None:
        """One that has the token begins with something else than who it is."""
        kind = type(frame).__name__
        reason = f"it sent {kind} instead of a request to join"
        if kind not in self._refused:
            self._refused.add(kind)
            logger.warning("phalanx: refused a host: %s", reason)
        await link.send(JoinRefused(reason=reason))

    async def _receive(self, link: Link, request: JoinRequest) -> None:
        if (leader := self._state.leader) is not None:
            await leader.serve(link, request)
            return
        self._asked.append((link, request))
        await asyncio.sleep(_HELD)
        contact = self._state.leader_contact
        if (link, request) in self._asked and contact is not None:
            self._asked.remove((link, request))
            await link.send(LeaderMoved(contact=contact))
            link.close()

    def answer(self) -> None:
        """It is known who decides: have those that wait join us, or send them there."""
        leader, contact = self._state.leader, self._state.leader_contact
        asked, self._asked = self._asked, []
        for link, request in asked:
            if link.is_over:
                continue  # others came, and it had waited longest
            if leader is not None:
                self._do(leader.serve(link, request))
            elif contact is not None:
                self._do(link.send(LeaderMoved(contact=contact)))

    async def _abdicate(self, contact: Endpoint) -> None:
        """The app goes on elsewhere: follow there, unless something has begun here."""
        follow = self._follow
        leader = None if follow is None else self._state.abdicate()
        if leader is None or follow is None:
            return
        for link in leader.links:
            await link.send(LeaderMoved(contact=contact))
            link.close()
        follow(contact)

    async def is_there(self, agent: AgentId, contact: Endpoint) -> bool | None:
        """Whether an agent still listens at its port, or has ended; None: that is not known."""
        try:
            link = await self._connector.connect(contact)
        except PeerUnreachable as error:
            return False if error.closed else None
        answer: wire.Frame | None = None
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(CONNECTING):
                await link.send(AgentAsked())
                answer = await anext(link.frames())
        link.close()
        return answer.agent == agent if isinstance(answer, AgentTold) else None

    async def look_for(self, round_: Round) -> None:
        """Find out which members of the last round, that have not come to us, have ended."""
        contacts = self._state.contacts
        while (leader := self._state.leader) is not None and leader.is_taking_over:
            await asyncio.sleep(_LOOKED)
            there = {link.agent for link in leader.links}
            for agent in [m.agent for m in round_.members if m.agent not in there]:
                contact = contacts.get(agent)
                if agent == self._host.agent or contact is None:
                    continue
                if await self.is_there(agent, contact) is False:
                    leader.count_out(agent)  # else it is there, and will come

    async def watch_the_beginning(self) -> None:
        """Have those that come to the original endpoint sent to where it goes on."""
        while self._state.leader is not None and not self._state.is_over:
            await asyncio.sleep(_WATCHED)
            with contextlib.suppress(PeerUnreachable):
                link = await self._connector.connect(self._host.endpoint)
                if (own := self._state.request) is not None:
                    await link.send(LeaderMoved(app=self._host.run_id, contact=own.contact))
                await link.flush(_LAST_WORDS)
                link.close()

    def close(self) -> None:
        """Let those that wait go."""
        for link, _ in self._asked:
            link.close()
