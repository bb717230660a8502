"""What a command waits for is said on stderr, once it takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

_LONG = 2.0
"""Seconds."""


@contextlib.contextmanager
def say_if_long(command: str, what: str) -> Iterator[None]:
    """Say what is waited for, once, if it takes more than two seconds."""
    timer = threading.Timer(_LONG, _say, [f"phalanx {command}: waiting for {what}\n"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it may be closed, or full
        sys.stderr.write(text)
        sys.stderr.flush()
