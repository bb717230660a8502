"""Workers that do not get on: named by rank, host and frame, and ended by the app's policy."""

import ctypes
import itertools
import math
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest

import phalanx
from phalanx import metrics
from phalanx._agent.stacks import native_frames
from tests.conftest import wait_until
from tests.process.commands import phalanx as command

HUNG = "rank 1 on localhost has not called phalanx.heartbeat() for 3 s; it is "


@pytest.fixture(autouse=True)
def own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def said(error):
    """Whichever line it is."""
    return re.sub(r"(test_hangs\.py):\d+", r"\1:N", str(error))


def in_python():
    time.sleep(600)


def in_c():
    """For ever, with the interpreter's lock held."""
    sum(itertools.repeat(0))


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def in_the_kernel():
    """Uninterruptible: a process that has vforked waits for its child's end."""
    if ctypes.CDLL(None).vfork() == 0:
        time.sleep(600)


def beat(hang):
    phalanx.heartbeat()
    if os.environ["RANK"] == "1":
        Path("hangs").touch()
        hang()
    while True:
        phalanx.heartbeat()
        time.sleep(0.01)


def has_quick_debugger():
    """One is installed, may trace, and leaves room in its three seconds."""
    began = time.monotonic()
    frames, _ = native_frames.take(os.getpid(), 3.0)
    return bool(frames) and time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    ("hang", "where"),
    [
        (in_python, "in test_hangs.py:N in in_python: `time.sleep(600)`"),
        (in_c, "in test_hangs.py:N in in_c: `sum(itertools.repeat(0))`"),
        (stopped, "stopped by a signal (state T), in test_hangs.py:N in stopped: `os.kill("),
    ],
)
def test_a_rank_that_stops_beating_is_named_with_where_it_is(hang, where):
    """Whatever it hangs in; the others beat on."""
    launcher = phalanx.Launcher(workers_per_host=3, heartbeat_timeout=3)
    with pytest.raises(phalanx.WorkerFailed) as caught:
        launcher.run(beat, {"hang": hang})
    assert time.time() - Path("hangs").stat().st_mtime < 10 * 3, "it was found too late"
    assert (caught.value.rank, caught.value.hostname) == (1, "localhost")
    assert caught.value.signal == "SIGKILL"
    assert said(caught.value).startswith(HUNG + where)
    assert f"in {hang.__name__}\n" in caught.value.worker_traceback
    assert "2 other workers were stopped" in "\n".join(caught.value.__notes__)
    if hang is in_c and has_quick_debugger():
        assert "rank 1, native frames:\n  " in caught.value.worker_traceback


def test_one_that_is_stuck_in_the_kernel_is_named_as_such():
    """No signal reaches it: where it is, only the kernel says."""
    launcher = phalanx.Launcher(workers_per_host=2, heartbeat_timeout=3)
    with pytest.raises(phalanx.WorkerFailed) as caught:
        launcher.run(beat, {"hang": in_the_kernel})
    assert str(caught.value).startswith(HUNG + "stuck in the kernel (state D")


def test_a_worker_that_has_hung_is_restarted_as_one_that_has_failed():
    """Once; what is expected of workers begins anew with the round."""

    def work():
        while phalanx.context().restart_count == 0:
            phalanx.heartbeat()
            if os.environ["RANK"] == "1":
                in_python()
        time.sleep(3.5)  # neither has beaten in this round
        return phalanx.context().restart_count

    app = phalanx.Launcher(workers_per_host=2, heartbeat_timeout=3, max_restarts=1).start(work)
    assert list(app.result(60)) == [1, 1]
    assert app.status().rounds[-1].cause.startswith(HUNG)


def test_a_rank_that_never_beats_is_not_watched():
    """Nor is one that has returned."""

    def work():
        if os.environ["RANK"] == "0":
            phalanx.heartbeat()
            return 0
        time.sleep(3.5)
        return 1

    launcher = phalanx.Launcher(workers_per_host=2, heartbeat_timeout=2)
    assert list(launcher.run(work)) == [0, 1]


