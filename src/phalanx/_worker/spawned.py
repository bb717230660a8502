"""A worker that is a new interpreter: it reads its part from a descriptor, then runs."""

from __future__ import annotations

import os
import socket
import sys

from phalanx import _wire as wire
from phalanx._worker import worker
from phalanx._worker.hooks import jax_cluster


def main() -> None:
    """Run as a spawned worker; the streams and the environment are already the rank's."""
    part, report, rank = (int(arg) for arg in sys.argv[1:4])
    with open(part, "rb") as file:
        prepare, fork = wire.Decoder().feed(file.read())
    if not isinstance(prepare, wire.Prepare) or not isinstance(fork, wire.ForkWorkers):
        raise TypeError("a spawned worker was started without its part")
    channel = socket.socket(fileno=report)
    channel.set_inheritable(False)
    variables = next(v for v in fork.workers if int(v["RANK"]) == rank)
    assignment = worker.Assignment(prepare, fork, variables, channel, os.getppid())
    worker.adopt(prepare)
    os.environ.update(variables)
    jax_cluster.announce()
    worker.run(assignment, preloaded=())
