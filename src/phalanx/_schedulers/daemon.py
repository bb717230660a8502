"""Processes that see to an app when the command that submitted it has ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from typing import IO

from phalanx._core.environment import users
from phalanx._core.ranks import RANK_VARIABLES

_children: list[subprocess.Popen[bytes]] = []
"""Those of this process that may have ended; they are buried when the next is started."""
_BURYING = threading.Lock()


def start_daemon(log_name: str, module: str, *args: str) -> None:
    """Run a module, in a session of its own, with nothing of ours but the environment."""
    from phalanx._system.machine import python_command

    with _BURYING:
        _children[:] = [child for child in _children if child.poll() is None]
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(_open_log(log_name))
            _children.append(
                subprocess.Popen(
                    python_command(module, *args),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={k: v for k, v in users(os.environ).items() if k not in RANK_VARIABLES},
                    cwd="/",
                    start_new_session=True,
                )
            )


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
