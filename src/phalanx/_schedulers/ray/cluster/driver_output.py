"""What a driver of ours writes on its node: the job's log, and the app's state beside it.

The disk may be full: what could not be written is counted, and the state has room of its own.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from phalanx import _registry
from phalanx._schedulers.ray import job_log
from phalanx._schedulers.ray.cluster.nodes import logs_directory


class JobLog:
    """This process's standard output, which never raises."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._lost = 0
        self._reason = ""
        self._is_cut = False
        """The last that is there is not a whole line."""

    def write(self, text: str) -> None:
        """Write lines; those that cannot be are lost, and counted."""
        data = text.encode()
        left = b"\n" + data if self._is_cut else data
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
                self._is_cut = bool(left)
        except OSError as error:
            self._lost += min(len(left), len(data))
            self._reason = error.strerror or str(error)

    @property
    def loss(self) -> str:
        """What was lost, and why; empty if nothing was."""
        return f"{self._lost} bytes ({self._reason})" if self._lost else ""


class StateFile:
    """Among the logs of this node: the dashboard gives it to whoever asks."""

    def __init__(self, app: str, num_replicas: int) -> None:
        """Keep room for the app's end."""
        logs = logs_directory()
        self._path = None if logs is None else Path(logs, job_log.status_file(app))
        if self._path is not None:
            with contextlib.suppress(OSError):
                _registry.reserve(self._path, num_replicas)

    def write(self, said: dict[str, Any], *, last: bool) -> None:
        """Replace what it says. What cannot be written is in the job's log, too."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                _registry.replace(self._path, said, last=last)
