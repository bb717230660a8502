"""What the hosts of a rendezvous say to each other. Loaded where that is done, nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
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
from phalanx._core.ranks import DEFAULT_ROLE, lay_out
from phalanx._core.rounds import Endpoint, Member, Outcome, Round
from phalanx._wire import codec
from phalanx._wire.frames import Frame, frame


@frame
class JoinRequest(Frame):
    """A host's first word to the one that decides: who it is, and what it brings."""

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
class JoinRefused(Frame):
    """You cannot take part, and why."""

    reason: Message


@frame
class RoundFormed(Frame):
    """A round begins. Its members are in columns: there may be thousands, for thousands to read."""

    leader: AgentNumber
    agents: tuple[AgentNumber, ...]
    hostnames: tuple[Name, ...]
    workers: tuple[WorkerCount, ...]
    roles: tuple[Name, ...]
    addresses: tuple[Name, ...]
    ports: tuple[Port, ...]
    """With the addresses: where its members can be reached."""
    store: Endpoint
    restarts: AnyCount
    torch: bool | None

    def contradiction(self) -> str:
        """All columns have a row for each member, and no member is in it twice."""
        own = (self.agents, self.hostnames, self.workers, self.roles)
        if len({len(column) for column in (*own, self.addresses, self.ports)}) != 1:
            return "its columns differ in length"
        return "" if len(set(self.agents)) == len(self.agents) else "a member is in it twice"

    @classmethod
    def make(
        cls, round_: Round, leader: AgentId, contacts: Mapping[AgentId, Endpoint]
    ) -> RoundFormed:
        """Tell of a round."""
        members = round_.members
        return cls(
            round=round_.number,
            leader=leader,
            agents=tuple(m.agent for m in members),
            hostnames=tuple(m.hostname for m in members),
            workers=tuple(m.workers for m in members),
            roles=tuple(m.role for m in members),
            addresses=tuple(contacts[m.agent].address for m in members),
            ports=tuple(contacts[m.agent].port for m in members),
            store=round_.store,
            restarts=round_.restarts,
            torch=round_.torch,
        )

    @property
    def membership(self) -> Round:
        """The round."""
        rows = zip(self.agents, self.hostnames, self.workers, self.roles, strict=True)
        return Round(self.round, lay_out(rows), self.store, self.restarts, self.torch)

    @property
    def contacts(self) -> dict[AgentId, Endpoint]:
        """Where its members can be reached, by agent."""
        endpoints = map(Endpoint, self.addresses, self.ports)
        return dict(zip(self.agents, endpoints, strict=False))


@frame
class FailureTold(Frame):
    """A failure, as the one that decides has it."""

    agent: AgentNumber
    hostname: Name
    outcome: Outcome
    consequence: bool
    role: Name
    """What it is in the verdict: the cause, another, or that of an earlier attempt."""


@frame
class AppEnded(Frame):
    """The app has ended; the failures came before."""

    reason: Name
    missing: tuple[Name, ...]
    note: Message
    members: tuple[Member, ...]


codec.register(
    JoinRequest, JoinAccepted, LeaderMoved, JoinRefused, RoundFormed, FailureTold, AppEnded
)
