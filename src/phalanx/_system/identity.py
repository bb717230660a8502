"""What names a process for good, and whether the one that is named is certainly gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from phalanx._system.processes import start_time


def identity(pid: int | None = None) -> dict[str, Any]:
    """What names a process of this machine for good; by default this one."""
    pid = os.getpid() if pid is None else pid
    return {
        "host": socket.gethostname(),
        "boot": _or_empty(boot),
        "space": _or_empty(namespace),
        "pid": pid,
        "start": start_time(pid),
    }


def space(kind: str) -> str:
    """What names a namespace of ours among those of all machines. Raises `OSError`.

    `pid`: the table that our process ids are in; `net`: what loopback addresses are of.
    """
    return f"{boot()} {namespace(kind)}"


def namespace(kind: str = "pid") -> str:
    """What names a namespace of ours among those of this machine. Raises `OSError`."""
    return os.readlink(f"/proc/self/ns/{kind}")


def boot() -> str:
    """What names this start of the machine. Raises `OSError`."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def is_local(known: Mapping[str, Any]) -> bool:
    """It is, or was, a process that could be seen from here."""
    if known["host"] != socket.gethostname():
        return False
    # A container may have this host's name, and a table of processes of its own.
    same_table = known.get("space") in (None, _or_empty(namespace))
    return bool(known["boot"] != _or_empty(boot) or same_table)


def is_alive(known: Mapping[str, Any]) -> bool:
    """A process of this machine, as it was recorded, is there."""
    if known["start"] is None:  # it had ended before it was recorded
        return False
    return bool(known["boot"] == _or_empty(boot) and start_time(known["pid"]) == known["start"])


def is_gone(known: Mapping[str, Any]) -> bool:
    """Certainly: what runs on another host, or in another container, cannot be seen from here."""
    return is_local(known) and not is_alive(known)


def _or_empty(name: Callable[[], str]) -> str:
    """Where it cannot be read, all have the same."""
    try:
        return name()
    except OSError:
        return ""
