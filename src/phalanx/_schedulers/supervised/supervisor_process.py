"""Which processes are supervisors of apps, and how one is named."""

from __future__ import annotations

from typing import Any

from phalanx._registry import owner

_MODULE = b"phalanx._schedulers.supervised.supervisor"


def supervisor_of(pid: int | None = None) -> dict[str, Any]:
    """What names the process that runs an app; by default this one."""
    return {**owner(pid), "supervises": True}


def is_supervisor(pid: int) -> bool:
    """The process runs an app of its own, which a replica has submitted and which outlives it."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except OSError:
        return False
    return (line.startswith(b"phalanx: ") and b" supervisor" in line) or _MODULE in line
