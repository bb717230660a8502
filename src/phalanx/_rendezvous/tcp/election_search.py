"""Finding the leader by asking etcd, and standing for it when nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint
from phalanx._rendezvous.errors import RendezvousTimeoutError
from phalanx._rendezvous.etcd.candidacy import (
    Examine,
    FollowLeader,
    HearEnd,
    LookFor,
    StandForElection,
    choose_step,
)
from phalanx._rendezvous.etcd.election import Election
from phalanx._rendezvous.etcd.keys import EtcdUnreachable
from phalanx._rendezvous.etcd.records import Claim, LeaderRecord, RoundRecord
from phalanx._rendezvous.tcp.connections.connector import Connector
from phalanx._rendezvous.tcp.connections.link import CONNECTING, PeerUnreachable
from phalanx._rendezvous.tcp.follower import LONGEST, SHORTEST, Follower
from phalanx._rendezvous.tcp.heartbeat import SAID_AFTER
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.local_actions import LocalActions
from phalanx._rendezvous.tcp.state import TcpState
from phalanx._rendezvous.tcp.verdicts import verdict_of


class Lead(Protocol):
    """Has this host decide, as it was elected to."""

    def __call__(self, elected: StandForElection, last: RoundRecord | None) -> None:
        """`last` is the round that was there, where something of it is left."""


class ElectionSearch:
    """Follows whoever is elected, until the end, or until that is this host."""

    def __init__(
        self,
        host: TcpHost,
        state: TcpState,
        actions: LocalActions,
        follower: Follower,
        connector: Connector,
        election: Election,
        now: Callable[[], float],
        lead: Lead,
    ) -> None:
        """Nothing is known of other hosts."""
        self._host = host
        self._state = state
        self._actions = actions
        self._follower = follower
        self._connector = connector
        self._election = election
        self._now = now
        self._lead = lead
        self._patience = host.settings.join_timeout
        self._has_led = False
        """This host was elected. It may have stepped down at once: then it searches anew."""
        self._ended: set[AgentId] = set()
        """Those that have certainly ended: nobody listens where they were."""
        self._silent: set[AgentId] = set()
        self._claimed: dict[int, float] = {}
        """When claims of those that have another token were seen first."""
        self._refuted: set[int] = set()
        settings = host.settings
        gathering = settings.last_call_timeout + settings.host_timeout
        self._gathering = min(gathering, settings.join_timeout / 3)
        """Seconds in which hosts with another token may meet undisturbed."""
        self._reason = "no host leads"
        """Why nothing has come of it so far."""

    async def run(self, hold_off: float = 0.0) -> None:
        """Search; for so many seconds others may stand first. Raises `RendezvousError`."""
        began = self._now()
        since, pause = began, SHORTEST
        while not self._state.is_over:
            try:
                follows = await self._step(may_stand=self._now() >= began + hold_off)
            except EtcdUnreachable as error:
                self._reason, follows = f"etcd: {error}", False
            if self._state.is_over or self._has_led:
                return
            if follows:
                since, pause = self._now(), SHORTEST
                continue
            if self._now() > since + self._patience:
                raise self._timeout()
            if self._now() > since + SAID_AFTER:
                self._follower.say(self._host.endpoint, self._reason)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST)

    async def _step(self, *, may_stand: bool) -> bool:
        """Do the next thing; whether somebody was followed, and is lost now."""
        request = await self._state.wait_request()
        view = await self._election.view()
        own = self._host.agent
        known = self._ended, self._silent, self._refuted
        step = choose_step(view, own, request.last_round, *known)
        match step:
            case FollowLeader(leader):
                return await self._follow(leader)
            case LookFor(agents):
                assert view.last is not None
                self._reason = "the hosts of the last round are still there, and none leads"
                contacts = view.last.formed.contacts
                await asyncio.gather(*(self._look_for(a, contacts[a]) for a in agents))
            case Examine(claims):
                for claim in claims:
                    await self._examine(claim)
            case HearEnd(last):
                assert last.ended is not None
                self._actions.finish(verdict_of(last.ended, last.failures, last.round))
            case StandForElection() if may_stand:
                won = await self._election.stand(step, request.contact, view.last)
                if won and not self._state.is_over:
                    self._has_led = True
                    self._lead(step, view.last)
        return False

    async def _follow(self, leader: LeaderRecord) -> bool:
        end = await self._follower.follow(leader.contact, CONNECTING)
        self._reason = f"{leader.contact.address}:{leader.contact.port} leads: {end.reason}"
        if end.unreachable is not None:
            if end.unreachable.stranger:
                said = f"{end.reason}. Do all hosts have the same token?"
                self._follower.say(leader.contact, said)
            if end.closed:
                self._ended.add(leader.agent)
        if end.followed:
            self._actions.halt(self._host.coordinator_settings.stop_grace)
            if not end.closed:
                self._silent.add(leader.agent)
        return end.followed

    async def _look_for(self, agent: AgentId, contact: Endpoint) -> None:
        """Find out whether one has certainly ended."""
        try:
            link = await self._connector.connect(contact)
            link.close()
        except PeerUnreachable as error:
            if error.closed:
                self._ended.add(agent)

    async def _examine(self, claim: Claim) -> None:
        """Give way to hosts with another token that run, or may gather; to nobody else."""
        since = self._claimed.setdefault(claim.revision, self._now())
        asked = await asyncio.gather(*(self._is_stranger(place) for place in claim.contacts))
        strangers = [place for place, is_one in zip(claim.contacts, asked, strict=True) if is_one]
        if not strangers or not (claim.has_round or self._now() < since + self._gathering):
            self._refuted.add(claim.revision)
            return
        place = strangers[0]
        what = "runs" if claim.has_round else "leads"
        self._reason = f"a host with another token {what} at {place.address}:{place.port}"
        self._follower.say(place, f"{self._reason}. Do all hosts have the same token?")

    async def _is_stranger(self, contact: Endpoint) -> bool:
        """A host of ours is there, and has another token."""
        try:
            link = await self._connector.connect(contact)
            link.close()
        except PeerUnreachable as error:
            return error.stranger and error.greeted
        return False

    def _timeout(self) -> RendezvousTimeoutError:
        endpoint = self._host.endpoint
        return RendezvousTimeoutError(
            f"no rendezvous by etcd at {endpoint.address}:{endpoint.port} within "
            f"{self._patience:g} s (join_timeout): {self._reason}."
        )
