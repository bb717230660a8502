"""How long nothing has been heard of somebody. Pure."""

from __future__ import annotations


class Silence:
    """Counts the time that was waited for and in which nothing came.

    Time in which this process was stopped, or the machine asleep, was not waited for: it does not
    count.
    """

    def __init__(self, heard: int = 0) -> None:
        """`heard` counts what came, up to now."""
        self.seconds = 0.0
        self._heard = heard

    def pass_time(self, seconds: float, heard: int, *, expected: bool = True) -> float:
        """So much time was waited for; gives how long it has been silent.

        While nothing is `expected`, silence is none.
        """
        is_silent = expected and heard == self._heard
        self.seconds = self.seconds + seconds if is_silent else 0.0
        self._heard = heard
        return self.seconds
