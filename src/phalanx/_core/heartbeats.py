"""What a worker tells its agent in a file that it has mapped: beats, a timer, steps. Pure.

Numbers of eight bytes, each written at once and read by another process: telling costs a store in
memory. `HangWatch` says what follows from them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from phalanx._core.silence import Silence

FILE = "heartbeat"
"""The file in a rank's directory; it is there once the worker has told something."""
BEATS, STEPS, DEADLINE, AFTER, TIMES = range(5)
"""Where each number is. A deadline is by the host's monotonic clock, 0 where there is none."""
KEPT = 64
"""So many times of steps, the newest in the place of the oldest."""
SIZE = 8 * (TIMES + KEPT)

_LAYOUT = struct.Struct(f"{TIMES + KEPT}d")
_MOST = float(1 << 53)


@dataclass(frozen=True, slots=True)
class HeartbeatPage:
    """What the file said at one moment."""

    beats: int
    steps: int
    deadline: float
    after: float
    times: tuple[float, ...]
    """How long the last steps took, in seconds, in no order."""

    @property
    def step_seconds(self) -> float | None:
        """The median of them."""
        return median(self.times) if self.times else None


def median(values: Iterable[float]) -> float:
    """The one in the middle, or between the two; of one at least."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2


def read(data: bytes) -> HeartbeatPage | None:
    """What is in the file; None where that cannot be: it is the user's process that has it."""
    if len(data) != SIZE:
        return None
    numbers = _LAYOUT.unpack(data)
    if not all(0 <= number <= _MOST for number in numbers):
        return None
    steps = int(numbers[STEPS])
    # The first has no beginning.
    times = numbers[TIMES : TIMES + min(max(0, steps - 1), KEPT)]
    return HeartbeatPage(int(numbers[BEATS]), steps, numbers[DEADLINE], numbers[AFTER], times)


class HangWatch:
    """Watches one worker. Time in which the agent did not run either is not held against it."""

    def __init__(self, timeout: float) -> None:
        """`timeout` is for beats, in seconds; with 0 only timers are watched."""
        self._timeout = timeout
        self._silence = Silence()
        self._deadline = 0.0
        self._slept = 0.0

    @property
    def silent(self) -> float:
        """Seconds without a beat, at the last look; 0 where none is expected."""
        return self._silence.seconds

    def look(self, page: HeartbeatPage, now: float, waited: float, slept: float = 0.0) -> str:
        """Why the worker is taken for hung; empty if it is not.

        So many seconds were `waited` since the last look, after it had `slept` for others.
        """
        expected = self._timeout > 0 and page.beats > 0
        silent = self._silence.pass_time(waited, page.beats, expected=expected)
        self._slept = self._slept + slept if page.deadline == self._deadline else 0.0
        self._deadline = page.deadline
        if 0 < page.deadline <= now - self._slept:
            return (
                f"has been in a block of phalanx.expires(after={page.after:g}) for more than "
                f"{page.after:g} s"
            )
        if expected and silent >= self._timeout:
            return f"has not called phalanx.heartbeat() for {self._timeout:g} s"
        return ""
