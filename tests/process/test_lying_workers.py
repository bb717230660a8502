"""A worker that writes what it likes into its report socket and its files fails alone."""

import contextlib
import os
import socket
import time

import pytest

import phalanx
from phalanx import _wire as wire
from phalanx.errors import ResultError, WorkerFailed
from phalanx._core.rounds import Ended, ExceptionInfo, Outcome
from tests.conftest import wait_until


def reports():
    """The socket that all workers of a host report through."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(int(name)))
            if found.type == socket.SOCK_SEQPACKET:
                return found
            found.close()
    raise AssertionError("there is none")


def say(*messages):
    with reports() as channel:
        for message in messages:
            channel.send(message if isinstance(message, bytes) else wire.encode(message))


def report(rank, kind=Ended.RETURNED, **fields):
    return wire.WorkerEnded(rank=rank, outcome=Outcome(rank, kind, time.monotonic(), **fields))


def forge(done):
    """Rank 1 speaks for others, and nonsense; rank 0 waits until it has."""
    if phalanx.context().rank == 1:
        exception = ExceptionInfo("Forged", "it was rank 0", "")
        say(b"", b"\0" * 999, b"PHX", os.urandom(4000))
        say(
            report(0, Ended.RAISED, exception=exception),
            report(77),
            report(-1),
            report(1, Ended.LOST),
        )
        say(wire.WorkerEntered(app="x", round=9, rank=0, clock=float("inf")))
        say(
            wire.WorkerEntered(app="x", round=9, rank=0, clock=1.0),
            wire.AgentGone(message="forged"),
            wire.ShutDown(),
        )
        open(done, "w").close()
    wait_until(lambda: os.path.exists(done))
    return phalanx.context().rank


@pytest.mark.parametrize("start_method", ["zygote", "spawn"])
def test_a_worker_speaks_for_itself_alone(tmp_path, start_method):
    """Who has sent a report is known from the kernel."""
    launcher = phalanx.Launcher(workers_per_host=3, backend=None, start_method=start_method)
    assert launcher.run(forge, {"done": str(tmp_path / "done")}).values == (0, 1, 2)


def claim():
    """Report a success before there is a value."""
    if phalanx.context().rank == 1:
        say(report(1))
        time.sleep(60)
    return "honest"


def test_a_success_without_a_value_is_that_ranks_failure():
    """The others' values do not move into its place."""
    with pytest.raises(ResultError, match="rank 1 .* returned a value.*arrived incomplete"):
        phalanx.Launcher(workers_per_host=2, backend=None, stop_grace=1.0).run(claim)


def misuse(what):
    path = os.environ["TORCHELASTIC_ERROR_FILE"]
    if phalanx.context().rank == 1:
        if what == "pipe":
            os.mkfifo(path)
            os.mkfifo(os.path.join(os.path.dirname(path), "report"))
        elif what == "link":
            os.symlink("/dev/zero", path)
            os.symlink("/dev/zero", os.path.join(os.path.dirname(path), "report"))
        elif what == "directory":
            os.mkdir(path)
            os.mkdir(os.path.join(os.path.dirname(path), "report"))
        else:
            with open(path, "w") as file:
                file.write("[" * 100_000)
        os._exit(3)
    time.sleep(60)


@pytest.mark.parametrize("what", ["pipe", "link", "directory", "deep"])
def test_files_of_a_workers_own_making_do_not_hold_up_its_agent(what):
    """How it ended is told all the same."""
    with pytest.raises(WorkerFailed, match="rank 1 .* exited with code 3") as failed:
        phalanx.Launcher(workers_per_host=2, backend=None, stop_grace=1.0).run(
            misuse, {"what": what}
        )
    assert failed.value.exit_code == 3
