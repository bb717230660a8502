"""What is started anew after a failure: all hosts' workers together, or one host's. Pure.

The coordinator asks its restart policy while a round runs, and does what it answers. A new policy
is a class here, a name in `RESTART_POLICIES`, and a value of the launch option `restart`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from phalanx._core.ids import AgentId
from phalanx._core.rounds import Member
from phalanx._rendezvous.causes import Failure, first_cause
from phalanx._rendezvous.membership import Host
from phalanx._rendezvous.protocol import CoordinatorSettings, HaltRoundAction
from phalanx._rendezvous.restart_budget import Budget
from phalanx._rendezvous.roster import Roster
from phalanx._rendezvous.round_state import RoundState


@dataclass(frozen=True, slots=True)
class HaltAll:
    """Stop the workers of all hosts."""

    final: bool = False
    """No other round may follow."""


@dataclass(frozen=True, slots=True)
class HaltHost:
    """Stop the workers of the host that has failed; the others run on."""


@dataclass(frozen=True, slots=True)
class Ignore:
    """The host is being stopped already."""


OnFailure = HaltAll | HaltHost | Ignore


class RestartPolicy(Protocol):
    """Decides whose workers are started anew, how often, and after which wait."""

    @property
    def takes_newcomers(self) -> bool:
        """A round may be stopped for a larger one, with hosts that wait."""

    @property
    def restarts(self) -> int:
        """How often all hosts were restarted together."""

    @property
    def restart_causes(self) -> Sequence[Failure]:
        """What was restarted after."""

    @property
    def note(self) -> str:
        """Why it was not tried again though restarts are left."""

    @property
    def deadline(self) -> float | None:
        """When a single host is to be started anew, or must have been."""

    def catch_up(self, restarts: int) -> None:
        """At least so many restarts were spent before."""

    def worker_failed(
        self, agent: AgentId, state: RoundState, roster: Roster, now: float
    ) -> OnFailure:
        """A worker of this host has failed in a round that ran until now."""

    def host_lost(self, member: Member, state: RoundState, roster: Roster) -> Host | None:
        """A member is lost: the host that takes its place at once; None: it has failed."""

    def workers_started(self, agent: AgentId, now: float) -> None:
        """All workers of a host run."""

    def host_cleared(self, agent: AgentId, now: float) -> bool:
        """Nothing is left of a host's workers; whether that was waited for, to start it anew."""

    def take_due(self, now: float) -> list[Failure]:
        """What has failed on the hosts that are to be started anew now; one for each of them."""

    def host_begins(self, agent: AgentId, limit: float) -> int:
        """A host is started anew, and must run by then; gives its count of restarts."""

    def late(self, now: float) -> list[AgentId]:
        """The hosts that were started anew, and do not run in time."""

    def round_failed(self, cause: Failure, lived: float) -> float | None:
        """All hosts were stopped: the wait before the next round; None if there is none."""

    def halts(
        self, number: int, grace: float, round_of: Mapping[AgentId, int]
    ) -> list[HaltRoundAction]:
        """Stop all hosts; `number` is the last round that began."""


class RestartAll:
    """Restarts all hosts together: what one needs of the others is lost when it fails."""

    takes_newcomers = True
    deadline: float | None = None

    def __init__(self, settings: CoordinatorSettings) -> None:
        """No restart is spent."""
        self.restart_causes: list[Failure] = []
        self._budget = _budget(settings)

    @property
    def restarts(self) -> int:
        """How often all hosts were restarted together."""
        return self._budget.count

    @property
    def note(self) -> str:
        """Why it was not tried again though restarts are left."""
        return self._budget.note

    def catch_up(self, restarts: int) -> None:
        """At least so many restarts were spent before."""
        self._budget.catch_up(restarts)

    def worker_failed(
        self, agent: AgentId, state: RoundState, roster: Roster, now: float
    ) -> OnFailure:
        """It concerns everybody."""
        return HaltAll()

    def host_lost(self, member: Member, state: RoundState, roster: Roster) -> Host | None:
        """Nobody takes its place within the round."""
        return None

    def workers_started(self, agent: AgentId, now: float) -> None:
        """The round's own deadline is enough."""

    def host_cleared(self, agent: AgentId, now: float) -> bool:
        """No host is waited for alone."""
        return False

    def take_due(self, now: float) -> list[Failure]:
        """No host starts alone."""
        return []

    def host_begins(self, agent: AgentId, limit: float) -> int:
        """No host starts alone, and all have the same count."""
        return self.restarts

    def late(self, now: float) -> list[AgentId]:
        """No host starts alone."""
        return []

    def round_failed(self, cause: Failure, lived: float) -> float | None:
        """Spend a restart."""
        wait = self._budget.spend(cause, lived)
        if wait is not None:
            self.restart_causes.append(cause)
        return wait

    def halts(
        self, number: int, grace: float, round_of: Mapping[AgentId, int]
    ) -> list[HaltRoundAction]:
        """All hosts are in the same round."""
        return [HaltRoundAction(number, grace)]


