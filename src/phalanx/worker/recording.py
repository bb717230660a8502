"""Have the records of a worker's `logging` carried home as records, with level, name and time.

Only where a log spec's handlers want them. Nothing is added to the root logger: a program's own
`basicConfig` works as ever. What the program's handlers would print to stdout or stderr travels
with the record instead, and is put where raw output goes; other handlers are left alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any

from phalanx.logs.records import pack

RECORDS = "records"
"""The file in a rank's directory, followed like its output."""


def begin(directory: str) -> None:
    """From now on every record that a logger lets through is written down."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    file = os.open(os.path.join(directory, RECORDS), flags, 0o600)

    def call_handlers(self: logging.Logger, record: logging.LogRecord) -> None:
        printed = ""
        others: list[logging.Handler] = []
        for handler in _handlers(self):
            if record.levelno < handler.level:
                continue
            if _prints(handler):
                printed += _format(handler, record)
            else:
                others.append(handler)
        with contextlib.suppress(OSError):
            os.write(file, pack(record, printed))
        for handler in others:
            handler.handle(record)

    logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]


def _handlers(logger: logging.Logger) -> list[logging.Handler]:
    found: list[logging.Handler] = []
    current: logging.Logger | None = logger
    while current is not None:
        found += current.handlers
        current = current.parent if current.propagate else None
    if not found and logging.lastResort is not None:
        found.append(logging.lastResort)
    return found


def _prints(handler: logging.Handler) -> bool:
    """It writes to the streams that are carried home anyway."""
    stream = getattr(handler, "stream", None)
    standard = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return isinstance(handler, logging.StreamHandler) and any(stream is s for s in standard)


def _format(handler: Any, record: logging.LogRecord) -> str:
    try:
        if not handler.filter(record):
            return ""
        return str(handler.format(record)) + str(handler.terminator)
    except Exception:  # noqa: BLE001 as logging does: it is shown, and nothing fails
        handler.handleError(record)
        return ""
