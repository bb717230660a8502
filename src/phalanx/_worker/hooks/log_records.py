"""Have the records of a worker's `logging` carried home as records, with level, name and time.

Only where a log spec's handlers want them. Nothing is added to the root logger: a program's own
`basicConfig` works as ever. What the program's handlers would print to stdout or stderr travels
with the record instead, and is put where raw output goes; other handlers are left alone.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from phalanx._logs.records import pack

RECORDS = "records"
"""The file in a rank's directory, followed like its output."""


def begin(directory: str) -> None:
    """From now on every record that a logger lets through is written down."""
    file = _File(os.path.join(directory, RECORDS))
    standard = (sys.stdout, sys.stderr)
    plain = logging.Logger.callHandlers

    def call_handlers(self: logging.Logger, record: logging.LogRecord) -> None:
        printed = ""
        others: list[logging.Handler] = []
        for handler in _handlers(self):
            if record.levelno < handler.level:
                continue
            if _prints(handler, standard):
                printed += _format(handler, record)
            else:
                others.append(handler)
        try:
            file.write(pack(record, printed))
        except Exception:  # noqa: BLE001 then as if we were not there
            plain(self, record)
            return
        for handler in others:
            handler.handle(record)

    logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]


class _File:
    """Our file; the program may close descriptors that are not its own, and reuse their numbers."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._broken = False
        """A full disk has taken only a part of the last one."""
        self._open()

    def write(self, data: bytes) -> None:
        try:
            known = os.fstat(self._number)
            mine = (known.st_dev, known.st_ino) == self._identity
        except OSError:
            mine = False
        if not mine:
            self._open()
        if self._broken:
            data = b"\n" + data
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._number, rest) :]
        finally:
            self._broken = 0 < len(rest) < len(data) or (self._broken and bool(rest))

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._number = os.open(self._path, flags, 0o600)
        known = os.fstat(self._number)
        self._identity = (known.st_dev, known.st_ino)


def _handlers(logger: logging.Logger) -> list[logging.Handler]:
    found: list[logging.Handler] = []
    current: logging.Logger | None = logger
    while current is not None:
        found += current.handlers
        current = current.parent if current.propagate else None
    if not found and logging.lastResort is not None:
        found.append(logging.lastResort)
    return found


def _prints(handler: logging.Handler, standard: tuple[Any, ...]) -> bool:
    """It does nothing but write to the streams that are carried home anyway."""
    kind: Any = type(handler)
    stream = getattr(handler, "stream", None)
    return (
        isinstance(handler, logging.StreamHandler)
        and kind.emit is logging.StreamHandler.emit
        and kind.handle is logging.Handler.handle
        and any(stream is s for s in standard)
    )


def _format(handler: Any, record: logging.LogRecord) -> str:
    try:
        passed = handler.filter(record)
        if not passed:
            return ""
        record = passed if isinstance(passed, logging.LogRecord) else record
        return str(handler.format(record)) + str(handler.terminator)
    except Exception:  # noqa: BLE001 as logging does: it is shown, and nothing fails
        handler.handleError(record)
        return ""
