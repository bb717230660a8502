"""Finding the host that decides, following it, and turning to the next one when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from phalanx import _wire as wire
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Round
from phalanx._logs import logger
from phalanx._rendezvous.errors import RendezvousError, RendezvousTimeoutError
from phalanx._rendezvous.protocol import (
    BeginRoundAction,
    HaltRoundAction,
    Handover,
    Happening,
)
from phalanx._rendezvous.succession import AskMember, BecomeLeader, Succession
from phalanx._rendezvous.tcp.connections import torch_store
from phalanx._rendezvous.tcp.connections.connector import Connector
from phalanx._rendezvous.tcp.connections.link import CONNECTING, Link, PeerUnreachable
from phalanx._rendezvous.tcp.heartbeat import SAID_AFTER
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.local_actions import LocalActions
from phalanx._rendezvous.tcp.state import TcpState
from phalanx._rendezvous.tcp.verdicts import verdict_of
from phalanx._wire.rendezvous_frames import (
    AppEnded,
    FailureTold,
    JoinAccepted,
    JoinRefused,
    LeaderMoved,
    RoundFormed,
)

_LONGEST_CONNECTING = 8.0
"""Seconds for a connection, after others that did not come about in time."""
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

    def __init__(
        self,
        host: TcpHost,
        state: TcpState,
        actions: LocalActions,
        connector: Connector,
        now: Callable[[], float],
        *,
        followed: Callable[[Link], None],
        lead: Callable[[Handover | None], None],
        take_endpoint: Callable[[], bool],
    ) -> None:
        """`followed` is told that another decides; `lead` has this host decide.

        `take_endpoint` takes the port where all begins, if that is this host's to take.
        """
        self._host = host
        self._state = state
        self._actions = actions
        self._connector = connector
        self._now = now
        self._followed = followed
        self._lead = lead
        self._take_endpoint = take_endpoint
        self._patience = host.settings.join_timeout
        self._succession: Succession | None = None
        self._asked: AgentId | None = None
        self._pause = _SHORTEST
        self._connecting = CONNECTING
        self._failures: list[FailureTold] = []
        """What was told before the end."""
        self._said: set[tuple[Endpoint, str]] = set()
        """What was said of somebody that is waited for."""

    async def run(self, contact: Endpoint) -> None:
        """Begin with whoever is there. Raises `RendezvousError`."""
        limit = self._now() + self._patience
        sent_on = False
        while not self._state.is_over:
            end = await self._attempt(contact, max(CONNECTING, limit - self._now()))
            if self._state.is_over:
                return
            gone = not end.followed and end.moved is None
            if gone and self._now() > limit - self._patience + SAID_AFTER:
                self._say(contact, end.reason)
            if end.moved is not None and self._now() <= limit:
                contact, sent_on = end.moved, True
                await asyncio.sleep(_SHORTEST)
                continue
            if end.followed:
                limit = self._now() + self._patience
                self._said.clear()
                self._begin_succession(closed=end.closed)
            elif self._succession is not None and self._asked is not None and not sent_on:
                self._succession.fail(self._asked, closed=end.closed)
            if self._now() > limit:
                raise self._timeout(end.reason)
            if gone and end.closed and self._is_unmet() and self._take_endpoint():
                self._lead(None)  # who had the port was not of this run, and has left
                return
            if not end.followed:
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, _LONGEST)
                if self._state.is_over:
                    return
            sent_on = False
            found = self._next_contact()
            if found is None:
                return
            contact = found

    def _begin_succession(self, *, closed: bool) -> None:
        """The one that decided is lost, and with it the round, if there was one."""
        self._pause = _SHORTEST
        self._succession = self._asked = None
        round_, leader = self._state.round, self._state.leader_agent
        if round_ is not None and leader is not None:
            self._actions.halt(self._host.policy.stop_grace)
            members = [member.agent for member in round_.members]
            self._succession = Succession(members, self._host.agent, leader, closed=closed)

    def _next_contact(self) -> Endpoint | None:
        """Whom to ask now; None when it is us that decide from now on."""
        round_ = self._state.round
        if self._succession is None or round_ is None:
            return self._host.endpoint
        match self._succession.next():
            case AskMember(agent):
                self._asked = agent
                return self._state.contact_of(agent)
            case BecomeLeader(closed, silent):
                if not self._state.is_member:
                    # Only waiting, it may not decide: it asks again, also where all began.
                    self._begin_succession(closed=False)
                    return self._host.endpoint
                self._lead(Handover(round_, closed, silent))
                return None

    async def _attempt(self, contact: Endpoint, left: float) -> _End:
        request = await self._state.wait_request()
        try:
            # Where many others crowd at the port, its host takes its time to come to us.
            patience = self._connecting if self._succession is None else CONNECTING
            link = await self._connector.connect(contact, min(patience, left))
            self._connecting = CONNECTING
        except PeerUnreachable as error:
            if not error.closed:
                self._connecting = min(2 * self._connecting, _LONGEST_CONNECTING)
            if await self._meets_torch(contact, error):
                where = f"{contact.address}:{contact.port}"
                raise RendezvousError(
                    f"torch's own launcher waits at {where}: {torch_store.MIXED}."
                ) from None
            if error.stranger:
                self._say(contact, f"{error}. Do all hosts have the same token?")
            return _End(str(error), error.closed)
        limit = self._host.settings.host_timeout
        await link.send(request)
        frames = link.frames()
        try:
            async with asyncio.timeout(min(limit, self._patience)):
                first = await anext(frames)
        except TimeoutError:
            link.abort()
            return _End(f"no response within {limit:g} s", closed=False)
        except StopAsyncIteration:
            link.close()
            return _End("the connection was closed", closed=True)
        match first:
            case JoinAccepted():
                self._state.follow(link, first.leader)
                self._followed(link)
            case LeaderMoved():
                link.close()
                return _End("it is elsewhere", closed=False, moved=first.contact)
            case JoinRefused():
                link.close()
                raise RendezvousError(f"this host cannot join: {first.reason}.")
            case _:
                link.close()
                said = f"it answered the request to join with {type(first).__name__}"
                self._say(contact, said)  # at once: waiting may not help
                return _End(said, closed=False)
        async for frame in frames:
            if isinstance(frame, LeaderMoved):
                link.close()
                self._state.lose_leader(link)
                return _End("it is elsewhere", closed=False, moved=frame.contact)
            self._obey(frame)
        link.close()
        self._state.lose_leader(link)
        return _End("the connection was closed", closed=link.silent < limit, followed=True)

    async def _meets_torch(self, contact: Endpoint, error: PeerUnreachable) -> bool:
        """Whether torch's own launcher is at the endpoint; asked before anybody was met there.

        Not of one that speaks as we do: it would take us for torch's launcher, and say so.
        """
        may_be = self._is_unmet() and not error.closed and not error.greeted
        return may_be and await torch_store.listens_at(contact)

    def _is_unmet(self) -> bool:
        """Nobody of this run was ever met."""
        return self._succession is None and self._state.round is None

    def _obey(self, frame: wire.Frame) -> None:
        """Do what another has decided."""
        match frame:
            case RoundFormed():
                round_ = frame.membership
                self._state.round_formed(frame.leader, frame.contacts, self._round_event(round_))
                self._actions.carry_out(BeginRoundAction(round_))
            case wire.HaltRound():
                halt = HaltRoundAction(frame.round, frame.grace, stacks=frame.stacks)
                self._actions.carry_out(halt)
            case FailureTold():
                self._failures.append(frame)
            case AppEnded():
                self._actions.finish(verdict_of(frame, self._failures))

    def _round_event(self, round_: Round) -> Happening:
        facts = {
            "round": round_.number,
            "hosts": [member.hostname for member in round_.members],
            "restarts": round_.restarts,
            "world_size": round_.world_size,
        }
        return Happening("round", self._now(), facts)

    def _say(self, contact: Endpoint, reason: str) -> None:
        """Say what is waited for, and why; once."""
        if (contact, reason) not in self._said:
            self._said.add((contact, reason))
            logger.warning(
                "phalanx: waiting for the rendezvous at %s:%d, up to %g s (join_timeout): %s",
                *(contact.address, contact.port, self._patience, reason),
            )

    def _timeout(self, reason: str) -> RendezvousTimeoutError:
        endpoint = self._host.endpoint
        return RendezvousTimeoutError(
            f"no rendezvous at {endpoint.address}:{endpoint.port} within {self._patience:g} s "
            f"(join_timeout): {reason}. Check that its host is up and the port is open."
        )
