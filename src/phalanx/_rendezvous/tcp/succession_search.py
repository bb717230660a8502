"""Finding the leader at the endpoint, and the next one, by rank, when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint
from phalanx._rendezvous.errors import RendezvousError, RendezvousTimeoutError
from phalanx._rendezvous.protocol import Handover
from phalanx._rendezvous.succession import AskMember, BecomeLeader, Succession
from phalanx._rendezvous.tcp.connections import torch_store
from phalanx._rendezvous.tcp.connections.link import CONNECTING, PeerUnreachable
from phalanx._rendezvous.tcp.follower import LONGEST, SHORTEST, FollowEnd, Follower
from phalanx._rendezvous.tcp.heartbeat import SAID_AFTER
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.local_actions import LocalActions
from phalanx._rendezvous.tcp.state import TcpState

_LONGEST_CONNECTING = 8.0
"""Seconds for a connection, after others that did not come about in time."""


class SuccessionSearch:
    """Follows whoever decides, until the end, or until this host has to decide itself."""

    def __init__(
        self,
        host: TcpHost,
        state: TcpState,
        actions: LocalActions,
        follower: Follower,
        now: Callable[[], float],
        *,
        lead: Callable[[Handover | None], None],
        take_endpoint: Callable[[], bool],
    ) -> None:
        """`lead` has this host decide.

        `take_endpoint` takes the port where all begins, if that is this host's to take.
        """
        self._host = host
        self._state = state
        self._actions = actions
        self._follower = follower
        self._now = now
        self._lead = lead
        self._take_endpoint = take_endpoint
        self._patience = host.settings.join_timeout
        self._succession: Succession | None = None
        self._asked: AgentId | None = None
        self._pause = SHORTEST
        self._connecting = CONNECTING

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
                self._follower.say(contact, end.reason)
            if end.moved is not None and self._now() <= limit:
                contact, sent_on = end.moved, True
                await asyncio.sleep(SHORTEST)
                continue
            if end.followed:
                limit = self._now() + self._patience
                self._begin_succession(closed=end.closed, given_up=end.given_up)
            elif self._succession is not None and self._asked is not None and not sent_on:
                self._succession.fail(self._asked, closed=end.closed)
            if self._now() > limit:
                raise self._timeout(end.reason)
            if gone and end.closed and self._is_unmet() and self._take_endpoint():
                self._lead(None)  # who had the port was not of this run, and has left
                return
            if not end.followed:
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, LONGEST)
                if self._state.is_over:
                    return
            sent_on = False
            found = self._next_contact()
            if found is None:
                return
            contact = found

    def _begin_succession(self, *, closed: bool, given_up: bool = False) -> None:
        """The one that decided is lost, and with it the round, if there was one.

        Of two members neither has gone on without the other, if it had given that one up.
        """
        self._pause = SHORTEST
        self._succession = self._asked = None
        round_, leader = self._state.round, self._state.leader_agent
        if round_ is not None and leader is not None:
            self._actions.halt(self._host.coordinator_settings.stop_grace)
            given_up = given_up and not (self._state.is_member and len(round_.members) == 2)
            self._succession = Succession(
                self._state.successors, self._host.agent, leader, closed=closed, given_up=given_up
            )

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
                may = self._state.is_successor
                if not may or (silent and not self._state.is_member):
                    # It may not decide: it asks again, also where all began.
                    self._begin_succession(closed=False)
                    return self._host.endpoint
                self._lead(Handover(round_, closed, silent))
                return None

    async def _attempt(self, contact: Endpoint, left: float) -> FollowEnd:
        # Where many others crowd at the port, its host takes its time to come to us.
        patience = self._connecting if self._succession is None else CONNECTING
        end = await self._follower.follow(contact, min(patience, left))
        error = end.unreachable
        if error is None:
            self._connecting = CONNECTING
            return end
        if not error.closed:
            self._connecting = min(2 * self._connecting, _LONGEST_CONNECTING)
        if await self._meets_torch(contact, error):
            where = f"{contact.address}:{contact.port}"
            raise RendezvousError(f"torch's own launcher waits at {where}: {torch_store.MIXED}.")
        if error.stranger:
            self._follower.say(contact, f"{error}. Do all hosts have the same token?")
        return end

    async def _meets_torch(self, contact: Endpoint, error: PeerUnreachable) -> bool:
        """Whether torch's own launcher is at the endpoint; asked before anybody was met there.

        Not of one that speaks as we do: it would take us for torch's launcher, and say so.
        """
        may_be = self._is_unmet() and not error.closed and not error.greeted
        return may_be and await torch_store.listens_at(contact)

    def _is_unmet(self) -> bool:
        """Nobody of this run was ever met."""
        return self._succession is None and self._state.round is None

    def _timeout(self, reason: str) -> RendezvousTimeoutError:
        endpoint = self._host.endpoint
        return RendezvousTimeoutError(
            f"no rendezvous at {endpoint.address}:{endpoint.port} within {self._patience:g} s "
            f"(join_timeout): {reason}. Check that its host is up and the port is open."
        )