def test_what_takes_longer_than_it_may_is_ended():
    """Without any option, also in a thread; a block that is done in time leaves no trace."""

    def work():
        for _ in range(100):
            with phalanx.expires(after=30), phalanx.expires(after=20):
                pass
        if os.environ["RANK"] == "1":
            with phalanx.expires(after=60), phalanx.expires(after=0.5):
                in_python()
        time.sleep(600)

    with pytest.raises(phalanx.WorkerFailed) as caught:
        phalanx.Launcher(workers_per_host=2).run(work)
    assert said(caught.value).startswith(
        "rank 1 on localhost has been in a block of phalanx.expires(after=0.5) for more than 0.5 s;"
        " it is in test_hangs.py:N in in_python: `time.sleep(600)`"
    )


def test_a_forked_process_does_not_beat_for_its_rank():
    """Its rank hangs, though the child goes on, forked before the first beat or after it."""

    def work():
        first = os.fork()
        if first:
            phalanx.heartbeat()
        if not first or not os.fork():
            while True:
                phalanx.heartbeat()
                with phalanx.expires(after=0.01):
                    time.sleep(0.05)
        in_python()

    with pytest.raises(phalanx.WorkerFailed, match="has not called phalanx.heartbeat"):
        phalanx.Launcher(workers_per_host=1, heartbeat_timeout=3).run(work)


def test_a_forked_process_that_leaves_a_block_does_not_end_the_time_of_its_rank():
    """Which is still in it."""

    def work():
        with phalanx.expires(after=1):
            if child := os.fork():
                os.waitpid(child, 0)
                in_python()
        os._exit(0)

    with pytest.raises(phalanx.WorkerFailed, match=r"a block of phalanx.expires\(after=1\)"):
        phalanx.Launcher(workers_per_host=1).run(work)


@pytest.mark.parametrize("program", [(), ("--no-python", sys.executable)])
def test_torchrun_names_it_too(tmp_path, program):
    """A script, and a program that is another process than the worker was."""
    (tmp_path / "train.py").write_text(
        "import os, time, phalanx\n"
        "phalanx.heartbeat()\n"
        "while os.environ['RANK'] == '0':\n    phalanx.step()\n    time.sleep(0.01)\n"
        "time.sleep(600)\n"
    )
    flags = ("--standalone", "--nproc-per-node", "2", "--heartbeat-timeout", "3")
    shown = command("torchrun", *flags, *program, "train.py")
    assert shown.returncode == 1
    told = "has not called phalanx.heartbeat() for 3 s"
    assert shown.stderr.count(told) == 1
    where = "it does not handle signal" if program else "it is in train.py:6 in <module>"
    assert f"{told}; {where}" in shown.stderr


def test_calls_of_a_map_are_watched():
    """One of many hangs; it is the error."""

    def work(item):
        phalanx.heartbeat()
        if item == 2:
            in_python()
        return item

    launcher = phalanx.Launcher(workers_per_host=1, heartbeat_timeout=3)
    with pytest.raises(phalanx.MapFailed, match="has not called phalanx.heartbeat"):
        list(launcher.map(work, [{"item": item} for item in range(4)]))


# ── in a collective ───────────────────────────────────────────────────────────

FAKE = {}
exec(
    compile(
        "def all_reduce(wait):\n    wait()\n",
        "/lib/python3/torch/distributed/distributed_c10d.py",
        "exec",
    ),
    FAKE,
)


