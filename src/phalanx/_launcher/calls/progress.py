"""How many calls are done: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time

from phalanx._logs import logger
from phalanx._logs.console import STATUS, is_terminal

_EVERY = 0.1
_QUIET = 0.4
"""Seconds before a bar is shown: what ends sooner needs none."""
_FIRST, _LONGEST = 10.0, 300.0
"""Seconds until the first line where there is no terminal; each further one waits twice as long."""
_LONG = 2.0
"""Seconds after which a wait for hosts is said where there is no terminal."""
_WIDTH = 20


class CallProgress:
    """What is shown of a map. May be called from any thread, by one at a time."""

    def __init__(self, title: str, total: int, known: int) -> None:
        """`known`: calls that were done before."""
        self._title = title
        self._total = total
        self._known = known
        self._began = self._drawn = time.monotonic()
        self._pause = _FIRST
        self._said = False
        self._line_at = self._began + _FIRST

    def show(self, done: int, failed: int, running: int) -> None:
        """Show it, if it is time."""
        now = time.monotonic()
        if is_terminal(sys.stderr):
            if now - self._began > _QUIET and now - self._drawn > _EVERY:
                self._drawn = now
                bar = ("█" * (_WIDTH * done // max(1, self._total))).ljust(_WIDTH, "░")
                STATUS.show(self, f"{bar} {self._text(done, failed, running, now)}")
        elif now >= self._line_at:
            self._pause = min(2 * self._pause, _LONGEST)
            self._line_at = now + self._pause
            logger.warning("phalanx: %s", self._text(done, failed, running, now))

    def wait(self, what: str) -> None:
        """Nothing runs yet: say what is waited for, off a terminal once."""
        seconds = time.monotonic() - self._began
        if is_terminal(sys.stderr):
            if seconds > _QUIET:
                STATUS.show(self, f"phalanx: {self._title}: {what} ({seconds:.0f} s)")
        elif seconds > _LONG and not self._said:
            self._said = True
            logger.warning("phalanx: %s: %s", self._title, what)

    def close(self) -> None:
        """Nothing more is shown."""
        STATUS.show(self, "")

    def _text(self, done: int, failed: int, running: int, now: float) -> str:
        seconds = now - self._began
        parts = [f"{done} of {self._total} calls done"]
        parts += [f"{failed} failed"] if failed else []
        parts += [f"{running} running"] if running else []
        new = done - self._known
        left = f", {seconds / new * (self._total - done):.0f} s left" if new > 0 else ""
        return f"{self._title}: {', '.join(parts)} ({seconds:.0f} s{left})"
