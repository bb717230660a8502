"""Files and directories that are not there: what to say, and what was meant to be."""

from __future__ import annotations

import contextlib
import os

from phalanx._core.suggestions import closest, did_you_mean
from phalanx.errors import ConfigError

_GONE = "the current directory no longer exists; change to another one."


def current_directory() -> str:
    """For what cannot do without one. Raises `ConfigError` where it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ConfigError(_GONE) from None


def no_such_file(file: str, directory: str = "") -> str:
    """What to say of a Python file, as the user named it, that is not there."""
    path = os.path.join(directory, os.path.expanduser(file))
    if not os.path.isabs(path):
        try:
            current_directory()
        except ConfigError as error:
            return str(error)
    return f"no such file: {file}.{near_file(path)}"


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
