"""Those that connect to a host: they join it if it decides, wait, or are sent on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from phalanx import wire
from phalanx.logs import logger
from phalanx.rendezvous.tcp.following import Follower
from phalanx.rendezvous.tcp.link import Link, NoAnswer
from phalanx.rounds import Endpoint, Round
from phalanx.wire import peers

if TYPE_CHECKING:
    from phalanx.rendezvous.tcp.seat import TcpSeat

_HELD = 2.0
"""Seconds that one who asks is kept waiting while we still follow another."""
_WATCHED = 1.0
"""Seconds between looks whether somebody has come to the place where it began."""
_LOOKED = 0.25
"""Seconds between looks for those that have not come after another has taken over."""
_FIRST_WORD = 10.0
"""Seconds in which one that connects must say who it is."""
_LAST_WORDS = 3.0


class Reception:
    """Receives other hosts, for a seat."""

    def __init__(self, seat: TcpSeat) -> None:
        """Nobody has come."""
        self._seat = seat
        self._asked: list[tuple[Link, peers.Meet]] = []
        self._refused: set[str] = set()
        """What was said of those that began with something else."""

    async def take(self, link: Link) -> None:
        """Somebody has connected."""
        frame: wire.Frame | None = None
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(_FIRST_WORD):
                frame = await anext(link.frames())
        if isinstance(frame, peers.Meet):
            await self._receive(link, frame)
            return
        if isinstance(frame, peers.Moved) and frame.app == self._seat.part.run_id:
            await self._abdicate(frame.door)
        elif frame is not None:
            await self._refuse(link, frame)
        link.close()

    async def _refuse(self, link: Link, frame: wire.Frame) -> None:
        """One that has the token begins with something else than who it is."""
        kind = type(frame).__name__
        if kind not in self._refused:
            self._refused.add(kind)
            logger.warning("phalanx: a host was refused: it began with %s instead of Meet", kind)
        await link.send(peers.Refused(reason=f"it began with {kind} instead of Meet"))

    async def _receive(self, link: Link, meet: peers.Meet) -> None:
        seat = self._seat
        if seat.leader is not None:
            await seat.leader.serve(link, meet)
            return
        self._asked.append((link, meet))
        await asyncio.sleep(_HELD)
        if (link, meet) in self._asked and seat.leader_door is not None:
            self._asked.remove((link, meet))
            await link.send(peers.Moved(door=seat.leader_door))
            link.close()

    def answer(self) -> None:
        """It is known who decides: have those that wait join us, or send them there."""
        seat = self._seat
        asked, self._asked = self._asked, []
        for link, meet in asked:
            if link.is_over:
                continue  # others came, and it had waited longest
            if seat.leader is not None:
                seat.do(seat.leader.serve(link, meet))
            elif seat.leader_door is not None:
                seat.do(link.send(peers.Moved(door=seat.leader_door)))

    async def _abdicate(self, door: Endpoint) -> None:
        """The app goes on elsewhere: follow there, unless something has begun here."""
        seat = self._seat
        leader = seat.leader
        if leader is None or seat.round is not None:
            return
        seat.leader = None
        for link in leader.links:
            await link.send(peers.Moved(door=door))
            link.close()
        seat.do(Follower(seat).run(door))

    async def look_for(self, round_: Round) -> None:
        """Find out which members of the last round, that have not come to us, have ended."""
        seat = self._seat
        while (leader := seat.leader) is not None and leader.is_taking_over:
            await asyncio.sleep(_LOOKED)
            there = {link.agent for link in leader.links}
            for agent in [m.agent for m in round_.members if m.agent not in there]:
                door = seat.doors.get(agent)
                if agent == seat.part.agent or door is None:
                    continue
                try:
                    link = await seat.wires.connect(door)
                    link.close()  # it is there, and will come
                except NoAnswer as error:
                    if error.closed:
                        leader.count_out(agent)

    async def watch_the_beginning(self) -> None:
        """Have those that come to the place where it began sent to where it goes on."""
        seat = self._seat
        while seat.leader is not None and not seat.is_over:
            await asyncio.sleep(_WATCHED)
            with contextlib.suppress(NoAnswer):
                link = await seat.wires.connect(seat.part.endpoint)
                if seat.meet is not None:
                    await link.send(peers.Moved(app=seat.part.run_id, door=seat.meet.door))
                await link.flush(_LAST_WORDS)
                link.close()

    def close(self) -> None:
        """Let those that wait go."""
        for link, _ in self._asked:
            link.close()
