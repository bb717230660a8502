"""Where one host of a rendezvous over TCP stands; every change of it is a method.

```
looking ──follow──► following ──lose_leader──► looking      another host decides
looking ──lead────► leading                                 this host decides
leading ──abdicate, depose──► looking                       the app goes on elsewhere
```

Beside it goes the round: `begin`, `workers_started`, `worker_ended`, `stop`, `clear`. `cancel` and
`finish` end both. It sends nothing, and knows no more of links and leaders than who has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace

from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Outcome, Round
from phalanx._rendezvous.protocol import Phase, ProgressEvent
from phalanx._rendezvous.succession import successors
from phalanx._rendezvous.tcp.connections.link import Link
from phalanx._rendezvous.tcp.leader import Leader
from phalanx._wire.rendezvous_frames import JoinRequest


class TcpState:
    """Who decides, which round there is, and what this host has of it."""

    def __init__(self, agent: AgentId, endpoint: Endpoint) -> None:
        """Nobody is known to decide; `endpoint` is where the first that does is found."""
        self._agent = agent
        self._endpoint = endpoint
        self._leader: Leader | None = None
        self._link: Link | None = None
        self._leader_agent: AgentId | None = None
        self._leader_contact: Endpoint | None = None
        self._contacts: dict[AgentId, Endpoint] = {}
        self._successors: tuple[AgentId, ...] = ()
        self._request: JoinRequest | None = None
        self._has_agent = False
        self._has_joined = asyncio.Event()
        self._phase = Phase.GATHERING
        self._round: Round | None = None
        self._own_round: int | None = None
        """The last one that this host was in: others may have begun without it since."""
        self._outcomes: dict[int, Outcome] = {}
        self._runs = False
        self._clear = True
        self._cancelled = False
        self._progress: list[ProgressEvent] = []

    # ── who decides ───────────────────────────────────────────────────────────

    @property
    def leader(self) -> Leader | None:
        """Set while this host decides."""
        return self._leader

    @property
    def link(self) -> Link | None:
        """To the leader, while another host leads."""
        return self._link

    @property
    def leader_agent(self) -> AgentId | None:
        """Who decides, or did last."""
        return self._leader_agent

    @property
    def leader_contact(self) -> Endpoint | None:
        """Where the leader, another host, is reached."""
        return self._leader_contact

    @property
    def contacts(self) -> Mapping[AgentId, Endpoint]:
        """Where the members of the last round are reached, as far as another has told."""
        return self._contacts

    @property
    def successors(self) -> tuple[AgentId, ...]:
        """Those that may decide next, as another has told: members of the last round, and then
        hosts that waited.
        """
        return self._successors

    @property
    def is_successor(self) -> bool:
        """This host may decide next: it was told of all the others that may."""
        return self._agent in self._successors

    def contact_of(self, agent: AgentId) -> Endpoint:
        """Where a host is reached; if nobody has told, where the rendezvous began."""
        return self._contacts.get(agent, self._endpoint)

    def learn_contacts(self, contacts: Mapping[AgentId, Endpoint]) -> None:
        """It is known from elsewhere where the members of the last round are reached."""
        self._contacts = dict(contacts)

    def follow(self, link: Link, leader: AgentId, contact: Endpoint) -> None:
        """Another host decides, at the other end of the link, and was reached at the contact."""
        assert self._leader is None, "a leader follows nobody"
        self._link, self._leader_agent = link, leader
        self._leader_contact = self._contacts.get(leader, contact)

    def lose_leader(self, link: Link) -> None:
        """The host at the other end of the link decides no more, or is gone."""
        if self._link is link:
            self._link = self._leader_contact = None

    def lead(self, leader: Leader) -> None:
        """This host decides from now on."""
        assert self._link is None, "a host that follows another does not decide"
        assert not self.is_over, "a host that has ended does not decide"
        self._leader, self._leader_agent = leader, self._agent

    def abdicate(self) -> Leader | None:
        """Decide no more, unless something has begun here; gives the leader that was."""
        return None if self._round is not None else self.depose()

    def depose(self) -> Leader | None:
        """Decide no more, whatever has begun; gives the leader that was."""
        leader, self._leader = self._leader, None
        return leader

    # ── joining ───────────────────────────────────────────────────────────────

    @property
    def has_agent(self) -> bool:
        """This host's agent is there: a round can begin here."""
        return self._has_agent

    @property
    def request(self) -> JoinRequest | None:
        """What this host says of itself now; None before its agent is there.

        While an agent that was lost is not back, it says that it is not clear of its last round:
        no other one can begin here.
        """
        request, round_ = self._request, self._round
        if request is None or round_ is None:
            return request if self._has_agent else None
        clear = self._clear and self._has_agent
        return replace(request, last_round=round_.number, restarts=round_.restarts, clear=clear)

    async def wait_request(self) -> JoinRequest:
        """The same, once there is something to say."""
        await self._has_joined.wait()
        assert self.request is not None
        return self.request

    def join(self, request: JoinRequest) -> None:
        """This host's agent is there, and nothing runs in it."""
        self._has_agent = self._clear = True
        self._request = request
        self._has_joined.set()

    # ── the round ─────────────────────────────────────────────────────────────

    @property
    def phase(self) -> Phase:
        """Where the app stands, as far as this host is concerned."""
        return self._phase

    @property
    def round(self) -> Round | None:
        """The last round that began, with this host or without."""
        return self._round

    @property
    def outcomes(self) -> Mapping[int, Outcome]:
        """How workers of this host ended in it."""
        return self._outcomes

    @property
    def is_member(self) -> bool:
        """This host is in the last round."""
        return self._round is not None and any(
            member.agent == self._agent for member in self._round.members
        )

    @property
    def own_round(self) -> int | None:
        """The round that this host is in, or is not clear of yet."""
        return self._own_round if self.is_member or not self._clear else None

    @property
    def is_running(self) -> bool:
        """The workers here were started."""
        return self._runs

    @property
    def is_clear(self) -> bool:
        """Nothing of a round is left here."""
        return self._clear

    def round_formed(
        self,
        leader: AgentId,
        contacts: dict[AgentId, Endpoint],
        event: ProgressEvent,
        waiting: Collection[AgentId] = (),
    ) -> None:
        """The leader has told of a round, and where members of it and those waiting are reached."""
        self._contacts = contacts
        members = [agent for agent in contacts if agent not in waiting]
        self._successors = successors(members, tuple(waiting))
        self._leader_contact = contacts.get(leader, self._leader_contact)
        self._progress.append(event)

    def begin(self, round_: Round) -> bool:
        """A round begins; whether this host is in it. After the end here none does."""
        if self.is_over:
            return False
        self._round = round_
        self._outcomes = {}
        if self.is_member:
            self._phase = Phase.RUNNING
            self._clear = False
            self._own_round = round_.number
        return self.is_member

    def count_restarts(self, restarts: int) -> None:
        """So many were spent by now, whoever decides next."""
        if self._round is not None:
            self._round = replace(self._round, restarts=max(self._round.restarts, restarts))

    def workers_started(self) -> None:
        """The workers here run."""
        self._runs = True

    def worker_ended(self, number: int, outcome: Outcome) -> None:
        """A worker of a round has ended here."""
        if self._round is not None and self._round.number == number:
            self._outcomes[outcome.rank] = outcome

    def stop(self) -> int | None:
        """The workers here are to be stopped; their round's number, or None if there are none."""
        if self._clear:
            return None
        self._phase = Phase.STOPPING
        return self._own_round

    def clear(self, port: int | None) -> None:
        """Nothing is left of the round here; the next one's store can be at the port."""
        self._clear = True
        self._runs = False
        if self._request is not None and port is not None:
            self._request = replace(self._request, port=port)

    def lose_agent(self) -> None:
        """This host's own agent is gone, and its workers with it."""
        self._clear = True
        self._runs = self._has_agent = False
        if self._round is None:
            self._has_joined.clear()

    def take_progress(self) -> list[ProgressEvent]:
        """What has come to pass since the last time."""
        events, self._progress = self._progress, []
        return events if self._leader is None else events + self._leader.take_progress()

    # ── the end ───────────────────────────────────────────────────────────────

    @property
    def is_cancelled(self) -> bool:
        """This host leaves, whatever the others do."""
        return self._cancelled

    @property
    def is_over(self) -> bool:
        """No other round will follow here."""
        return self._cancelled or self._phase is Phase.DONE

    def cancel(self) -> bool:
        """Leave, and decide no more; False if that was said before."""
        again, self._cancelled = self._cancelled, True
        if not again:
            self._leader = None
        return not again

    def finish(self) -> bool:
        """The app has ended here; False if it had already."""
        again, self._phase = self._phase is Phase.DONE, Phase.DONE
        return not again
