"""`logging` records on their way from a worker or agent to the launcher: one line of JSON each."""

from __future__ import annotations

import json
import logging
from typing import Any

from phalanx._logs.lines import Source

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
    """The record, with whose it is, and what was printed of it. Raises `ValueError`.

    A handler may rely on what every record has, whatever a worker or a host has written.
    """
    try:
        fields = json.loads(line)
    except RecursionError:
        raise ValueError(f"not a record: {line!r:.80}") from None
    printed = fields.pop("printed", "") if isinstance(fields, dict) else None
    if not isinstance(printed, str):
        raise ValueError(f"not a record: {line!r:.80}")  # noqa: TRY004 one error for all of it
    record = logging.makeLogRecord(_DEFAULTS)
    # Beside what every record has there are the user's own fields; none may hide a method.
    vars(record).update(
        (name, value)
        for name, value in fields.items()
        if name not in _LEFT and not hasattr(logging.LogRecord, name) and _fits(name, value)
    )
    record.name = record.name or source.name
    belongs_to(record, source)
    return record, printed.encode("utf-8", "surrogatepass")


_DEFAULTS = {"name": "", "levelno": logging.INFO, "levelname": "INFO"}
_USUAL: dict[str, Any] = vars(logging.LogRecord("", 0, "", 0, "", None, None))
_NEVER_NONE = ("name", "levelno", "levelname", "msg", "created", "msecs", "relativeCreated")
_LARGEST = {"created": 1e11}
"""Later moments have no date."""


def _fits(name: str, value: object) -> bool:
    """It is of the kind that every record has under this name, or the user's own."""
    if name not in _USUAL:
        return True
    usual = _USUAL[name]
    if value is None:
        return name not in _NEVER_NONE
    if not isinstance(usual, int | float):
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    whole = isinstance(value, int) or isinstance(usual, float)
    return whole and -1.0 <= value < _LARGEST.get(name, 1 << 63)


def of_line(text: str, source: Source, stream: str = "") -> logging.LogRecord:
    """A record for a raw line, in the name of its source; `record.stream` says where it came."""
    record = logging.LogRecord(source.name, logging.INFO, "", 0, text, None, None)
    record.stream = stream
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
