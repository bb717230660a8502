"""TorchX's command: ours, which exits with its code."""

from __future__ import annotations

import sys

from phalanx._cli import main as _main

__all__ = ["main"]


def main(argv: list[str] | None = None) -> None:
    """Run a command.

    Args:
        argv: Its words; by default those of this process.

    Raises:
        SystemExit: It did not succeed.
    """
    if code := _main(sys.argv[1:] if argv is None else argv):
        raise SystemExit(code)


if __name__ == "__main__":
    main()
