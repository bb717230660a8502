"""Copies a file: what `utils.copy` runs."""

from __future__ import annotations

import shutil
import sys

from phalanx.components._places import open_file


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
