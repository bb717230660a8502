"""Launches within launches: those that are meant, and those that would never end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

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
    finally:
        _loading = None


def check_may_launch(environ: Mapping[str, str]) -> None:
    """Refuse a launch that would lead to another, and that to another."""
    if _loading is not None:
        raise ConfigError(
            f"{_loading} launches when it is loaded, and each worker that loads it would again. "
            'Put the launch under: if __name__ == "__main__":'
        )
    depth = environ.get(DEPTH, "0")
    if depth.isdigit() and int(depth) >= DEEPEST:
        raise ConfigError(
            f"a launch within {depth} others: does the function launch itself? If that is meant, "
            f"remove {DEPTH} from the environment first."
        )
