"""Deletes the pods of a launcher that was killed.

A process beside the launcher, in a session of its own. It does nothing while the launcher lives,
and loads nothing; when that is gone, or has asked for it, it deletes the lease's objects, for as
long as it takes the API server to answer. The launcher kills it when there is nothing left to do.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx._schedulers.kubernetes.api.cluster import Cluster

LEASE = "phalanx/lease"
"""The label of all that belongs to a lease: its id."""
_LOOKED = 1.0
_PATIENCE = 3600.0
"""Seconds for which an API server that does not answer is tried."""
_AGAIN = 2.0


class Guard:
    """The process, as the launcher sees it."""

    def __init__(self, context: str, namespace: str, lease: str, *, has_secret: bool) -> None:
        """Start it."""
        module = "phalanx._schedulers.kubernetes.hosts.guard"
        words = (str(os.getpid()), context, namespace, lease, "secret" if has_secret else "")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        """There is nothing left to delete. Idempotent."""
        self._process.kill()
        self._process.communicate()

    def take_over(self) -> None:
        """Delete what there is, whatever becomes of us. Idempotent."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(b".")
            self._process.stdin.close()


def main() -> None:
    """Wait, and delete. Arguments: the launcher's process, context, namespace, lease, secret."""
    launcher, context, namespace, lease, secret = sys.argv[1:]
    while os.getppid() == int(launcher):
        if select.select([0], [], [], _LOOKED)[0]:
            break
    _delete_all(context, namespace, lease, has_secret=bool(secret))


def _delete_all(context: str, namespace: str, lease: str, *, has_secret: bool) -> None:
    from phalanx._schedulers.kubernetes.api.cluster import Cluster
    from phalanx.errors import PhalanxError

    limit = time.monotonic() + _PATIENCE
    clean = 0
    while clean < 2 and time.monotonic() < limit:
        try:
            with Cluster(context=context or None, namespace=namespace) as cluster:
                found = delete_lease(cluster, lease, has_secret=has_secret)
            clean = 0 if found else clean + 1
        except PhalanxError:
            clean = 0
        time.sleep(_AGAIN)  # also when all is clean: a request of the launcher's may be on its way


def delete_lease(cluster: Cluster, lease: str, *, has_secret: bool) -> bool:
    """Delete all that belongs to a lease; whether there were pods. Raises `SchedulerError`."""
    pods = cluster.list("pods", f"{LEASE}={lease}")
    for pod in pods:
        cluster.delete("pods", pod["metadata"]["name"], grace=0)
    if has_secret:
        cluster.delete("secrets", lease)
    return bool(pods)


if __name__ == "__main__":
    main()
