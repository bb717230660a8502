"""The record of a map that runs, by which other processes list and cancel it."""

from __future__ import annotations

import time
from pathlib import Path

from phalanx._registry.app_record import AppRecord
from phalanx._specs import AppState, AppStatus


class CallRecord:
    """How a map stands, for `phalanx list`, `status` and `cancel`."""

    def __init__(self, app: str, title: str, total: int, logs: Path | None, grace: float) -> None:
        """Record it; where that cannot be, that is said once."""
        facts = {"calls": total, "log_dir": None if logs is None else str(logs)}
        self._app = app
        self._total = total
        self._began = time.monotonic()
        self._record = AppRecord.create(app, title, (), {}, grace, more=facts)

    @property
    def cancel_asked(self) -> bool:
        """Somebody wants its end."""
        return self._record.cancel_asked() is not None

    def update(self, state: AppState, done: int, failed: int, running: int) -> None:
        """Say how it stands; not too often."""
        message = f"{done} of {self._total} calls have ended"
        message += f", {failed} failed" if failed else ""
        message += f", {running} running" if running else ""
        if self._record.is_old(state, message):
            seconds = time.monotonic() - self._began
            self._record.update(AppStatus(self._app, state, message, (), seconds, {}))
