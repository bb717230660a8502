"""What a Python file that is not there was meant to be."""

from __future__ import annotations

import contextlib
import os

from phalanx._core.suggestions import closest, did_you_mean


def near_file(path: str) -> str:
    """A hint at a Python file beside one that is not there; empty where none is like it.

    A module's name is one for its file.
    """
    place, name = os.path.split(path)
    file = name.replace(".", os.sep) + ".py"
    if not name.endswith(".py") and os.path.isfile(os.path.join(place, file)):
        return did_you_mean(file, quoted=False)
    with contextlib.suppress(OSError):
        files = [found for found in os.listdir(place or ".") if found.endswith(".py")]
        return did_you_mean(closest(name, files), quoted=False)
    return ""
