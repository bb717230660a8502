"""Following the leader: joining it, doing what it says, until it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from phalanx import _wire as wire
from phalanx._core.ranks import member_at
from phalanx._core.rounds import Endpoint, Round
from phalanx._logs import logger
from phalanx._rendezvous.errors import RendezvousError
from phalanx._rendezvous.protocol import BeginRoundAction, HaltRoundAction, ProgressEvent
from phalanx._rendezvous.tcp.connections.connector import Connector
from phalanx._rendezvous.tcp.connections.link import Link, PeerUnreachable
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.local_actions import LocalActions
from phalanx._rendezvous.tcp.state import TcpState
from phalanx._rendezvous.tcp.verdicts import verdict_of
from phalanx._wire.rendezvous_frames import (
    AppEnded,
    FailureTold,
    GivenUp,
    HostPosition,
    JoinAccepted,
    JoinRefused,
    LeaderMoved,
    RestartsSpent,
    RoundFormed,
)

SHORTEST, LONGEST = 0.05, 1.0
"""Seconds between two attempts to reach somebody."""


@dataclass(frozen=True)
class FollowEnd:
    """How an attempt to follow somebody ended."""

    reason: str
    closed: bool
    """Nobody is there, for certain."""
    followed: bool = False
    given_up: bool = False
    """It has heard nothing of this host, and may have gone on without it."""
    moved: Endpoint | None = None
    unreachable: PeerUnreachable | None = None
    """Why no connection came about."""


class Follower:
    """Follows one host after another; whom, is for others to say."""

    def __init__(
        self,
        host: TcpHost,
        state: TcpState,
        actions: LocalActions,
        connector: Connector,
        now: Callable[[], float],
        followed: Callable[[Link], None],
    ) -> None:
        """`followed` is told that another decides."""
        self._host = host
        self._state = state
        self._actions = actions
        self._connector = connector
        self._now = now
        self._followed = followed
        self._failures: list[FailureTold] = []
        """What was told before the end."""
        self._position: HostPosition | None = None
        self._said: set[tuple[Endpoint, str]] = set()
        """What was said of somebody that is waited for."""

    async def follow(self, contact: Endpoint, patience: float) -> FollowEnd:
        """Join whoever is there, and do what it says, to the end. Raises `RendezvousError`."""
        await self._state.wait_request()
        try:
            link = await self._connector.connect(contact, patience)
        except PeerUnreachable as error:
            return FollowEnd(str(error), error.closed, unreachable=error)
        limit = self._host.settings.host_timeout
        await link.send(await self._state.wait_request())  # what is so by now
        frames = link.frames()
        try:
            async with asyncio.timeout(min(limit, self._host.settings.join_timeout)):
                first = await anext(frames)
        except TimeoutError:
            link.abort()
            return FollowEnd(f"no response within {limit:g} s", closed=False)
        except StopAsyncIteration:
            link.close()
            return FollowEnd("the connection was closed", closed=True)
        match first:
            case JoinAccepted():
                self._state.follow(link, first.leader, contact)
                self._said.clear()
                self._followed(link)
            case LeaderMoved():
                link.close()
                return FollowEnd("it is elsewhere", closed=False, moved=first.contact)
            case JoinRefused():
                link.close()
                raise RendezvousError(f"this host cannot join: {first.reason}.")
            case _:
                link.close()
                said = f"it answered the request to join with {type(first).__name__}"
                self.say(contact, said)  # at once: waiting may not help
                return FollowEnd(said, closed=False)
        async for frame in frames:
            if isinstance(frame, LeaderMoved):
                link.close()
                self._state.lose_leader(link)
                return FollowEnd("it is elsewhere", closed=False, moved=frame.contact)
            if isinstance(frame, JoinRefused):
                link.close()
                raise RendezvousError(f"this host has to leave: {frame.reason}")
            if isinstance(frame, GivenUp):
                link.close()
                self._state.lose_leader(link)
                why = "it has heard nothing of this host for too long"
                return FollowEnd(why, closed=True, followed=True, given_up=True)
            self._obey(frame)
        link.close()
        self._state.lose_leader(link)
        return FollowEnd("the connection was closed", closed=link.silent < limit, followed=True)

    def _obey(self, frame: wire.Frame) -> None:
        """Do what another has decided."""
        match frame:
            case HostPosition():
                self._position = frame
            case RoundFormed():
                round_ = self._round_of(frame)
                event = self._round_event(round_, frame.cause)
                self._state.round_formed(frame.leader, frame.contacts, event, frame.waiting)
                self._actions.carry_out(BeginRoundAction(round_))
            case wire.HaltRound():
                halt = HaltRoundAction(frame.round, frame.grace, stacks=frame.stacks)
                self._actions.carry_out(halt)
            case RestartsSpent():
                self._state.count_restarts(frame.restarts)
            case FailureTold():
                self._failures.append(frame)
            case AppEnded():
                self._actions.finish(verdict_of(frame, self._failures, self._state.round))

    def _round_of(self, formed: RoundFormed) -> Round:
        """The round, with this host in it, if it is."""
        round_, own, told = formed.membership, self._host, self._position
        size = sum(run.hosts for run in formed.hosts)
        if told is None or told.round != formed.round or formed.is_whole or told.position >= size:
            return round_
        member = member_at(formed.hosts, told.position, own.agent, own.hostname)
        members = sorted((*round_.members, member), key=lambda one: one.first_rank)
        return replace(round_, members=tuple(members))

    def _round_event(self, round_: Round, cause: str) -> ProgressEvent:
        facts: dict[str, Any] = {
            "round": round_.number,
            "hosts": [member.hostname for member in round_.members],
            "restarts": round_.restarts,
            "world_size": round_.world_size,
        }
        if cause:
            facts["cause"] = cause
        return ProgressEvent("round", self._now(), facts)

    def say(self, contact: Endpoint, reason: str) -> None:
        """Say what is waited for, and why; once."""
        if (contact, reason) not in self._said:
            self._said.add((contact, reason))
            logger.warning(
                "phalanx: waiting for the rendezvous at %s:%d, up to %g s (join_timeout): %s",
                contact.address,
                contact.port,
                self._host.settings.join_timeout,
                reason,
            )
