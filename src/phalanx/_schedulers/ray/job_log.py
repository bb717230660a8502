"""What a driver writes into its job's log, and how it is read back. Pure.

A job has one log, which the job API gives to anyone who asks: lines of JSON behind a mark are
entries, everything else is Ray's own, or a driver's last words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from phalanx._core.json_text import parse_json
from phalanx._logs.lines import LogLine, Stream

MARK = "\x1ephalanx "
_OUTPUT, _STATUS, _RELAY = "output", "status", "relay"
_STREAMS = {1: Stream.STDOUT, 2: Stream.STDERR}
PIECE = 1 << 20
"""The longest line that is kept whole."""


def output(role: str, replica: int, stream: int, moment: float, text: str) -> str:
    """A line that a replica has printed; `stream` is its descriptor."""
    return _line(_OUTPUT, role, replica, stream, round(moment, 3), text)


def status(value: dict[str, Any]) -> str:
    """How the app stands."""
    return _line(_STATUS, value)


def relay(value: dict[str, Any]) -> str:
    """Where lent hosts are reached."""
    return _line(_RELAY, value)


def status_file(app: str) -> str:
    """The name, among a node's logs, of the file in which a driver says how its app stands."""
    return f"phalanx-{app}.json"


def _line(*parts: Any) -> str:
    return f"{MARK}{json.dumps(parts)}\n"


def _entries(log: str, kind: str) -> Iterator[list[Any]]:
    for line in log.split("\n"):
        if line.startswith(MARK):
            try:
                found = parse_json(line[len(MARK) :])
            except ValueError:
                continue  # the end of a log that is still written
            if isinstance(found, list) and found and found[0] == kind:
                yield found[1:]


def lines_of(log: str, role: str, replica: int) -> Iterator[LogLine]:
    """What a replica has printed."""
    for own, number, stream, moment, text in _entries(log, _OUTPUT):
        if (own, number) == (role, replica):
            yield LogLine(role, replica, text, moment, _STREAMS[stream])


def last_status(log: str) -> dict[str, Any] | None:
    """The last that the driver has said of the app."""
    found = [value for (value,) in _entries(log, _STATUS)]
    return found[-1] if found else None


def relay_of(log: str) -> dict[str, Any] | None:
    """Where lent hosts are reached, if the driver has said so."""
    return next((value for (value,) in _entries(log, _RELAY)), None)


def last_words(log: str) -> str:
    """What is no entry of ours."""
    return "\n".join(line for line in log.split("\n") if not line.startswith(MARK))


class LineSplitter:
    """Bytes as they come → whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[str]:
        """The lines that these complete."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > PIECE:
            whole, self._rest = [*whole, self._rest], b""
        return [_text(line) for line in whole]

    def end(self) -> list[str]:
        """The last line, if it has no end."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
