"""Launches within launches: those that are meant, and those that would never end."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from phalanx.errors import ConfigError

DEPTH = "PHALANX_DEPTH"
"""How many launches a worker is within."""
DEEPEST = 3

_loading: str | None = None


@contextmanager
def loading(what: str) -> Iterator[None]:
    """While the user's code is loaded, and not called yet: it must not launch."""
    global _loading  # noqa: PLW0603 one per process, as modules are
    _loading = what
    try:
        yield
    except SystemExit as stop:
        where = _where(stop.__traceback__)
        raise ConfigError(
            f"{what} exits when it is loaded: {where} calls sys.exit({stop.code!r}). "
            'Put the program under: if __name__ == "__main__":'
        ) from None
    finally:
        _loading = None


def _where(trace: TracebackType | None) -> str:
    """The last line that is the user's own: not of Python's library, nor of ours."""
    where = "it"
    ours = os.path.dirname(os.path.dirname(__file__)) + os.sep
    library = os.path.dirname(os.__file__) + os.sep
    for frame, line in traceback.walk_tb(trace):
        path = frame.f_code.co_filename
        installed = path.startswith(library) and "-packages" not in path
        if not installed and not path.startswith(("<frozen", ours)):
            where = f"{path}, line {line},"
    return where


def check_may_launch(environ: Mapping[str, str]) -> None:
    """Refuse a launch that would lead to another, and that to another."""
    if _loading is not None:
        raise ConfigError(
            f"{_loading} calls launch when it is imported, so every worker would launch again. "
            'Put the launch under: if __name__ == "__main__":'
        )
    depth = environ.get(DEPTH, "0")
    if depth.isdigit() and int(depth) >= DEEPEST:
        raise ConfigError(
            f"{depth} nested launches: does the function launch itself? If this is intended, "
            f"remove {DEPTH} from the environment."
        )
