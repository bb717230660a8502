"""Which of several failures came first. Pure."""

from __future__ import annotations

import heapq
import math
import re
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Ended, Outcome

ECHO_DELAY = 1.0
"""A communication error is taken for an echo of another failure that is seen up to this much later.

A worker's death closes its connections before the kernel tells its parent, so the peers' errors can
carry an earlier time than the death that caused them.
"""

_TIMED_OUT = re.compile(r"timed?[ -]?out|failed to pass monitoredBarrier", re.IGNORECASE)
_TIMEOUTS = ("TimeoutError", "TimeoutExpired", "Timeout")
_WATCHDOG = re.compile(r"collective operation timeout|watchdog", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker that ended badly, on a host, at a time by the launcher's clock."""

    agent: AgentId
    hostname: str
    outcome: Outcome
    when: Interval
    consequence: bool = False
    """It happened after everybody was told to stop."""

    def describe(self) -> str:
        """Say it in one line."""
        return f"rank {self.outcome.rank} on {self.hostname} {self.outcome.describe()}"


def gave_up_waiting(outcome: Outcome) -> bool:
    """A worker ended because another did not come: a collective, a store or its like timed out.

    NCCL's watchdog aborts the process, and says why on its stderr.
    """
    exception = outcome.exception
    if outcome.kind is Ended.HUNG:
        return exception is not None and exception.communication
    if exception is None:
        return outcome.signal == signal.SIGABRT and bool(_WATCHDOG.search(outcome.stderr))
    if exception.communication or exception.type_name.rpartition(".")[2] in _TIMEOUTS:
        return bool(_TIMED_OUT.search(f"{exception.type_name} {exception.message}"))
    return False


def misses_others(outcome: Outcome) -> bool:
    """A worker ended because of what another did, or did not do."""
    exception = outcome.exception
    return gave_up_waiting(outcome) or (exception is not None and exception.communication)


def first_cause(failures: Iterable[Failure]) -> Failure:
    """The failure that the others follow from.

    What is certainly earlier wins. Where that cannot be said, the kind decides: killed or lost,
    then exits and the user's exceptions, then communication errors: of those the one that gave up
    waiting, which closes connections before it says so.
    """
    known = list(failures)
    candidates = [f for f in known if not f.consequence] or known
    sources = [f for f in candidates if not _is_echo(f)]
    if sources:
        earliest_echo = min(
            (f.when.latest for f in candidates if _is_echo(f)), default=float("inf")
        )
        if min(f.when.earliest for f in sources) <= earliest_echo + ECHO_DELAY:
            candidates = sources
    else:
        since = min(f.when.latest for f in candidates) + ECHO_DELAY
        waited = [f for f in known if gave_up_waiting(f.outcome) and f.when.earliest <= since]
        candidates = waited or candidates
    # Clocks that contradict each other may have everything before something else.
    earliest = _without_earlier(candidates) or candidates
    return min(earliest, key=lambda f: (_order(f), f.when.latest, f.outcome.rank))


def _without_earlier(failures: Collection[Failure]) -> list[Failure]:
    """Those before which there is certainly none.

    Certain is the order by its own clock on one host, and that of intervals that do not overlap on
    two, or where it is the host that was lost. Thousands may fail at once: no two are compared.
    """
    clocks: dict[AgentId, float] = {}
    """When the first worker of each host ended, by its own clock."""
    ends: dict[AgentId, float] = {}
    """By when the first of each host has certainly failed."""
    losses: dict[AgentId, float] = {}
    """By when the first of each host was certainly lost with it."""
    for f in failures:
        ends[f.agent] = min(f.when.latest, ends.get(f.agent, math.inf))
        if f.outcome.kind is Ended.LOST:
            losses[f.agent] = min(f.when.latest, losses.get(f.agent, math.inf))
        else:
            clocks[f.agent] = min(f.outcome.clock, clocks.get(f.agent, math.inf))
    first, second = (*heapq.nsmallest(2, ends, key=ends.__getitem__), None)[:2]

    def has_earlier(f: Failure) -> bool:
        other = second if f.agent == first else first
        elsewhere = math.inf if other is None else ends[other]
        if f.outcome.kind is Ended.LOST:
            return min(elsewhere, ends[f.agent]) < f.when.earliest
        if clocks[f.agent] < f.outcome.clock:
            return True
        return min(elsewhere, losses.get(f.agent, math.inf)) < f.when.earliest

    return [f for f in failures if not has_earlier(f)]


def _is_echo(failure: Failure) -> bool:
    exception = failure.outcome.exception
    return exception is not None and exception.communication


def _order(failure: Failure) -> int:
    if failure.outcome.kind in (Ended.KILLED, Ended.LOST):
        return 0
    return 2 if _is_echo(failure) else 1