class RestartHost:
    """Restarts the host where a worker failed; every host has its own restarts.

    For hosts that do not communicate. A lost host's place is taken by a spare with as many
    workers; without one the app has failed.
    """

    takes_newcomers = False
    restarts = 0

    def __init__(self, settings: CoordinatorSettings) -> None:
        """No restart is spent."""
        self.restart_causes: list[Failure] = []
        self.note = ""
        self._settings = settings
        self._budgets: dict[AgentId, Budget] = {}
        self._halted: dict[AgentId, float] = {}
        """The hosts whose workers are being stopped, and the wait before they start anew."""
        self._due_at: dict[AgentId, float] = {}
        self._start_by: dict[AgentId, float] = {}
        """The hosts whose workers are being started anew, and until when they must run."""
        self._began_at: dict[AgentId, float] = {}

    @property
    def deadline(self) -> float | None:
        """When a host is to be started anew, or must have been."""
        return min((*self._due_at.values(), *self._start_by.values()), default=None)

    def catch_up(self, restarts: int) -> None:
        """Those were of all hosts together: nobody's here."""

    def worker_failed(
        self, agent: AgentId, state: RoundState, roster: Roster, now: float
    ) -> OnFailure:
        """Stop the host alone, as long as it has restarts; its last failure is the app's."""
        if agent in self._halted:
            return Ignore()
        budget = self._budgets.setdefault(agent, _budget(self._settings))
        cause = first_cause(state.failures_of(agent))
        wait = None
        if agent in roster.joined:
            wait = budget.spend(cause, now - self._began_at.get(agent, state.began))
        if wait is None:
            self.note = budget.note
            return HaltAll(final=True)
        self.restart_causes.append(cause)
        self._halted[agent] = wait
        return HaltHost()

    def host_lost(self, member: Member, state: RoundState, roster: Roster) -> Host | None:
        """A spare takes its place."""
        for times in (self._halted, self._due_at, self._start_by):
            times.pop(member.agent, None)
        return roster.spare(state.members, member.workers)

    def workers_started(self, agent: AgentId, now: float) -> None:
        """It counts as running from now on."""
        self._began_at[agent] = now
        self._start_by.pop(agent, None)

    def host_cleared(self, agent: AgentId, now: float) -> bool:
        """It can be started anew, after its wait."""
        if agent not in self._halted:
            return False
        self._due_at[agent] = now + self._halted[agent]
        return True

    def take_due(self, now: float) -> list[Failure]:
        """The hosts whose wait is over."""
        due = [agent for agent, at in self._due_at.items() if at <= now]
        for agent in due:
            del self._due_at[agent], self._halted[agent]
        return [next(f for f in reversed(self.restart_causes) if f.agent == agent) for agent in due]

    def host_begins(self, agent: AgentId, limit: float) -> int:
        """It has its own time to start, and its own restarts."""
        self._start_by[agent] = limit
        return self._budgets[agent].count if agent in self._budgets else 0

    def late(self, now: float) -> list[AgentId]:
        """The hosts that were started anew, and do not run in time."""
        return [agent for agent, limit in self._start_by.items() if limit <= now]

    def round_failed(self, cause: Failure, lived: float) -> float | None:
        """All hosts are stopped for the end alone."""
        return None

    def halts(
        self, number: int, grace: float, round_of: Mapping[AgentId, int]
    ) -> list[HaltRoundAction]:
        """Every host is stopped in the round that it is in."""
        numbers = sorted(set(round_of.values())) or [number]
        return [
            HaltRoundAction(n, grace, tuple(a for a, own in round_of.items() if own == n))
            for n in numbers
        ]


RESTART_POLICIES: Mapping[str, Callable[[CoordinatorSettings], RestartPolicy]] = {
    "all": RestartAll,
    "host": RestartHost,
}
"""By the values of the launch option `restart`."""


def _budget(settings: CoordinatorSettings) -> Budget:
    return Budget(settings.max_restarts, settings.backoff, settings.same_failures)
