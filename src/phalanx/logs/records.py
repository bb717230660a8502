"""`logging` records on their way from a worker or agent to the launcher: one line of JSON each."""

from __future__ import annotations

import json
import logging
from typing import Any

from phalanx.logs.lines import Source

_LINE = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
_LEFT = ("args", "exc_info", "message", "asctime")
"""Fields that are carried in another form, or made anew."""


def pack(record: logging.LogRecord, printed: str) -> bytes:
    """Write a record down. `printed` is what goes where raw output goes, ends of lines included."""
    fields: dict[str, Any] = {k: v for k, v in vars(record).items() if k not in _LEFT}
    fields["msg"] = _message(record)
    fields["exc_text"] = record.exc_text or _traceback(record)
    fields["stack_info"] = record.stack_info
    fields["printed"] = printed
    return json.dumps(fields, default=_repr, skipkeys=True).encode("utf-8", "replace") + b"\n"


def pack_message(message: str, level: int) -> bytes:
    """A record of an agent's own, and the line that is printed of it."""
    record = logging.LogRecord("", level, "", 0, message, None, None)
    return pack(record, _LINE.format(record) + "\n")


def unpack(line: bytes, source: Source) -> tuple[logging.LogRecord, bytes]:
    """The record, with whose it is, and what was printed of it. Raises `ValueError`."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"not a record: {line!r:.80}")  # noqa: TRY004 one error for all of it
    printed = str(fields.pop("printed", "")).encode("utf-8", "surrogatepass")
    record = logging.makeLogRecord(fields)
    record.name = record.name or source.name
    belongs_to(record, source)
    return record, printed


def of_line(text: str, source: Source) -> logging.LogRecord:
    """A record for a raw line, in the name of its source."""
    record = logging.LogRecord(source.name, logging.INFO, "", 0, text, None, None)
    belongs_to(record, source)
    return record


def belongs_to(record: logging.LogRecord, source: Source) -> None:
    """Say on the record whose it is: `worker`, `hostname`, `rank` and `local_rank`."""
    record.worker = source.name
    record.hostname = source.hostname
    record.rank = source.rank
    record.local_rank = source.local_rank


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 a format that does not fit its arguments
        return f"{_repr(record.msg)} {_repr(record.args)}"


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 the user's code
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def _traceback(record: logging.LogRecord) -> str | None:
    if not record.exc_info:
        return None
    return logging.Formatter().formatException(record.exc_info)
