"""What goes into the coordinator and what comes out: events, actions, the verdict. Data alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from phalanx._core.clock import Interval
from phalanx._core.host_bounds import host_bounds
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, EqualHosts, Member, Outcome, Round
from phalanx._rendezvous.causes import Failure
from phalanx._rendezvous.exclusion import Exclusion
from phalanx._rendezvous.membership import Host


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """What the coordinator goes by."""

    hosts: tuple[Host, ...]
    """Those that are expected; others may come as well if it is `open`."""
    start_timeout: float
    """Seconds for enough hosts to come, and for a round's workers to be running."""
    stop_grace: float
    failure_window: float = 0.0
    """After a first failure, wait so long for other hosts' own failures before stopping them."""
    start_window: float = 0.0
    """While hosts gather and one cannot be used, wait so long for word from the others."""
    min_hosts: int = 0
    """The fewest that a round may have; 0: all that are expected."""
    max_hosts: int = 0
    """The most; those beyond it wait as spares. 0: all that are expected."""
    open: bool = False
    """Hosts may come that nobody has heard of."""
    last_call: float = 0.0
    """Once there are enough for the first round, wait so long for more."""
    max_restarts: int = 0
    backoff: float = 0.5
    """Seconds before the second restart, twice that before the third, and so on."""
    same_failures: int = 0
    """The same early failure so many times in a row ends it; 0: never."""
    host_failures: int = 0
    """A host because of which so many rounds have failed is excluded; 0: never."""
    quorum: bool = False
    """Somebody else may decide for those that we cannot hear: a new round needs a majority."""
    elected: bool = False
    """A third party has said who decides: half of the last round is enough."""

    @property
    def least(self) -> int:
        """The fewest hosts that a round may have."""
        return host_bounds(len(self.hosts), self.min_hosts, self.max_hosts)[0]

    @property
    def most(self) -> int:
        """The most hosts that a round has."""
        return host_bounds(len(self.hosts), self.min_hosts, self.max_hosts)[1]


@dataclass(frozen=True, slots=True)
class Handover:
    """What a coordinator that takes over from another has to know."""

    round: Round
    closed: frozenset[AgentId] = frozenset()
    """The members of which it is certain that they have ended."""
    silent: frozenset[AgentId] = frozenset()
    """Those of which nothing is heard."""


# ── events ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class JoinedEvent:
    """An agent said hello; `endpoint` is where its host can carry the store."""

    agent: AgentId
    endpoint: Endpoint
    host: Host | None = None
    """What it is, if it was not expected."""
    torch: bool | None = None
    """Whether its workers want a store, as far as is known there."""


@dataclass(frozen=True, slots=True)
class WorkersStartedEvent:
    """An agent's workers of the round were started."""

    agent: AgentId
    round: int


@dataclass(frozen=True, slots=True)
class WorkerEndedEvent:
    """A worker ended, at a moment by the coordinator's clock."""

    agent: AgentId
    round: int
    outcome: Outcome
    when: Interval


@dataclass(frozen=True, slots=True)
class RoundClearedEvent:
    """An agent has nothing of the round left; the next one's store can be at `endpoint`."""

    agent: AgentId
    round: int
    endpoint: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class AgentGoneEvent:
    """An agent is gone, has failed or fell silent."""

    agent: AgentId
    reason: str
    when: Interval
    closed: bool = True
    """It has certainly ended, or left; otherwise it is only that nothing is heard of it."""
    left: bool = False
    """It was told to end, and will not come back by itself."""


@dataclass(frozen=True, slots=True)
class PreemptedEvent:
    """An agent's host will be taken away: once a worker there has ended, it is not waited for."""

    agent: AgentId


@dataclass(frozen=True, slots=True)
class DelayedEvent:
    """A round waits for something of ours: its workers must be running so much later."""

    round: int


@dataclass(frozen=True, slots=True)
class CancelEvent:
    """Someone wants the end, with this grace (the settings' if none)."""

    grace: float | None = None


@dataclass(frozen=True, slots=True)
class TickEvent:
    """Time has passed."""


CoordinatorEvent = (
    JoinedEvent
    | WorkersStartedEvent
    | WorkerEndedEvent
    | RoundClearedEvent
    | AgentGoneEvent
    | PreemptedEvent
    | DelayedEvent
    | CancelEvent
    | TickEvent
)


# ── actions ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class BeginRoundAction:
    """Send the round to all its members, or to these."""

    round: Round
    agents: tuple[AgentId, ...] | None = None


@dataclass(frozen=True, slots=True)
class HaltRoundAction:
    """Tell all agents, or these, to stop the round's workers."""

    round: int
    grace: float
    agents: tuple[AgentId, ...] | None = None
    stacks: bool = False
    """One has given up waiting for another: find out first where everybody is."""


@dataclass(frozen=True, slots=True)
class ExpelAction:
    """Give an agent up: it did not do what it was told in time."""

    agent: AgentId
    reason: str


@dataclass(frozen=True, slots=True)
class ExcludeAction:
    """Do without a host for good, and find another if there is one."""

    exclusion: Exclusion


@dataclass(frozen=True, slots=True)
class FinishAction:
    """The app has ended; nothing more will be asked."""

    verdict: Verdict


CoordinatorAction = BeginRoundAction | HaltRoundAction | ExpelAction | ExcludeAction | FinishAction


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """Something worth an event, at a moment by the coordinator's clock."""

    name: str
    at: float
    facts: dict[str, Any] = field(default_factory=dict)


# ── the end ───────────────────────────────────────────────────────────────────


class Reason(Enum):
    """Why an app ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    START_TIMEOUT = "start timeout"
    NO_QUORUM = "no majority"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the app ended: the cause and the other failures, or who was missing."""

    reason: Reason
    cause: Failure | None = None
    others: tuple[Failure, ...] = ()
    missing: tuple[str, ...] = ()
    """The names of hosts that were awaited in vain."""
    unconfirmed: tuple[AgentId, ...] = ()
    """Agents that did not confirm in time that nothing is left."""
    members: tuple[Member, ...] = ()
    """Those of the last round, as far as they are known here."""
    hosts: tuple[EqualHosts, ...] = ()
    """All of that round, where somebody else has decided."""
    restart_causes: tuple[Failure, ...] = ()
    """What the rounds before failed of."""
    note: str = ""
    """Why it was not tried again, where that is not plain."""
    excluded: tuple[Exclusion, ...] = ()
    """The hosts that were done without."""


class Phase(Enum):
    """Where the app stands."""

    GATHERING = "gathering"
    RUNNING = "running"
    COLLECTING = "collecting"
    STOPPING = "stopping"
    DONE = "done"
