"""JSON and log files in directories that others, or a crash, may have left something else in."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import IO, Any

from phalanx._core.json_text import parse_json

_LARGEST = 1 << 28
"""Bytes: room for the status of more workers than anyone has."""


def load_json(path: str | os.PathLike[str], is_own: Callable[[int], bool] | None = None) -> Any:
    """What is in a file; `is_own` says of which users it may be.

    Raises `OSError` for what is no regular file or another user's, `ValueError` for what is not
    JSON. Waits for nobody, as whoever reads a pipe does, and follows no link.
    """
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > _LARGEST:
            raise OSError(f"{path} is not a file of ours")
        if is_own is not None and not is_own(found.st_uid):
            raise OSError(f"{path} belongs to another user")
        return parse_json(file.read())


def open_to_append(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a log file, made if need be; not where a link leads that others may have put there."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, 0o666), "ab", buffering=0)


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file to read it. Raises `OSError` for anything else; waits for nobody."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(f"{path} is not a regular file")
        return open(number, "rb")
    except OSError:
        os.close(number)
        raise
