"""What the hosts of a rendezvous say to each other. Loaded where that is done, nowhere else."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Container, Mapping
from dataclasses import replace
from typing import Annotated

from phalanx._core.ids import AgentId
from phalanx._core.limits import (
    AgentNumber,
    AnyCount,
    Between,
    Message,
    Name,
    Port,
    RunId,
    WorkerCount,
)
from phalanx._core.ranks import DEFAULT_ROLE, lay_out, member_at
from phalanx._core.rounds import Endpoint, EqualHosts, Outcome, Round
from phalanx._wire import codec
from phalanx._wire.frames import Frame, frame


@frame
class JoinRequest(Frame):
    """A host's first word to the leader: who it is, and what it brings."""

    version: Name
    run_id: RunId
    agent: AgentNumber
    key: Name
    """Known to this agent and those that decided before: nobody else comes in its name."""
    hostname: Name
    workers: WorkerCount
    node_rank: AnyCount | None
    """Its position in the order of ranks, where the user gave one."""
    contact: Endpoint
    """Where it can be reached by others, should it come to decide."""
    port: Port
    """Bound there for the round's store."""
    torch: bool | None
    bounds: tuple[WorkerCount, ...]
    """The fewest and the most hosts, as it was told."""
    last_round: Annotated[int, Between(0, 1 << 40)] = 0
    """The round that it was last in."""
    restarts: AnyCount = 0
    """How many restarts that had taken."""
    role: Name = DEFAULT_ROLE
    """What its workers are."""
    clear: bool = True
    """Nothing of that round is left there."""

    def contradiction(self) -> str:
        """The fewest and the most hosts; an agent that has a number."""
        if self.agent < 0:
            return f"there is no agent {self.agent}"
        fits = len(self.bounds) == 2 and self.bounds[0] <= self.bounds[1]
        return "" if fits else f"bounds {self.bounds[:4]} are not the fewest and the most hosts"


@frame
class JoinAccepted(Frame):
    """You take part; `leader` decides."""

    leader: AgentNumber


@frame
class LeaderMoved(Frame):
    """Another decides: ask there."""

    contact: Endpoint


@frame
class LeaderElected(Frame):
    """Who decides, and where it is reached, for those that ask a store."""

    leader: AgentNumber
    contact: Endpoint


@frame
class JoinRefused(Frame):
    """You cannot take part, and why."""

    reason: Message


@frame
class AgentAsked(Frame):
    """Which agent is there? Another than the one that had this port may have it by now."""


@frame
class AgentTold(Frame):
    """This one is."""

    agent: AgentNumber


@frame
class GivenUp(Frame):
    """Nothing was heard of you: the others may have gone on without you by now."""


@frame
class HostPosition(Frame):
    """Your host's position in the round that the next frame tells of, where that does not say."""

    position: AnyCount
    """How many hosts are before it."""


