"""Handles: `{scheduler}://{session}/{app_id}`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from phalanx._core import values
from phalanx.errors import ConfigError

_HANDLE = re.compile(r"(?P<scheduler>[^:/]+)://(?P<session>[^/]*)/(?P<rest>.+)")
SESSION = "phalanx"


@dataclass(frozen=True)
class Handle:
    """What names an app to everybody."""

    scheduler: str
    session: str
    app_id: str

    def __str__(self) -> str:
        return f"{self.scheduler}://{self.session}/{self.app_id}"


def parse(text: str) -> Handle:
    """The app that a handle names. Raises `ConfigError`."""
    scheduler, session, app_id = _parts(text)
    return Handle(scheduler, session or SESSION, app_id)


def _parts(text: str) -> tuple[str, str, str]:
    found = _HANDLE.fullmatch(text)
    if found is None or "/" in found["rest"]:
        raise ConfigError(
            f"invalid handle {text!r}; expected something like local_cwd://{SESSION}/echo-1a2b3c4d."
        )
    return found["scheduler"], found["session"], found["rest"]


class ParsedAppHandle(NamedTuple):
    """The parts of a handle."""

    scheduler_backend: str
    """The scheduler's name."""
    session_name: str
    """The session's name."""
    app_id: str
    """The app's id."""


def parse_app_handle(app_handle: str) -> ParsedAppHandle:
    """The parts of a handle, as they are written: the session may be empty.

    Args:
        app_handle: Such as `local_cwd://phalanx/echo-1a2b3c4d`.

    Raises:
        ConfigError: It is not a handle.
    """
    return ParsedAppHandle(*_parts(app_handle))


def make_app_handle(scheduler_backend: str, session_name: str, app_id: str) -> str:
    """The handle of an app.

    Args:
        scheduler_backend: The scheduler's name.
        session_name: The session's name.
        app_id: The app's id.
    """
    return str(Handle(scheduler_backend, session_name, app_id))


@dataclass(frozen=True)
class LogSelector:
    """What `APP[/ROLE[/REPLICAS]]` means."""

    app: str
    """A handle, an id, or the beginning of one."""
    role: str | None = None
    replicas: tuple[int, ...] | None = None


def parse_log_selector(text: str) -> LogSelector:
    """The app, role and replicas of a text such as `echo-1a2b/echo/0,2`. Raises `ConfigError`."""
    found = _HANDLE.fullmatch(text)
    head, rest = (text[: found.start("rest")], found["rest"]) if found else ("", text)
    parts = rest.rstrip("/").split("/")
    if len(parts) > 3 or not all(parts):
        raise ConfigError(f"{text!r}: expected APP[/ROLE[/REPLICAS]], such as echo-1a2b/echo/0,1")
    replicas = None
    if len(parts) == 3:
        try:
            replicas = tuple(dict.fromkeys(values.numbers(parts[2])))
        except ValueError as error:
            raise ConfigError(f"{text!r}: {error}.") from None
    return LogSelector(head + parts[0], parts[1] if len(parts) > 1 else None, replicas)
