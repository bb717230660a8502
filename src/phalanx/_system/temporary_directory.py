"""Where temporary files go that nobody else may replace."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import tempfile

_PUBLIC = "/tmp"  # noqa: S108 everybody's, and each file its owner's


def place() -> str:
    """The temporary directory, unless other users can replace what is in it."""
    chosen = os.path.abspath(tempfile.gettempdir())
    return _PUBLIC if _is_open_to_others(chosen) and not _is_open_to_others(_PUBLIC) else chosen


def _is_open_to_others(directory: str) -> bool:
    try:
        info = os.stat(directory)
    except OSError:
        return True
    if info.st_uid not in (0, os.geteuid()):
        return True
    shared = stat.S_IWOTH if _is_own_group(info.st_gid) else stat.S_IWOTH | stat.S_IWGRP
    return bool(info.st_mode & shared) and not info.st_mode & stat.S_ISVTX


def _is_own_group(number: int) -> bool:
    """The group that a user has for themselves, as many systems make one for each."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return user.pw_gid == number and not set(group.gr_mem) - {user.pw_name}
