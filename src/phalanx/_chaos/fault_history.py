"""What came of faults: how long the app took to run again, and how much of its time it ran. Pure.

An app runs while all workers of its round do. A fault that ends workers is overcome when a later
round runs; any other when it is mended and the app runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx._chaos.faults import Kind
from phalanx._specs import AppState, RankState


@dataclass(frozen=True, slots=True)
class Observation:
    """How the app stands at a moment, in seconds from the beginning."""

    at: float
    state: AppState
    round: int
    restarts: int
    running: bool
    """All workers of the round run, or have returned."""


@dataclass
class FaultRecord:
    """A fault that was tried, and what came of it."""

    at: float
    kind: Kind
    where: str = ""
    effect: str = ""
    """What was done, where there is more to say than the kind."""
    problem: str = ""
    """Why nothing was done."""
    seconds: float = 0.0
    """How long it lasted."""
    round: int = 0
    """The app's round then."""
    recovery: float | None = None
    """Seconds until the app ran again; None: it did not."""

    @property
    def is_open(self) -> bool:
        """It was done, and the app has not recovered."""
        return not self.problem and self.recovery is None


@dataclass
class FaultHistory:
    """Takes down faults and how the app stands; tells what came of them."""

    faults: list[FaultRecord] = field(default_factory=list)
    useful: float = 0.0
    """Seconds in which the app ran."""
    first: Observation | None = None
    last: Observation | None = None

    def add(self, fault: FaultRecord) -> None:
        """A fault was tried."""
        self.faults.append(fault)

    @property
    def has_recovered(self) -> bool:
        """The app has recovered from everything."""
        return not any(fault.is_open for fault in self.faults)

    def observe(self, now: Observation) -> list[FaultRecord]:
        """The app stands like this; gives the faults that it has just recovered from."""
        before = self.last
        if before is not None and before.running and not self._is_held_up(before):
            self.useful += now.at - before.at
        self.first, self.last = self.first or now, now
        over = [f for f in self.faults if f.is_open and _is_over(f, now)]
        for fault in over:
            fault.recovery = now.at - fault.at
        return over

    def _is_held_up(self, seen: Observation) -> bool:
        """A fault keeps workers of this round from getting on, whatever the app knows of it."""
        return any(
            f.is_open and f.kind.stops_workers and f.at <= seen.at and f.round >= seen.round
            for f in self.faults
        )

    # ── in the end ────────────────────────────────────────────────────────────

    @property
    def seconds(self) -> float:
        """How long it was watched."""
        if self.first is None or self.last is None:
            return 0.0
        return self.last.at - self.first.at

    @property
    def goodput(self) -> float:
        """The share of time in which all workers ran."""
        return min(1.0, self.useful / self.seconds) if self.seconds else 0.0

    def report(self) -> dict[str, Any]:
        """All of it, as data."""
        done = [f for f in self.faults if not f.problem]
        times = sorted(f.recovery for f in done if f.recovery is not None)
        first, last = self.first, self.last
        return {
            "state": None if last is None else last.state.value,
            "seconds": round(self.seconds, 3),
            "goodput": round(self.goodput, 4),
            "rounds": 0 if first is None or last is None else last.round - first.round,
            "restarts": 0 if first is None or last is None else last.restarts - first.restarts,
            "recovered": len(times),
            "median_recovery_seconds": round(times[len(times) // 2], 3) if times else None,
            "longest_recovery_seconds": round(times[-1], 3) if times else None,
            "faults": [_as_json(fault) for fault in self.faults],
        }


def _is_over(fault: FaultRecord, now: Observation) -> bool:
    if now.state is AppState.SUCCEEDED:
        return True
    if not now.running or now.at < fault.at + fault.seconds:
        return False
    return fault.kind.lasts or now.round > fault.round


def _as_json(fault: FaultRecord) -> dict[str, Any]:
    recovery = None if fault.recovery is None else round(fault.recovery, 3)
    return {
        "at": round(fault.at, 3),
        "kind": fault.kind.value,
        "where": fault.where,
        "effect": fault.effect,
        "problem": fault.problem,
        "seconds": fault.seconds,
        "recovery_seconds": recovery,
    }


def observation(status: Mapping[str, Any], at: float) -> Observation:
    """What an app's recorded status says."""
    states = [worker["state"] for worker in status["workers"]]
    well = (RankState.RUNNING, RankState.RETURNED)
    state = AppState(status["state"])
    running = state is AppState.RUNNING and bool(states) and all(s in well for s in states)
    return Observation(at, state, status["round"], status["num_restarts"], running)
