"""Finding the host that decides, following it, and turning to the next one when it is lost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint
from phalanx._logs import logger
from phalanx._rendezvous.errors import RendezvousError, RendezvousTimeoutError
from phalanx._rendezvous.protocol import Inheritance
from phalanx._rendezvous.succession import Ask, Lead, Succession
from phalanx._rendezvous.tcp.link import PeerUnreachable
from phalanx._wire import rendezvous_frames

if TYPE_CHECKING:
    from phalanx._rendezvous.tcp.tcp_decider import TcpDecider

SAID_AFTER = 2.0
"""Seconds after which it is said what is waited for."""
_SHORTEST, _LONGEST = 0.05, 1.0
"""Seconds between two attempts to reach somebody."""


@dataclass(frozen=True)
class _End:
    """How an attempt to follow somebody ended."""

    reason: str
    closed: bool
    """Nobody is there, for certain."""
    followed: bool = False
    moved: Endpoint | None = None


class Follower:
    """Follows whoever decides, until the end, or until this host has to decide itself."""

    def __init__(self, decider: TcpDecider) -> None:
        """For this seat."""
        self._decider = decider
        self._succession: Succession | None = None
        self._asked: AgentId | None = None
        self._pause = _SHORTEST
        self._said: set[tuple[Endpoint, str]] = set()
        """What was said of somebody that is waited for."""

    async def run(self, place: Endpoint) -> None:
        """Begin with whoever is there. Raises `RendezvousError`."""
        decider = self._decider
        patience = decider.part.settings.join_timeout
        limit = decider.now() + patience
        sent_on = False
        while not decider.is_over:
            end = await self._attempt(place)
            if decider.is_over:
                return
            gone = not end.followed and end.moved is None
            if gone and decider.now() > limit - patience + SAID_AFTER:
                self._say(place, end.reason)
            if end.moved is not None and decider.now() <= limit:
                place, sent_on = end.moved, True
                await asyncio.sleep(_SHORTEST)
                continue
            if end.followed:
                limit = decider.now() + patience
                self._said.clear()
                self._begin_succession(closed=end.closed)
            elif self._succession is not None and self._asked is not None and not sent_on:
                self._succession.fail(self._asked, closed=end.closed)
            if decider.now() > limit:
                raise self._timeout(end.reason)
            if not end.followed:
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, _LONGEST)
            sent_on = False
            found = self._next_place()
            if found is None:
                return
            place = found

    def _begin_succession(self, *, closed: bool) -> None:
        """The one that decided is lost, and with it the round, if there was one."""
        decider = self._decider
        self._pause = _SHORTEST
        self._succession = self._asked = None
        if decider.round is not None and decider.leader_agent is not None:
            decider.halt(decider.part.policy.stop_grace)
            members = [member.agent for member in decider.round.members]
            self._succession = Succession(
                members, decider.part.agent, decider.leader_agent, closed=closed
            )

    def _next_place(self) -> Endpoint | None:
        """Whom to ask now; None when it is us that decide from now on."""
        decider = self._decider
        if self._succession is None or decider.round is None:
            return decider.part.endpoint
        match self._succession.next():
            case Ask(agent):
                self._asked = agent
                return decider.contacts.get(agent, decider.part.endpoint)
            case Lead(closed, silent):
                if not decider.is_member(decider.round):
                    # Only waiting, it may not decide: it asks again, also where all began.
                    self._begin_succession(closed=False)
                    return decider.part.endpoint
                decider.lead(Inheritance(decider.round, closed, silent))
                return None

    async def _attempt(self, place: Endpoint) -> _End:
        decider = self._decider
        meet = await decider.meet_again()
        try:
            link = await decider.connector.connect(place)
        except PeerUnreachable as error:
            if error.stranger:
                self._say(place, f"{error}. Do all hosts have the same token?")
            return _End(str(error), error.closed)
        limit = decider.part.settings.host_timeout
        await link.send(meet)
        frames = link.frames()
        try:
            async with asyncio.timeout(min(limit, decider.part.settings.join_timeout)):
                first = await anext(frames)
        except TimeoutError:
            link.abort()
            return _End(f"no response within {limit:g} s", closed=False)
        except StopAsyncIteration:
            link.close()
            return _End("the connection was closed", closed=True)
        match first:
            case rendezvous_frames.JoinAccepted():
                decider.follow(link, first.leader)
            case rendezvous_frames.LeaderMoved():
                link.close()
                return _End("it is elsewhere", closed=False, moved=first.contact)
            case rendezvous_frames.JoinRefused():
                link.close()
                raise RendezvousError(f"this host cannot join: {first.reason}.")
            case _:
                link.close()
                said = f"it answered the request to join with {type(first).__name__}"
                self._say(place, said)  # at once: waiting may not help
                return _End(said, closed=False)
        async for frame in frames:
            if isinstance(frame, rendezvous_frames.LeaderMoved):
                link.close()
                decider.unfollow(link)
                return _End("it is elsewhere", closed=False, moved=frame.contact)
            decider.obey(frame)
        link.close()
        decider.unfollow(link)
        return _End("the connection was closed", closed=link.silent < limit, followed=True)

    def _say(self, place: Endpoint, reason: str) -> None:
        """Say what is waited for, and why; once."""
        if (place, reason) not in self._said:
            self._said.add((place, reason))
            logger.warning(
                "phalanx: waiting for the rendezvous at %s:%d, up to %g s (join_timeout): %s",
                *(place.address, place.port, self._decider.part.settings.join_timeout, reason),
            )

    def _timeout(self, reason: str) -> RendezvousTimeoutError:
        place, patience = self._decider.part.endpoint, self._decider.part.settings.join_timeout
        return RendezvousTimeoutError(
            f"no rendezvous at {place.address}:{place.port} within {patience:g} s (join_timeout): "
            f"{reason}. Check that its host is up and the port is open."
        )
