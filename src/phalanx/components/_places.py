"""Files that may be somewhere else: paths, or whatever fsspec knows."""

from __future__ import annotations

import os
import sys
from typing import IO, Any


def is_there(place: str) -> bool:
    """There is such a file."""
    if "://" not in place:
        return os.path.exists(place)
    system, path = _fsspec().core.url_to_fs(place)
    return bool(system.exists(path))


def open_file(place: str, mode: str) -> IO[bytes]:
    """Open one."""
    if "://" not in place:
        return open(place, mode)
    file: IO[bytes] = _fsspec().open(place, mode).open()
    return file


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError:
        sys.exit("places other than paths need fsspec: pip install fsspec")
    return fsspec
