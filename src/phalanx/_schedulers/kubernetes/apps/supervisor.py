"""A process that sees to an app: when one of its Jobs ends, it does what follows.

It knows nothing but the app's id: the rest is in the cluster, and if this process is killed, the
next that asks for the app starts another. It waits while the API server is unreachable.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from phalanx._schedulers.daemon import start_daemon
from phalanx._schedulers.kubernetes import names
from phalanx._schedulers.kubernetes.api.cluster import Cluster
from phalanx._schedulers.kubernetes.apps.actions import carry_out, find, is_due
from phalanx._schedulers.kubernetes.names import AppName
from phalanx.errors import SchedulerUnreachable

_LOG = "kubernetes.log"
_INTERVAL = 0.5
"""Seconds between two looks at the Jobs."""
_LATER = 3.0
"""The same of an app that has run for a while."""
_A_WHILE = 120.0


def start_supervisor(app_id: str) -> subprocess.Popen[bytes]:
    """Start one, in a session of its own, with nothing of ours but the environment."""
    return start_daemon(_LOG, "phalanx._schedulers.kubernetes.apps.supervisor", app_id)


def main() -> None:
    """See to an app until it has ended."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    app = AppName.parse(sys.argv[1])
    if app is None:
        raise SystemExit(f"no id of an app: {sys.argv[1]!r}")
    began = time.monotonic()
    with Cluster(context=app.context, namespace=app.namespace) as cluster:
        before: list[tuple[str, str]] | None = None
        while True:
            try:
                now: list[tuple[str, str]] | None = _jobs(cluster, app.name)
                if now != before:
                    seen = find(cluster, app.name)
                    if seen is None:
                        return
                    assessed = carry_out(cluster, seen, str(app))
                    if assessed.state.is_final:
                        return
                    if is_due(assessed):
                        now = None  # until it is done, also where no Job tells of it
                before = now
            except SchedulerUnreachable:
                before = None
            time.sleep(_INTERVAL if time.monotonic() - began < _A_WHILE else _LATER)


def _jobs(cluster: Cluster, name: str) -> list[tuple[str, str]]:
    """What has changed when this has."""
    found = cluster.list("jobs", f"{names.APP}={name}")
    return [(one["metadata"]["uid"], one["metadata"]["resourceVersion"]) for one in found]