def test_one_that_is_stopped_in_a_collective_is_named_not_those_that_wait_for_it():
    """Though it was the last to beat, by more than those in the collective are given; and would get
    on if it were woken. Without torch: where a rank is, its stack says.
    """

    def work():
        phalanx.heartbeat()
        if os.environ["RANK"] != "1":
            FAKE["all_reduce"](in_python)
        until = time.monotonic() + 2.5
        while True:
            phalanx.heartbeat()
            time.sleep(0.01)
            if time.monotonic() >= until:
                until = math.inf
                FAKE["all_reduce"](stopped)

    with pytest.raises(phalanx.WorkerFailed) as caught:
        phalanx.Launcher(workers_per_host=3, heartbeat_timeout=3).run(work)
    assert caught.value.rank == 1
    assert said(caught.value).startswith(
        "rank 1 on localhost has not called phalanx.heartbeat() for 3 s; it is stopped by a signal "
        "(state T), waiting in a collective, in test_hangs.py:N in stopped: `os.kill("
    )


def train(go):
    import torch
    import torch.distributed as dist

    dist.broadcast(torch.ones(2), 0)
    while os.environ["RANK"] == "1" and not go.exists():
        time.sleep(0.01)
    dist.all_reduce(torch.ones(2))
    phalanx.step()
    if os.environ["RANK"] == "1":
        in_python()
    dist.barrier()


def test_the_rank_that_has_not_entered_a_collective_is_named(tmp_path):
    """By torch's flight recorder while it runs. Where all stop beating because of it, those that
    wait in the collective are not the cause.
    """
    go = tmp_path / "go"
    launcher = phalanx.Launcher(workers_per_host=3, heartbeat_timeout=4)
    app = launcher.start(train, {"go": go})
    missing = (
        "ranks 0, 2 have entered gloo:all_reduce (collective 2 of default_pg), rank 1 has not; the "
        "last one that it has entered is gloo:broadcast (collective 1 of default_pg).\n\n"
        "rank 1, in test_hangs.py:N in train:\n"
    )
    wait_until(lambda: missing in said(command("stacks", app.id).stdout), timeout=120)
    go.touch()
    with pytest.raises(phalanx.WorkerFailed) as caught:
        app.result(120)
    assert caught.value.rank == 1
    assert said(caught.value).startswith(
        "rank 1 on localhost has not called phalanx.heartbeat() for 4 s; it is in test_hangs.py:N "
        "in in_python: `time.sleep(600)`\n"
    )


# ── how far ranks are ─────────────────────────────────────────────────────────


class Kept(metrics.MetricHandler):
    """Those that came."""

    names: ClassVar[set[str]] = set()

    def emit(self, metric_data):
        self.names.add(metric_data.name)


def test_steps_are_counted_and_the_slowest_rank_is_known(tmp_path):
    """While it runs, from here and from another process; and when it has ended."""

    def work(go):
        for _ in range(5):
            phalanx.step()
            time.sleep(0.1 if os.environ["RANK"] == "1" else 0.01)
        phalanx.step()
        while not go.exists():
            time.sleep(0.01)
        phalanx.step()

    metrics.configure(Kept())
    app = phalanx.Launcher(workers_per_host=2).start(work, {"go": tmp_path / "go"})

    def counted():
        steps = app.status().steps
        return steps if steps is not None and steps.done == 6 else None

    try:
        steps = wait_until(counted, timeout=60)
        assert (steps.slowest_rank, steps.slowest_hostname) == (1, "localhost")
        assert steps.slowest_seconds > steps.seconds
        wait_until(lambda: phalanx.app(app.id).status().steps == steps)
        shown = command("status", app.id).stdout
        assert f"  steps: {steps.describe()}\n" in shown
    finally:
        (tmp_path / "go").touch()
        app.wait(60)
        metrics.flush()
        metrics.configure(metrics.NullMetricHandler())
    app.result(30)
    assert {"done", "duration.ms", "slowest.duration.ms", "slowest.rank"} <= {
        name.removeprefix("workers.default.steps.") for name in Kept.names
    }
    ended = app.status()
    assert [worker.steps for worker in ended.workers] == [7, 7]
