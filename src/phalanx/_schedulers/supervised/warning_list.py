"""What a supervisor is warned of while its app runs: into its log, and into the app's status."""

from __future__ import annotations

import logging
import sys

from phalanx._core.option_names import as_scheduler_options
from phalanx._logs import PASSING, logger

_MOST = 20
"""Warnings that a status has; the log has all."""
_LONGEST = 1000


class WarningList(logging.Handler):
    """Takes what our own logger is told in this process, on any thread."""

    def __init__(self) -> None:
        """Takes nothing until it is installed."""
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        """Each once, in the order in which they came."""

    def install(self) -> None:
        """From now on, whatever handlers there were: a fork has those of another program."""
        logger.handlers[:] = [self]
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write it to our log, and keep it unless it was said in passing."""
        text = as_scheduler_options(record.getMessage())
        try:
            print(text, file=sys.stderr, flush=True)
        except OSError:  # a full disk
            pass
        text = text.removeprefix("phalanx: ")[:_LONGEST]
        if not getattr(record, PASSING, False) and text not in self.texts:
            if len(self.texts) < _MOST:
                self.texts.append(text)
