"""What a Python file that is not there was meant to be."""

from __future__ import annotations

import contextlib
import os

from phalanx._core.suggestions import closest, did_you_mean


def near_file(path: str) -> str:
    """A hint at a Python file beside one that is not there; empty where none is like it."""
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(os.path.dirname(path) or ".") if name.endswith(".py")]
        return did_you_mean(closest(os.path.basename(path), names), quoted=False)
    return ""
