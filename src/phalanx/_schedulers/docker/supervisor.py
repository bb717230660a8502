"""A process that sees to an app: when one of its containers ends, it does what follows.

It knows nothing but the app's id: the rest is in the engine, and if this process is killed, the
next that asks for the app starts another. It waits while the engine is unreachable.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time

from phalanx._schedulers.daemon import start_daemon
from phalanx._schedulers.docker.actions import carry_out
from phalanx._schedulers.docker.engine import Engine
from phalanx.errors import SchedulerUnreachable

_AWAY = 1.0
"""Seconds between two tries to reach an engine."""
_LOG = "local_docker.log"


def start_supervisor(app_id: str) -> subprocess.Popen[bytes]:
    """Start one, in a session of its own, with nothing of ours but the environment."""
    return start_daemon(_LOG, "phalanx._schedulers.docker.supervisor", app_id)


def main() -> None:
    """See to an app until it has ended."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    app_id = sys.argv[1]
    while not _is_done(app_id):
        time.sleep(_AWAY)


def _is_done(app_id: str) -> bool:
    """The app has ended, or is gone. False where the engine is unreachable."""
    try:
        with Engine() as engine, contextlib.closing(engine.events(app_id)) as events:
            while True:  # what happens from now on, while it is looked at, is heard of
                app = engine.find(app_id)
                if app is None or carry_out(engine, app).state.is_final:
                    return True
                if next(events, None) is None:
                    return False
    except SchedulerUnreachable:
        return False
