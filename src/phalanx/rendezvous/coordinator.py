"""The one that decides: members, rounds, first cause, when to stop and when to give up.

`Coordinator.handle(event, now) -> [action]` is pure: no clock, socket or process inside. Whoever
hosts it turns frames into events, carries the actions out, and calls again with `Tick` no later
than `deadline`. Events of another round are dropped. After `Finish` every event yields nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from phalanx.clock import Interval
from phalanx.rendezvous.causes import Failure, first_cause
from phalanx.rounds import Ended, Endpoint, Member, Outcome, Round

_SEEN_LATE = 0.1
_ENDS_OF_THE_STOPPED = (0, 128 + signal.SIGTERM)

CONFIRM_TIMEOUT = 10.0
"""How long past the grace an agent may take to confirm that nothing of its round is left."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the coordinator goes by."""

    members: tuple[Member, ...]
    start_timeout: float
    stop_grace: float
    settle: float = 0.0
    """After a first failure, wait so long for other hosts' own failures before stopping them."""
    start_settle: float = 0.0
    """While hosts gather and one cannot be used, wait so long for word from the others."""


# ── events ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Joined:
    """An agent said hello; `endpoint` is where its host can carry the store."""

    agent: int
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Running:
    """An agent's workers of the round were started."""

    agent: int
    round: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker ended, at a moment by the launcher's clock."""

    agent: int
    round: int
    outcome: Outcome
    when: Interval


@dataclass(frozen=True, slots=True)
class Cleared:
    """An agent has nothing of the round left."""

    agent: int
    round: int


@dataclass(frozen=True, slots=True)
class Gone:
    """An agent went away, failed or fell silent."""

    agent: int
    reason: str
    when: Interval


@dataclass(frozen=True, slots=True)
class Cancel:
    """Someone wants the end, with this grace (the policy's if none)."""

    grace: float | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Joined | Running | WorkerEnded | Cleared | Gone | Cancel | Tick


# ── actions ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class BeginRound:
    """Send the round to all its members."""

    round: Round


