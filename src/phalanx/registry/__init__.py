"""What was launched on this machine, so that another process can ask, and ask for its end.

A directory per app, with small JSON files that are replaced by atomic rename: homes on clusters are
network filesystems. `app.json` is what was launched, and by which process (host, boot, pid, start
time); `status.json` how it stands; `cancel.json`, written by whoever wants the end; `times-N` when
what of rank N's log was written. Nothing here knows how an app is run.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from phalanx.worker.processes import start_time

VERSION = 1

LAUNCH = "launch"
"""What stands for a scheduler in the record of a launch."""

KEPT, PRUNED_TO = 1000, 800
"""How many apps are kept, and how many are left when there are more."""


def directory() -> Path:
    """Where apps are recorded: $XDG_STATE_HOME/phalanx/apps, else under ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "phalanx" / "apps"


def owner(pid: int | None = None) -> dict[str, Any]:
    """What names a process of this machine for good; by default this one."""
    pid = os.getpid() if pid is None else pid
    return {"host": socket.gethostname(), "boot": boot(), "pid": pid, "start": start_time(pid)}


def boot() -> str:
    """What names this start of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def replace(path: Path, value: Any) -> None:
    """Write a file anew; whoever reads sees the old one or the new."""
    new = path.with_suffix(f".{os.getpid()}.new")
    with open(new, "w", opener=lambda p, f: os.open(p, f, 0o600)) as file:
        json.dump(value, file, default=str)
    os.replace(new, path)


def read(path: Path) -> dict[str, Any] | None:
    """What is in a file; None where there is none, or something else."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def prune(root: Path) -> None:
    """Forget the oldest of very many apps that have ended."""
    names = os.listdir(root)
    if len(names) <= KEPT:
        return
    from phalanx.registry.recorded import apps

    ended = [app for app in apps(root) if app.state.is_final]
    for app in ended[: max(0, len(names) - PRUNED_TO)]:
        app.remove()
