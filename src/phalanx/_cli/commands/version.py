"""`phalanx version`."""

from __future__ import annotations

import sys

from phalanx import __version__


def main(arguments: list[str]) -> int:
    """Print the version."""
    if arguments in (["-h"], ["--help"]):
        print("usage: phalanx version\n\nPrint the version.")
        return 0
    if arguments:
        print(f"phalanx version: unexpected argument {arguments[0]!r}.", file=sys.stderr)
        return 2
    print(f"phalanx {__version__}")
    return 0
