"""What names a process for good, and whether the one that is named is certainly gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from phalanx._system.processes import start_time


def identity(pid: int | None = None) -> dict[str, Any]:
    """What names a process of this machine for good; by default this one."""
    pid = os.getpid() if pid is None else pid
    return {
        "host": socket.gethostname(),
        "boot": boot(),
        "space": process_table(),
        "pid": pid,
        "start": start_time(pid),
    }


def process_table() -> str:
    """What names the table that our process ids are in."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def boot() -> str:
    """What names this start of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def is_here(known: Mapping[str, Any]) -> bool:
    """It is, or was, a process that could be seen from here."""
    if known["host"] != socket.gethostname():
        return False
    # A container may have this host's name, and a table of processes of its own.
    return bool(known["boot"] != boot() or known.get("space") in (None, process_table()))


def is_alive(known: Mapping[str, Any]) -> bool:
    """A process of this machine, as it was recorded, is there."""
    return bool(known["boot"] == boot() and start_time(known["pid"]) == known["start"])


def is_gone(known: Mapping[str, Any]) -> bool:
    """Certainly: what runs on another host, or in another container, cannot be seen from here."""
    return is_here(known) and not is_alive(known)