@dataclass(frozen=True, slots=True)
class HaltRound:
    """Tell all agents to stop the round's workers."""

    round: int
    grace: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The app has ended; nothing more will be asked."""

    verdict: Verdict


class Reason(Enum):
    """Why an app ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    START_TIMEOUT = "start timeout"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the app ended: the cause and the other failures, or who was missing."""

    reason: Reason
    cause: Failure | None = None
    others: tuple[Failure, ...] = ()
    missing: tuple[int, ...] = ()
    unconfirmed: tuple[int, ...] = ()
    """Agents that did not confirm in time that nothing is left."""


Action = BeginRound | HaltRound | Finish


class Phase(Enum):
    """Where the app stands."""

    GATHERING = "gathering"
    RUNNING = "running"
    SETTLING = "settling"
    STOPPING = "stopping"
    DONE = "done"


class Coordinator:
    """Decides for one app."""

    def __init__(self, policy: Policy, now: float) -> None:
        """Begin to wait for the members' agents."""
        self.policy = policy
        self.phase = Phase.GATHERING
        self.deadline: float | None = now + policy.start_timeout
        self.round: Round | None = None
        self._joined: dict[int, Endpoint] = {}
        self._running: set[int] = set()
        self._cleared: set[int] = set()
        self._gone: set[int] = set()
        self._outcomes: dict[int, Outcome] = {}
        self._failures: list[Failure] = []
        self._halted_at: float | None = None
        self._reason = Reason.FAILED
        self._missing: tuple[int, ...] = ()

    @property
    def running(self) -> frozenset[int]:
        """The agents whose workers have been started."""
        return frozenset(self._running)

    @property
    def outcomes(self) -> Mapping[int, Outcome]:
        """How the workers that have ended did, by global rank."""
        return self._outcomes

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event; give what is to be done now, in order."""
        if self.phase is Phase.DONE or self._is_stale(event):
            return []
        match event:
            case Joined(agent, endpoint):
                return self._join(agent, endpoint, now)
            case Running(agent):
                self._running.add(agent)
                if len(self._running) == len(self.policy.members) and self.phase is Phase.RUNNING:
                    self.deadline = None
                return []
            case WorkerEnded(agent, _, outcome, when):
                return self._end(agent, outcome, when, now)
            case Cleared(agent):
                return self._clear(agent, now)
            case Gone(agent, reason, when):
                return self._lose(agent, reason, when, now)
            case Cancel(grace):
                return self._cancel(grace, now)
            case Tick():
                return self._tick(now)

    def _is_stale(self, event: Event) -> bool:
        if isinstance(event, Running | WorkerEnded | Cleared):
            return self.round is None or event.round != self.round.number
        return False

    def _join(self, agent: int, endpoint: Endpoint, now: float) -> list[Action]:
        self._joined[agent] = endpoint
        if self.phase is not Phase.GATHERING or not self._all_heard_of():
            return []
        if self._failures:
            return self._fail(now) + self._conclude()
        store = self._joined[self.policy.members[0].agent]
        self.round = Round(1, self.policy.members, store)
        self.phase = Phase.RUNNING
        return [BeginRound(self.round)]

    def _end(self, agent: int, outcome: Outcome, when: Interval, now: float) -> list[Action]:
        member = self.policy.members[agent]
        if outcome.rank in self._outcomes or outcome.rank not in member.ranks:
            return []
        self._outcomes[outcome.rank] = outcome
        if outcome.succeeded:
            return self._conclude()
        self._add_failure(agent, outcome, when)
        return self._fail(now) + self._conclude()

    def _clear(self, agent: int, now: float) -> list[Action]:
        self._cleared.add(agent)
        if self.phase is Phase.STOPPING:
            return self._conclude()
        # Nothing of it runs any more: what it has not told us by now will never come.
        reason = "its host has nothing left of it, and did not say how it ended"
        lost = self._lose_ranks(agent, reason, Interval(now, now))
        return (self._fail(now) if lost else []) + self._conclude()

    def _lose(self, agent: int, reason: str, when: Interval, now: float) -> list[Action]:
        if agent in self._gone:
            return []
        self._gone.add(agent)
        lost = self._lose_ranks(agent, reason, when)
        return (self._fail(now) if lost else []) + self._conclude()

    def _lose_ranks(self, agent: int, reason: str, when: Interval) -> bool:
        """Take the ranks of which nothing was heard for lost; whether there were any."""
        ranks = self.policy.members[agent].ranks
        unfinished = [rank for rank in ranks if rank not in self._outcomes]
        for rank in unfinished:
            outcome = Outcome(rank, Ended.LOST, when.latest, detail=reason)
            self._outcomes[rank] = outcome
            self._add_failure(agent, outcome, when)
        return bool(unfinished)

    def _add_failure(self, agent: int, outcome: Outcome, when: Interval) -> None:
        hostname = self.policy.members[agent].hostname
        consequence = self._is_consequence(outcome, when)
        self._failures.append(Failure(agent, hostname, outcome, when, consequence))

    def _is_consequence(self, outcome: Outcome, when: Interval) -> bool:
        """It ended because everybody was told to stop."""
        if outcome.kind is Ended.KILLED:
            return outcome.stopped
        halted = self._halted_at
        if halted is None:
            return False
        if outcome.kind is Ended.EXITED and outcome.code not in _ENDS_OF_THE_STOPPED:
            # A process is seen to be gone a moment after its peers have noticed.
            halted += _SEEN_LATE
        return when.earliest > halted

    def _fail(self, now: float) -> list[Action]:
        match self.phase:
            case Phase.RUNNING if self.policy.settle > 0:
                self.phase = Phase.SETTLING
                self.deadline = now + self.policy.settle
                return []
            case Phase.GATHERING if not self._all_heard_of():
                self.deadline = min(self.deadline or now, now + self.policy.start_settle)
                return []
            case Phase.GATHERING | Phase.RUNNING:
                return self._halt(self.policy.stop_grace, now)
            case _:
                return []

    def _all_heard_of(self) -> bool:
        return len(self._joined.keys() | self._gone) == len(self.policy.members)

    def _cancel(self, grace: float | None, now: float) -> list[Action]:
        grace = self.policy.stop_grace if grace is None else grace
        if self.phase is Phase.STOPPING:
            # Asked again: the one who asks may shorten the grace.
            self.deadline = min(self.deadline or now, now + grace + CONFIRM_TIMEOUT)
            return [HaltRound(self.round.number if self.round else 0, grace)]
        if not self._failures and not self._all_returned():
            self._reason = Reason.CANCELLED
        return self._halt(grace, now) + self._conclude()

    def _tick(self, now: float) -> list[Action]:
        if self.deadline is None or now < self.deadline:
            return []
        match self.phase:
            case Phase.GATHERING if self._failures:
                return self._halt(self.policy.stop_grace, now) + self._conclude()
            case Phase.GATHERING | Phase.RUNNING:
                there = self._joined if self.round is None else self._running
                self._reason = Reason.START_TIMEOUT
                self._missing = tuple(m.agent for m in self.policy.members if m.agent not in there)
                return self._halt(0.0, now) + self._conclude()
            case Phase.SETTLING:
                return self._halt(self.policy.stop_grace, now) + self._conclude()
            case _:
                return self._finish()

    def _halt(self, grace: float, now: float) -> list[Action]:
        self.phase = Phase.STOPPING
        self._halted_at = now
        self.deadline = now + grace + CONFIRM_TIMEOUT
        return [HaltRound(self.round.number if self.round else 0, grace)]

    def _all_returned(self) -> bool:
        total = sum(member.workers for member in self.policy.members)
        return len(self._outcomes) == total and not self._failures

    def _unconfirmed(self) -> tuple[int, ...]:
        # Before the round began there is nothing that an agent would have to clear.
        if self.round is None:
            return ()
        done = self._cleared | self._gone
        return tuple(m.agent for m in self.policy.members if m.agent not in done)

    def _conclude(self) -> list[Action]:
        if self.phase is Phase.STOPPING or self._all_returned():
            return [] if self._unconfirmed() else self._finish()
        return []

    def _finish(self) -> list[Action]:
        self.phase = Phase.DONE
        self.deadline = None
        unconfirmed = self._unconfirmed()
        if self._all_returned():
            return [Finish(Verdict(Reason.SUCCEEDED, unconfirmed=unconfirmed))]
        if self._reason is Reason.FAILED:
            cause = first_cause(self._failures)
            others = tuple(f for f in self._failures if f is not cause)
            return [Finish(Verdict(Reason.FAILED, cause, others, unconfirmed=unconfirmed))]
        others = tuple(self._failures)
        return [Finish(Verdict(self._reason, None, others, self._missing, unconfirmed))]
