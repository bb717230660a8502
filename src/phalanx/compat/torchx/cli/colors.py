"""TorchX's colours: none, unless stdout is a terminal."""

from __future__ import annotations

import sys

__all__ = ["BLUE", "ENDC", "GRAY", "GREEN", "ORANGE"]

_CODES = {"GREEN": "32", "BLUE": "34", "ORANGE": "33", "GRAY": "2", "ENDC": "0"}
_SHOWN = sys.stdout is not None and not sys.stdout.closed and sys.stdout.isatty()
GREEN, BLUE, ORANGE, GRAY, ENDC = (f"\033[{c}m" if _SHOWN else "" for c in _CODES.values())
