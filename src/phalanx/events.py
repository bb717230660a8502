"""What happens, as events for handlers of the user's own: `configure(MyHandler())`.

Nothing is recorded for anybody unless a handler is configured. Handlers are called on a thread of
their own, see `delivery`; whoever records an event neither waits for them nor sees them fail.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TextIO

from phalanx._core.json_text import parse_json
from phalanx._delivery import Deliveries
from phalanx.errors import ConfigError

__all__ = [
    "Event",
    "EventHandler",
    "EventSource",
    "JSONLinesEventHandler",
    "LoggingEventHandler",
    "NullEventHandler",
    "configure",
    "flush",
    "record",
]


class EventSource(StrEnum):
    """Who an event is from."""

    AGENT = "AGENT"
    LAUNCHER = "LAUNCHER"
    WORKER = "WORKER"


@dataclass(frozen=True)
class Event:
    """Something that has happened."""

    name: str
    """What has happened."""
    source: EventSource
    """Who it is from."""
    timestamp: float = field(default_factory=time.time)
    """Seconds since the epoch; now, unless given."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Anything more there is to say; a copy of the mapping that was given."""

    def __post_init__(self) -> None:
        # Handlers see it later than whoever records it, who may go on filling in the mapping.
        object.__setattr__(self, "metadata", dict(self.metadata))

    def serialize(self) -> str:
        """As JSON, on one line, in sorted order; what JSON cannot hold becomes its `repr`."""
        fields = {
            "name": self.name,
            "source": self.source,
            "timestamp": self.timestamp,
            "metadata": self.metadata,
        }
        return json.dumps(_plain(fields), sort_keys=True, allow_nan=False)

    @staticmethod
    def deserialize(text: str) -> Event:
        """The event that was serialized.

        Args:
            text: What `serialize` gave.

        Raises:
            ConfigError: The text is not an event.
        """
        try:
            fields = parse_json(text)
            return Event(
                name=fields["name"],
                source=EventSource(fields["source"]),
                timestamp=float(fields["timestamp"]),
                metadata=fields["metadata"],
            )
        except (KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(f"not an event ({what}): {text!r:.200}") from None


def _plain(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """The same in terms of JSON; what contains itself is cut off where it does."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _shown(value)
    if isinstance(value, Mapping | list | tuple) and id(value) not in inside:
        inside = (*inside, id(value))
        if isinstance(value, Mapping):
            return {
                key if isinstance(key, str) else _shown(key): _plain(item, inside)
                for key, item in value.items()
            }
        return [_plain(item, inside) for item in value]
    return _shown(value)


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 the user's class
        return object.__repr__(value)


class EventHandler(ABC):
    """Takes events somewhere. Any other object with such a method will do as well."""

    @abstractmethod
    def record(self, event: Event) -> None:
        """Take one event; called in order, on one thread.

        It may block, and it may raise: the next one follows.

        Args:
            event: What has happened.
        """


class NullEventHandler(EventHandler):
    """Takes nothing; this is the default."""

    def record(self, event: Event) -> None:
        """Do nothing."""


class JSONLinesEventHandler(EventHandler):
    """Appends every event as one line of JSON to a file, or to a text stream.

    Any number of processes may append to one file: a line is a single write at its end. The file is
    opened for each line, so that it may be moved away meanwhile, and nothing needs closing.
    """

    def __init__(self, path_or_stream: str | os.PathLike[str] | TextIO) -> None:
        """Make the file and its directories if need be.

        Args:
            path_or_stream: A file to append to, or a text stream.

        Raises:
            OSError: The file cannot be made.
            ConfigError: It must be a path or a stream.
        """
        self._stream: TextIO | None = None
        self._path = ""
        self._is_torn = False
        """The disk was full in the middle of a line."""
        if isinstance(path_or_stream, str | os.PathLike):
            self._path = os.path.abspath(path_or_stream)
            self._append(b"")
        elif hasattr(path_or_stream, "write"):
            self._stream = path_or_stream
        else:
            raise ConfigError(f"{path_or_stream!r} must be a path or a stream.")

    def record(self, event: Event) -> None:
        """Write one line, and flush it."""
        line = event.serialize() + "\n"
        if self._stream is None:
            self._append(line.encode())
        else:
            self._stream.write(line)
            self._stream.flush()

    def _append(self, line: bytes) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with open(self._path, "ab", buffering=0) as file:
            line = b"\n" + line if self._is_torn else line
            written = file.write(line)
            if written != len(line):
                self._is_torn = True
                raise OSError(f"an event was only partly written to {self._path}")
            self._is_torn = False


class LoggingEventHandler(EventHandler):
    """Logs every event, as JSON; the record has it as `event`. The logger is `phalanx.events`."""

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        """Log to a logger, at a level.

        Args:
            logger: By default `logging.getLogger("phalanx.events")`.
            level: The level of the records.
        """
        self._logger = logger or logging.getLogger("phalanx.events")
        self._level = level

    def record(self, event: Event) -> None:
        """Log it."""
        if self._logger.isEnabledFor(self._level):
            self._logger.log(self._level, "%s", event.serialize(), extra={"event": event})


_DELIVERIES = Deliveries("record", NullEventHandler)


def configure(*handlers: EventHandler | Any) -> None:
    """Give what is recorded from now on to these handlers, and to no others.

    What was recorded before still goes to the former handlers.

    Args:
        *handlers: Objects with a method `record(event)`; none of them: silence.

    Raises:
        ConfigError: One of them cannot be a handler; then nothing changes.
    """
    _DELIVERIES.choose(handlers)


def record(event: Event) -> None:
    """Hand an event to the handlers. Return at once, whatever they do.

    Args:
        event: What has happened.
    """
    for delivery in _DELIVERIES.chosen[None]:
        delivery.put(event)


def flush(timeout: float = 5.0) -> bool:
    """Wait until the handlers had all that was recorded so far.

    The interpreter's exit does so by itself, with a bound; `os._exit` does not.

    Args:
        timeout: Seconds to wait at most.

    Returns:
        Whether they had all of it in time.
    """
    return _DELIVERIES.flush(timeout)
