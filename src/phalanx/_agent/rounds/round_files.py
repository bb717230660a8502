"""A round's directory when the round is over: removed, or made ready for the next call."""

from __future__ import annotations

import os
import shutil
import stat

from phalanx._worker.hooks import stack_signal
from phalanx._worker.outcome import PAYLOAD

_FIRST = ("stdout", "stderr", stack_signal.FILE, PAYLOAD)
"""What a worker opens before the user's code."""


def remove(directory: str, ranks: range) -> None:
    """Remove all of it: what workers mostly have by its names, at little cost."""
    try:
        for rank in ranks:
            own = os.path.join(directory, str(rank))
            for name in _FIRST:
                os.unlink(os.path.join(own, name))
            os.rmdir(own)
        os.rmdir(directory)
    except OSError:  # there are others, or none
        shutil.rmtree(directory, ignore_errors=True)


def clear(directory: str, ranks: range) -> None:
    """Leave files that are as good as new, and nothing else.

    To make and to remove files is what a call would cost most, for some file systems the more the
    more often it is done.
    """
    names = set(map(str, ranks))
    try:
        for entry in os.scandir(directory):
            if entry.name not in names or not entry.is_dir(follow_symlinks=False):
                _remove_entry(entry)
                continue
            for file in os.scandir(entry.path):
                if file.name not in _FIRST or not _is_as_new(file):
                    _remove_entry(file)
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)


def _is_as_new(file: os.DirEntry[str]) -> bool:
    found = file.stat(follow_symlinks=False)
    private = found.st_mode == stat.S_IFREG | 0o600 and found.st_uid == os.geteuid()
    return private and found.st_nlink == 1 and not found.st_size


def _remove_entry(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path)
    else:
        os.unlink(entry.path)
