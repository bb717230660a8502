"""What is left on this machine by agents that were killed: spool directories, workers' orphans.

An agent's spool says whose it is. When that very process is certainly gone, nobody but us will ever
remove the directory, nor end what carries its name: the zygote and everything forked from it in
their first environment, everything that workers have started in a variable that they were given.
Where this user may make a control group, they are in one: then it does not matter what they have
done to their environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import tempfile
import time
import zlib
from collections.abc import Mapping
from typing import Any

from phalanx._core.ranks import SPOOL, STOP_FILE
from phalanx._system import cgroup, processes, temporary_directory
from phalanx._system.identity import identity, is_gone
from phalanx._system.processes import start_time
from phalanx._system.small_files import load_json

PRELOADING = "preloading"
"""The file in a spool that names the package which its zygote imports."""
_PREFIX = "phalanx-"
_NAME = re.compile(r"phalanx-([0-9a-f]{8})-(\d+)-(\d+)-\w+")
"""Where its owner's process is, its number and its start."""
_OWNER = "owner.json"
_GROUP = "cgroup"
"""The file that names the control group."""
_HALF_MADE = 60.0
"""Seconds after which an empty directory is nobody's: an owner is written down at once."""
_PATIENCE = 5.0


def make_spool(app: str) -> str:
    """Make a directory for this process alone, which says whose it is. Raises `OSError`.

    By its name as well: this process may be killed before it has written anything down.
    """
    own = identity()
    prefix = f"{_PREFIX}{_process_table(own)}-{own['pid']}-{own['start']}-"
    spool = tempfile.mkdtemp(prefix=prefix, dir=temporary_directory.place())
    os.chmod(spool, 0o700)  # whatever the umask, so that it can be removed
    try:
        with open(os.path.join(spool, _OWNER), "w") as file:
            json.dump({"app": app, **own}, file)
    except OSError:
        shutil.rmtree(spool, ignore_errors=True)
        raise
    return spool


def make_group(spool: str) -> None:
    """Make a control group for what will be `adopt`ed, if that can be."""
    group = cgroup.make(os.path.basename(spool))
    if group is not None:
        with open(os.path.join(spool, _GROUP), "w") as file:
            file.write(group)


def adopt(spool: str, pid: int) -> None:
    """Have a process, with all that it will start, be in the control group, if there is one."""
    with contextlib.suppress(OSError), open(os.path.join(spool, _GROUP)) as file:
        cgroup.enter(file.read(), pid)


def remove(spool: str) -> bool:
    """Remove the directory, with the control group and whoever is in it; whether nobody is left."""
    gone = True
    if not os.path.basename(spool).startswith(_PREFIX):
        return gone
    with contextlib.suppress(OSError), open(os.path.join(spool, _GROUP)) as file:
        group = file.read()
        gone = os.path.basename(group) != os.path.basename(spool) or cgroup.end(group)
    shutil.rmtree(spool, ignore_errors=True)
    return gone


def sweep() -> None:
    """End and remove what this user's agents that are gone have left. Nothing it does fails."""
    processes.wake_orphans()
    with contextlib.suppress(OSError):
        directory = temporary_directory.place()
        for name in os.listdir(directory):
            spool = os.path.join(directory, name)
            if name.startswith(_PREFIX) and _is_abandoned(spool):
                clear(spool)


def clear(spool: str) -> bool:
    """End what is left of an agent that is gone, by its spool, and remove that.

    Gives whether it was seen that nothing runs any more.
    """
    gone = _end_marked(spool)
    return remove(spool) and gone


def end_agent(pid: int, start: int | None, spool: str) -> bool:
    """End an agent, if it is still the process that was meant, and clear what it has left.

    Gives whether it was seen that nothing runs any more.
    """
    gone = True
    if start and processes.start_time(pid) == start:
        gone = processes.kill_tree(pid)
    if spool:
        return clear(spool) and gone
    sweep()
    return gone


def _is_abandoned(spool: str) -> bool:
    try:
        found = os.lstat(spool)
    except OSError:
        return False
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if not private or found.st_uid != os.geteuid():
        return False
    try:
        known: Any = load_json(os.path.join(spool, _OWNER))
        sound = isinstance(known["pid"], int) and isinstance(known["start"], int)
        return sound and is_gone(known)
    except FileNotFoundError:
        if _is_owner_gone(spool):
            return True  # killed before it wrote, or somebody else who has swept half of it was
        _remove_half_made(spool, found.st_mtime)
        return False
    except ValueError:
        return _is_owner_gone(spool)  # killed while it wrote, if this is one of ours
    except (OSError, TypeError, KeyError):
        return False


def _remove_half_made(spool: str, changed: float) -> None:
    """Its agent was killed at that very moment; or it is none of these directories."""
    if time.time() - changed > _HALF_MADE:
        with contextlib.suppress(OSError):
            os.rmdir(spool)


def _is_owner_gone(spool: str) -> bool:
    """Certainly, by the name alone; of another machine, or another start of it, nothing is."""
    found = _NAME.fullmatch(os.path.basename(spool))
    if found is None:
        return False
    table, pid, start = found.groups()
    return table == _process_table(identity()) and start_time(int(pid)) != int(start)


def _process_table(known: Mapping[str, Any]) -> str:
    """What stands for a table of processes, short enough for a name."""
    words = "\0".join(str(known[key]) for key in ("host", "boot", "space"))
    return f"{zlib.crc32(words.encode(errors='surrogateescape')):08x}"


def _end_marked(spool: str) -> bool:
    """Kill what is known by its environment, until nothing is found; whether that was so."""
    limit = time.monotonic() + _PATIENCE
    pause = 0.001
    while found := [pid for pid in _marked(spool) if processes.start_time(pid) is not None]:
        for pid in found:
            with contextlib.suppress(OSError):
                processes.send(pid, signal.SIGKILL)
        if time.monotonic() > limit:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return True


def _marked(spool: str) -> list[int]:
    first = os.fsencode(f"{SPOOL}={spool}")
    given = os.fsencode(f"{STOP_FILE}={os.path.join(spool, '')}")
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
            if pid != os.getpid() and any(v == first or v.startswith(given) for v in variables):
                found.append(pid)
    return found
