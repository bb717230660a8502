"""Processes that see to an app when the command that submitted it has ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import IO

from phalanx._core.environment import users
from phalanx._core.ranks import RANK_VARIABLES

_children: list[subprocess.Popen[bytes]] = []
"""Those of this process that may have ended; they are buried when the next is started."""
_BURYING = threading.Lock()
_AGAIN = 5.0
"""Seconds from the start of one successor to that of the next."""


def start_daemon(log_name: str, module: str, *args: str) -> subprocess.Popen[bytes]:
    """Run a module, in a session of its own, with nothing of ours but the environment.

    Whoever asks what it gives whether the process goes on must not wait for it.
    """
    from phalanx._system.machine import python_command

    with _BURYING:
        _children[:] = [child for child in _children if child.poll() is None]
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(_open_log(log_name))
            child = subprocess.Popen(
                python_command(module, *args),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={k: v for k, v in users(os.environ).items() if k not in RANK_VARIABLES},
                cwd="/",
                start_new_session=True,
            )
            _children.append(child)
            return child


class Successors:
    """Supervisors of apps whose own seem to be gone, started by whoever looks at the apps.

    One at a time for each app; one that has ended as well is replaced, but not at once.
    """

    def __init__(self, start: Callable[[str], subprocess.Popen[bytes]]) -> None:
        """`start` starts the supervisor of an app."""
        self._start = start
        self._started: dict[str, tuple[subprocess.Popen[bytes], float]] = {}

    def start(self, app_id: str) -> None:
        """Start one, unless the last one goes on, or was started just now."""
        now = time.monotonic()
        if found := self._started.get(app_id):
            child, began = found
            if child.poll() is None or now - began < _AGAIN:
                return
        self._started[app_id] = self._start(app_id), now


def _open_log(name: str) -> IO[bytes]:
    """Where they write what went wrong: the one of all apps."""
    from phalanx._registry import directory, make

    try:
        parent = directory().parent
        make(parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.fdopen(os.open(parent / name, flags, 0o600), "ab")
    except (OSError, RuntimeError):
        return open(os.devnull, "ab")
