"""Which processes are supervisors of apps, and how one is named."""

from __future__ import annotations

from typing import Any

from phalanx._registry import owner

_MODULE = b"phalanx._schedulers.supervised.supervisor"
_TITLE = b"phalanx: "


def supervisor_of(pid: int | None = None) -> dict[str, Any]:
    """What names the process that runs an app; by default this one."""
    return {**owner(pid), "supervises": True}


def title_of(app_id: str) -> str:
    """What the supervisor of an app is called."""
    return f"phalanx: {app_id} supervisor"


def is_supervisor(pid: int) -> bool:
    """The process runs an app of its own, which a replica has submitted and which outlives it."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read().rstrip(b"\0")
        with open(f"/proc/{pid}/comm", "rb") as file:
            name = file.read().strip()
    except OSError:
        return False
    # A title has only the room that a command line had.
    is_title = line[: len(_TITLE)] == _TITLE[: len(line)] != b""
    return (is_title and name.endswith(b"-supervisor")) or _MODULE in line
