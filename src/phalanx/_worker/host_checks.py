"""A process that checks its host before workers start there, beside the user's own packages.

What it is to check it reads from a descriptor; for each check it writes a line of JSON when it
begins and one when it has ended, so that whoever waits can tell which one hangs.
"""

from __future__ import annotations

import json
import os
import sys

from phalanx import _wire as wire
from phalanx._remote.probe import check
from phalanx._system import processes
from phalanx._worker import worker

_LONGEST = 4 << 10


def main() -> None:
    """Check, one after the other, and end."""
    part, parent = int(sys.argv[1]), int(sys.argv[2])
    processes.die_with_parent(parent)
    told = os.dup(1)
    os.dup2(2, 1)  # what the user's functions print is no answer
    with open(part, "rb") as file:
        prepare, asked = wire.Decoder().feed(file.read())
    if not isinstance(prepare, wire.Prepare) or not isinstance(asked, wire.CheckHost):
        raise TypeError("a host was to be checked without being told how")
    worker.adopt(prepare)
    for name, value in asked.checks.items():
        _tell(told, begin=name)
        _tell(told, end=name, problem=check(name, value, asked.clock))
    for name, pickled in asked.functions.items():
        _tell(told, begin=name)
        _tell(told, end=name, problem=_problem(pickled))


def _problem(pickled: bytes) -> str:
    import pickle

    try:
        said = pickle.loads(pickled)()  # noqa: S301 the launcher's own
    except Exception as error:  # noqa: BLE001 whatever it is, the host did not pass
        return f"{type(error).__name__}: {error}"[:_LONGEST]
    return "" if said is None or said is True else str(said)[:_LONGEST] or "it failed"


def _tell(told: int, **message: str) -> None:
    os.write(told, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
