"""Which files are the user's own, and which were installed."""

from __future__ import annotations

import os

_STDLIB = os.path.dirname(os.__file__) + os.sep


def is_installed(path: str) -> bool:
    """A file of the standard library or of an installed package, not of the user's own code."""
    return path.startswith(_STDLIB) or "/site-packages/" in path or "/dist-packages/" in path
