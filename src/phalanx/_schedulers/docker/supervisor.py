"""A process that sees to an app: when one of its containers ends, it does what follows.

It knows nothing but the app's id: the rest is in the engine, and if this process is killed, the
next that asks for the app starts another. It waits for an engine that goes away and comes back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO

from phalanx._core.environment import users
from phalanx._core.ranks import RANK_VARIABLES
from phalanx._schedulers.docker.actions import carry_out
from phalanx._schedulers.docker.engine import Engine, EngineGone

_AWAY = 1.0
"""Seconds between two tries to reach an engine that is away."""
_LOG = "local_docker.log"

_children: list[subprocess.Popen[bytes]] = []
"""Supervisors of this process that may have ended; they are buried when the next is started."""
_BURYING = threading.Lock()


def start_supervisor(app_id: str) -> None:
    """Start one, in a session of its own, with nothing of ours but the environment."""
    from phalanx._system.machine import python_command

    with _BURYING:
        _children[:] = [child for child in _children if child.poll() is None]
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(_open_log())
            _children.append(
                subprocess.Popen(
                    python_command("phalanx._schedulers.docker.supervisor", app_id),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={k: v for k, v in users(os.environ).items() if k not in RANK_VARIABLES},
                    cwd="/",
                    start_new_session=True,
                )
            )


def _open_log() -> IO[bytes]:
    """Where supervisors write what went wrong: the one of all apps."""
    from phalanx._registry import directory

    try:
        place = directory().parent
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.fdopen(os.open(place / _LOG, flags, 0o600), "ab")
    except (OSError, RuntimeError):
        return open(os.devnull, "ab")


def main() -> None:
    """See to an app until it has ended."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    app_id = sys.argv[1]
    while not _is_done(app_id):
        time.sleep(_AWAY)


def _is_done(app_id: str) -> bool:
    """The app has ended, or is gone. False where the engine is away."""
    try:
        with Engine() as engine, contextlib.closing(engine.events(app_id)) as events:
            while True:  # what happens from now on, while it is looked at, is heard of
                app = engine.find(app_id)
                if app is None or carry_out(engine, app).state.is_final:
                    return True
                if next(events, None) is None:
                    return False
    except EngineGone:
        return False
