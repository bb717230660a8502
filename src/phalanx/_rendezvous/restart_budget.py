"""How often, and how soon, it is tried again. Pure."""

from __future__ import annotations

from phalanx._rendezvous.causes import Failure

EARLY = 10.0
"""Seconds from a round's start within which a failure is an early one."""
LONGEST = 60.0
"""The longest that is waited before a restart."""


class Budget:
    """Counts restarts; knows when another would be in vain."""

    def __init__(self, most: int, backoff: float = 0.0, same_failures: int = 0) -> None:
        """`most` restarts, none of them spent."""
        self.count = 0
        self.note = ""
        """Why it is not tried again though restarts are left."""
        self._most = most
        self._backoff = backoff
        self._same_failures = same_failures
        self._quick = 0
        self._signature: tuple[object, ...] = ()
        self._same = 0

    @property
    def left(self) -> bool:
        """Another restart may be tried."""
        return self.count < self._most

    def catch_up(self, count: int) -> None:
        """At least so many were spent before."""
        self.count = max(self.count, count)

    def spend(self, cause: Failure, lived: float) -> float | None:
        """The seconds to wait before the restart that follows this failure; None if there is none.

        `lived` is how long the workers had run. The first restart comes at once; after early
        failures in a row the wait doubles.
        """
        early = lived < EARLY
        signature = _signature(cause)
        self._same = self._same + 1 if early and signature == self._signature else int(early)
        self._signature = signature
        if not self.left:
            return None
        if self._same_failures and self._same >= self._same_failures:
            unused = self._most - self.count
            self.note = (
                f"Stopped restarting: the same failure {self._same} times in a row, each within "
                f"{EARLY:g} s of the start ({unused} restarts were left)."
            )
            return None
        self.count += 1
        self._quick = self._quick + 1 if early else 0
        if self._quick < 2:
            return 0.0
        return float(min(self._backoff * 2 ** (self._quick - 2), LONGEST))


def _signature(cause: Failure) -> tuple[object, ...]:
    """What makes two failures the same, on whichever rank."""
    outcome = cause.outcome
    exception = outcome.exception
    said = (exception.type_name, exception.message) if exception is not None else ()
    return outcome.kind, outcome.code, outcome.signal, said