@frame
class RoundFormed(Frame):
    """A round begins. Its members are in columns: there may be thousands, for thousands to read.

    Ranks are computed. In a large round most are told of those members alone that may come to
    decide, and by a `HostPosition` of their own place.
    """

    leader: AgentNumber
    hosts: tuple[EqualHosts, ...]
    """All of them."""
    positions: tuple[AnyCount, ...]
    """Those of the members that follow; none: they are all."""
    agents: tuple[AgentNumber, ...]
    hostnames: tuple[Name, ...]
    addresses: tuple[Name, ...]
    ports: tuple[Port, ...]
    """With the addresses: where its members can be reached."""
    store: Endpoint
    restarts: AnyCount
    torch: bool | None
    cause: Message = ""
    """The failure that it is a restart for, in one line."""
    waiting: tuple[AgentNumber, ...] = ()
    """Hosts that are not in it, and may come to decide when all its members have ended."""
    waiting_at: tuple[Endpoint, ...] = ()
    """Where each of these can be reached."""

    def contradiction(self) -> str:
        """All columns have a row for each member, and no host is in it twice."""
        if len(self.waiting) != len(self.waiting_at):
            return "it does not say where each of those that wait is"
        columns = (self.agents, self.hostnames, self.addresses, self.ports)
        if len({len(column) for column in columns}) != 1:
            return "its columns differ in length"
        count = sum(run.hosts for run in self.hosts)
        if self.positions:
            in_order = all(one < other for one, other in itertools.pairwise(self.positions))
            if not in_order or self.positions[-1] >= count:
                return "its positions are not those of its hosts"
        if len(self.agents) != (len(self.positions) or count):
            return "its columns and its hosts differ in length"
        known = self.agents + self.waiting
        return "" if len(set(known)) == len(known) else "a host is in it twice"

    @classmethod
    def make(
        cls,
        round_: Round,
        leader: AgentId,
        contacts: Mapping[AgentId, Endpoint],
        only: Container[AgentId] | None = None,
        cause: str = "",
        waiting: Collection[AgentId] = (),
    ) -> RoundFormed:
        """Tell of a round: of all its members, or of these; and of some that wait."""
        told = [(i, m) for i, m in enumerate(round_.members) if only is None or m.agent in only]
        return cls(
            round=round_.number,
            leader=leader,
            hosts=round_.hosts,
            positions=() if only is None else tuple(i for i, _ in told),
            agents=tuple(m.agent for _, m in told),
            hostnames=tuple(m.hostname for _, m in told),
            addresses=tuple(contacts[m.agent].address for _, m in told),
            ports=tuple(contacts[m.agent].port for _, m in told),
            store=round_.store,
            restarts=round_.restarts,
            torch=round_.torch,
            cause=cause,
            waiting=tuple(waiting),
            waiting_at=tuple(contacts[agent] for agent in waiting),
        )

    @property
    def is_whole(self) -> bool:
        """It tells of all members."""
        return not self.positions

    @property
    def membership(self) -> Round:
        """The round, with those members that it tells of."""
        if self.is_whole:
            kinds = [(run.workers, run.role) for run in self.hosts for _ in range(run.hosts)]
            rows = zip(self.agents, self.hostnames, kinds, strict=True)
            members = lay_out((agent, name, *kind) for agent, name, kind in rows)
        else:
            told = zip(self.positions, self.agents, self.hostnames, strict=True)
            members = tuple(member_at(self.hosts, *one) for one in told)
        round_ = Round(self.round, members, self.store, self.restarts, self.torch)
        return round_ if self.is_whole else replace(round_, excerpt_of=self.hosts)

    @property
    def contacts(self) -> dict[AgentId, Endpoint]:
        """Where its members can be reached, by agent; after them those that wait."""
        endpoints = *map(Endpoint, self.addresses, self.ports), *self.waiting_at
        return dict(zip(self.agents + self.waiting, endpoints, strict=False))


@frame
class RestartsSpent(Frame):
    """Whoever decides leaves, because of a failure that has cost a restart: so many by now."""

    restarts: AnyCount


@frame
class FailureTold(Frame):
    """A failure, as the leader has it."""

    agent: AgentNumber
    hostname: Name
    outcome: Outcome
    consequence: bool
    kind: Name
    """What it is in the verdict: the cause, another, or what a restart was spent on."""


@frame
class AppEnded(Frame):
    """The app has ended; the failures came before."""

    reason: Name
    missing: tuple[Name, ...]
    note: Message
    hosts: tuple[EqualHosts, ...]
    """Those of the last round."""


@frame
class RendezvousClosed(Frame):
    """Have no other round, for anybody."""


codec.register(
    JoinRequest,
    JoinAccepted,
    LeaderMoved,
    LeaderElected,
    JoinRefused,
    AgentAsked,
    AgentTold,
    GivenUp,
    HostPosition,
    RoundFormed,
    RestartsSpent,
    FailureTold,
    AppEnded,
    RendezvousClosed,
)
