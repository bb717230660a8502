"""What was launched on this machine, so that another process can ask, and ask for its end.

A directory per app, with small JSON files that are replaced by atomic rename: homes on clusters are
network filesystems. `app.json` is what was launched, and by which process (host, boot, pid, start
time); `status.json` how it stands, with `status.reserve` to have room on the disk for its end;
`cancel.json`, written by whoever wants the end; `stacks/`, for those who want to know where its
workers are, and the answers to them; `times-N` when what of rank N's log was written. An app on a
scheduler has `definition.json`, what it was made from, as well, and what its supervisor needs.
Nothing here knows how an app is run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import threading
from pathlib import Path
from typing import Any

from phalanx._system.identity import identity
from phalanx._system.small_files import load_json
from phalanx._system.user_directories import is_own, user_directory

VERSION = 1

LAUNCH = "launch"
"""What stands for a scheduler in the record of a launch."""

_ROOM, _ROOM_FOR_ONE = 4096, 1024
"""Bytes that a status may have, and on top for each of its parts."""


def directory() -> Path:
    """Where apps are recorded: $XDG_STATE_HOME/phalanx/apps, else under ~/.local/state.

    Raises `RuntimeError` where nobody knows what the home directory is, or other users could put
    something there: whoever can write a record can end the app, or have its reader wait for ever.
    """
    own = Path(user_directory(os.environ, "XDG_STATE_HOME", ".local/state")) / "phalanx"
    for path in (own, own / "apps"):
        _check_owner(path)
    return own / "apps"


def _check_owner(path: Path) -> None:
    try:
        found = path.stat()
    except OSError:
        return  # it is not there, or whoever uses it is told why not
    if not is_own(found.st_uid):
        raise RuntimeError(f"{path} belongs to another user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RuntimeError(f"{path} is writable by others. Run: chmod 700 {path}")


def make(path: Path) -> None:
    """Make a directory for the user alone, and those above it that are not there, whatever the
    umask is: one that others can write would not be used again. Raises `OSError`.
    """
    for level in (*reversed(path.parents), path):
        if level.is_dir():
            continue
        try:
            level.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError:
            why = os.strerror(errno.ENOTDIR)
            raise NotADirectoryError(errno.ENOTDIR, why, str(level)) from None


def owner(pid: int | None = None) -> dict[str, Any]:
    """What names the process that runs an app; by default this one."""
    return identity(pid)


def directory_name(scheduler: str, session: str, app_id: str) -> str:
    """The directory of an app whose id another scheduler may have given as well."""
    from urllib.parse import quote

    return "@".join(quote(part, safe="") for part in (scheduler, session, app_id))


def replace(path: Path, value: Any, *, last: bool = False) -> None:
    """Write a file anew; whoever reads sees the old one or the new.

    Raises `OSError`, and leaves nothing half-written. The `last` word has the room that was
    reserved for it, if the disk is full.
    """
    data = json.dumps(value, default=str).encode()
    new = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}-{os.urandom(3).hex()}.new")
    try:
        _write_new(new, data)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        if not last or not _use_reserve(path, data):
            raise
    if last:
        with contextlib.suppress(OSError):
            _reserve_of(path).unlink(missing_ok=True)


def _write_new(path: Path, data: bytes) -> None:
    with open(path, "xb", opener=lambda p, f: os.open(p, f, 0o600)) as file:
        file.write(data)


def append(path: Path, line: str) -> None:
    """Add a line to a file that nobody else writes: all of it, or nothing. Raises `OSError`."""
    data = line.encode()
    with open(path, "ab", buffering=0) as file:
        size = file.tell()
        if file.write(data) != len(data):
            file.truncate(size)  # what comes next would continue the line
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def reserve(path: Path, parts: int) -> None:
    """Keep room on the disk for a status that so many workers or replicas are part of.

    Written, not only allocated: not all file systems can do that. Raises `OSError`: what has no
    room for how it ends is better refused, or not recorded, than lost then.
    """
    reserve, size = _reserve_of(path), _ROOM + _ROOM_FOR_ONE * parts
    try:
        _write_new(reserve, b" " * size)
    except OSError:
        with contextlib.suppress(OSError):
            reserve.unlink(missing_ok=True)
        raise


def _reserve_of(path: Path) -> Path:
    return path.with_suffix(".reserve")


def _use_reserve(path: Path, data: bytes) -> bool:
    """Write over what was reserved, which takes no room, and put it in place."""
    reserve = _reserve_of(path)
    try:
        with open(reserve, "r+b", buffering=0) as file:
            if os.fstat(file.fileno()).st_size < len(data) or file.write(data) != len(data):
                return False
            file.truncate()
        os.replace(reserve, path)
    except OSError:
        return False
    return True


def read(path: Path) -> dict[str, Any] | None:
    """What is in a file; None where there is none, or something else.

    Others may have left something there while they could: it is none of ours, and neither holds up
    nor ends whoever reads all records.
    """
    try:
        value = load_json(path, is_own)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def cancel_asked(path: Path) -> dict[str, Any] | None:
    """What someone who wants an app's end has written into its directory: at least a `grace`,
    which may be None.
    """
    asked = read(path / "cancel.json")
    if asked is None:
        return None
    grace = asked.get("grace")
    if not isinstance(grace, int | float) or not 0 <= grace < math.inf:
        grace = None
    return {**asked, "grace": grace}
