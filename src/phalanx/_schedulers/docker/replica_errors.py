"""What went wrong in a replica, from what its container has left."""

from __future__ import annotations

import re
import time
from dataclasses import replace

from phalanx._schedulers.docker.engine import Engine, explain
from phalanx._schedulers.docker.logs import last_output
from phalanx._schedulers.docker.request import ERROR_PATH
from phalanx._schedulers.replicas.assessment import SeenContainer
from phalanx._schedulers.replicas.error_text import ReplicaError, in_text, reported, shown
from phalanx.errors import SchedulerError

_LONGEST = 1 << 20
_NO_PROGRAM = re.compile(r"\[FATAL tini \(\d+\)\] exec (.*) failed: (.*)")
_NO_PROGRAM_IN_PODMAN = re.compile(
    r"^(?:ERROR \(catatonit:\d+\): \n?)?failed to exec pid1: (.*)", re.MULTILINE
)
_LATE = 0.5
"""Seconds in which Podman has written down what a container that has ended printed."""


def error_of(engine: Engine, container: SeenContainer) -> ReplicaError:
    """The first error that a replica has reported or printed; one without a text if it has none."""
    if container.could_not_start:
        return ReplicaError(explain(container.error))
    if container.out_of_memory:
        limit = f": its limit is {container.memory >> 20} MB" if container.memory else ""
        return ReplicaError(f"out of memory{limit}")
    data = engine.read_file(container.id, ERROR_PATH, _LONGEST)
    error = ReplicaError() if data is None else reported(data.decode("utf-8", "replace"))
    if error.text:
        return replace(error, text=shown(error.text))
    try:
        output = last_output(engine, container.id)
        if not output and time.time() - (container.finished or 0.0) < _LATE:
            time.sleep(_LATE)
            output = last_output(engine, container.id)
    except SchedulerError:
        return error  # its output cannot be read: how it ended is known all the same
    text = in_text(output, killed=container.end.signal is not None)
    if found := _NO_PROGRAM.search(text):
        why = "has no program" if "No such file" in found[2] else "cannot execute"
        return ReplicaError(f"the image {container.image} {why} {found[1]!r}")
    if found := _NO_PROGRAM_IN_PODMAN.search(output):
        why = "has no program" if "No such file" in found[1] else "cannot execute"
        return ReplicaError(f"the image {container.image} {why} {container.program!r}")
    return replace(error, text=shown(text))
