"""Two hosts' monotonic clocks, related by round trips. Pure.

A failure on another host is put into the launcher's time as an interval: the host's clock plus the
offset, give or take half the best round trip. Wall clocks of two hosts are never compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """A moment known only to lie between two times."""

    earliest: float
    latest: float

    def shifted(self, seconds: float) -> Interval:
        """The same moment, so much earlier."""
        return Interval(self.earliest - seconds, self.latest - seconds)

    def within(self, first: float, last: float) -> Interval:
        """The same moment, where it is known to lie between these as well."""
        earliest = min(max(self.earliest, first), last)
        return Interval(earliest, max(earliest, min(self.latest, last)))


class ClockOffset:
    """The offset of a peer's clock, refined by every round trip."""

    def __init__(self) -> None:
        """Start with no knowledge: until a round trip is seen, any offset is possible."""
        self.offset = 0.0
        self.error = math.inf

    def observe(self, sent: float, peer: float, received: float) -> None:
        """Take one round trip: sent and received by our clock, `peer` by the other's between."""
        error = (received - sent) / 2
        if error < 0:
            return
        # Clocks drift apart: an old best bound slowly stops being true.
        self.error += 1e-5
        if error <= self.error:
            self.offset = (sent + received) / 2 - peer
            self.error = error

    def interval(self, peer: float) -> Interval:
        """The peer's moment in our time."""
        middle = peer + self.offset
        return Interval(middle - self.error, middle + self.error)
