"""For those who wait for an app: a scheduler that does not answer for a while ends no wait."""

from __future__ import annotations

import threading
import time

from phalanx._logs import logger
from phalanx.errors import SchedulerUnreachable

PATIENCE = 60.0
"""Seconds for which a scheduler may not answer."""

_saying = threading.Lock()
_heard: list[float] = []
"""When a scheduler last did not answer: of all who wait, the first says so."""


class Patience:
    """Of one who asks a scheduler again and again."""

    def __init__(self) -> None:
        self._since: float | None = None

    def answered(self) -> None:
        """It has."""
        self._since = None

    def bear(self, error: SchedulerUnreachable) -> None:
        """It has not: say so, once. Raises the error when that has lasted too long."""
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > PATIENCE:
            raise error
        with _saying:
            is_said = bool(_heard) and now - _heard[0] < PATIENCE
            _heard[:] = [now]
        if not is_said:
            logger.warning("phalanx: %s; asking again for up to %g s", error, PATIENCE)
