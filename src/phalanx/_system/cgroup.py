"""Control groups: one of our own, where this user may make it, from which nothing escapes; and what
the kernel has counted in the one that we are in.

Ours are of version 2 alone, below the group that this process is in: where that was delegated to
the user (a desktop's terminal, a service of the user's, `systemd-run --user`, some containers), or
to root.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Mapping

_PATIENCE = 5.0


def make(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Make a group; its directory, or None where that cannot be."""
    if "SLURM_JOB_ID" in environ:
        return None  # it counts, and ends, what is in groups of its own
    own = _own()
    if own is None or not os.path.exists(os.path.join(own, "cgroup.procs")):
        return None
    group = os.path.join(own, name)
    try:
        os.mkdir(group)
    except OSError:
        return None
    if os.access(os.path.join(group, "cgroup.kill"), os.W_OK):  # Linux 5.14
        return group
    os.rmdir(group)
    return None


def enter(group: str, pid: int) -> None:
    """Have a process, and all that it will start, be in the group. Raises `OSError`."""
    _write(os.path.join(group, "cgroup.procs"), pid)


def end(group: str) -> bool:
    """Kill what is in the group, but for this process, and remove it; whether nothing is left."""
    if not os.path.isdir(group):
        return True
    with contextlib.suppress(OSError):
        if os.getpid() in _pids(group):
            enter(os.path.dirname(group), 0)
        limit = time.monotonic() + _PATIENCE
        while _is_populated(group):
            _write(os.path.join(group, "cgroup.kill"), 1)
            if time.monotonic() > limit:
                return False
            time.sleep(0.002)
        for parent, _, _ in os.walk(group, topdown=False):
            os.rmdir(parent)
    return not os.path.isdir(group)


def oom_kills() -> int | None:
    """How many processes of this one's group were killed for want of memory; None: not known."""
    for controller, name in (("", "memory.events"), ("memory", "memory.oom_control")):
        group = _own(controller)
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(group or "/", name)) as file:
                words = file.read().split()
            return int(words[words.index("oom_kill") + 1])
    return None


def _own(controller: str = "") -> str | None:
    """The directory of the group that this process is in, as it is mounted here.

    Of version 2, or that of a controller of version 1.
    """
    try:
        with open("/proc/self/cgroup") as file:
            return _mounted(file.read(), controller)
    except OSError:
        return None


@functools.lru_cache(maxsize=4)
def _mounted(groups: str, controller: str) -> str | None:
    """Where a process of these groups finds its own; looked up once, since mounts may be many."""
    kind = " - cgroup " if controller else " - cgroup2 "
    lines = [line.split(":", 2) for line in groups.splitlines()]
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split() for line in file if kind in line]
    paths = [path for _, controllers, path in lines if controller in controllers.split(",")]
    if controller:
        mounts = [mount for mount in mounts if controller in mount[-1].split(",")]
    if not paths or not mounts:
        return None
    root, point = mounts[0][3], mounts[0][4]
    inside = os.path.relpath(paths[0], root)
    return None if inside.startswith("..") else os.path.normpath(os.path.join(point, inside))


def _pids(group: str) -> list[int]:
    with open(os.path.join(group, "cgroup.procs")) as file:
        return [int(line) for line in file]


def _is_populated(group: str) -> bool:
    with open(os.path.join(group, "cgroup.events")) as file:
        return "populated 1" in file.read()


def _write(path: str, value: int) -> None:
    with open(path, "w") as file:
        file.write(str(value))
