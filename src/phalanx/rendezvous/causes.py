"""Which of several failures came first. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.clock import Interval
from phalanx.rounds import Ended, Outcome

ECHO_DELAY = 1.0
"""A communication error is taken for an echo of another failure that is seen up to this much later.

A worker's death closes its connections before the kernel tells its parent, so the peers' errors can
carry an earlier time than the death that caused them.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker that ended badly, on a host, at a time by the launcher's clock."""

    agent: int
    hostname: str
    outcome: Outcome
    when: Interval
    consequence: bool = False
    """It happened after everybody was told to stop."""

    def describe(self) -> str:
        """Say it in one line."""
        return f"rank {self.outcome.rank} on {self.hostname} {self.outcome.describe()}"


def first_cause(failures: Iterable[Failure]) -> Failure:
    """The failure that the others follow from.

    What is certainly earlier wins. Where that cannot be said, the kind decides: killed or lost,
    then exits and the user's exceptions, then communication errors.
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
    earliest = [f for f in candidates if not any(_is_before(other, f) for other in candidates)]
    # Clocks that contradict each other may have everything before something else.
    return min(earliest or candidates, key=lambda f: (_order(f), f.when.latest, f.outcome.rank))


def _is_before(one: Failure, other: Failure) -> bool:
    """Certainly earlier: by its own clock on one host, by intervals that do not overlap on two."""
    if one.agent == other.agent and Ended.LOST not in (one.outcome.kind, other.outcome.kind):
        return one.outcome.clock < other.outcome.clock
    return one.when.latest < other.when.earliest


def _is_echo(failure: Failure) -> bool:
    fault = failure.outcome.fault
    return fault is not None and fault.communication


def _order(failure: Failure) -> int:
    if failure.outcome.kind in (Ended.KILLED, Ended.LOST):
        return 0
    return 2 if _is_echo(failure) else 1
