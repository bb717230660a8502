"""Copies a file: what `utils.copy` runs. Its text travels: it stands alone."""

from __future__ import annotations

import shutil
import sys
from typing import IO


def open_file(location: str, mode: str) -> IO[bytes]:
    """Open a path, or whatever else fsspec knows."""
    if "://" not in location:
        return open(location, mode)
    try:
        import fsspec
    except ImportError:
        sys.exit("URLs need fsspec: pip install fsspec")
    file: IO[bytes] = fsspec.open(location, mode).open()
    return file


def main() -> None:
    """`SRC DST`."""
    source, destination = sys.argv[1:]
    try:
        with open_file(source, "rb") as incoming, open_file(destination, "wb") as outgoing:
            shutil.copyfileobj(incoming, outgoing, 1 << 20)
    except OSError as error:
        sys.exit(f"cannot copy {source} to {destination}: {error}")


if __name__ == "__main__":
    main()
