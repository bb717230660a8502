"""Where workers are: asked for at any time, and before they are stopped because one gave up."""

import ctypes
import faulthandler
import json
import os
import re
import shutil
import signal
import sys
import threading
import time

import pytest

import phalanx
from phalanx._core.stacks import RankStacks
from phalanx._worker.hooks.stack_signal import SIGNAL
from tests.conftest import wait_until
from tests.process.commands import phalanx as command


@pytest.fixture(autouse=True)
def own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def wait_for(path):
    while not path.exists():
        time.sleep(0.01)


def arrive(place):
    """Say that this rank has come to where it will be found."""
    (place / os.environ["RANK"]).touch()


def all_arrived(place, count):
    wait_until(lambda: len(os.listdir(place)) == count)


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "place"
    path.mkdir()
    return path


@pytest.fixture
def running(tmp_path, place):
    """Start a function that stays; it is ended after the test."""
    apps = []

    def start(function, workers=2, **options):
        app = phalanx.Launcher(workers_per_host=workers, **options).start(
            function, {"place": place, "go": tmp_path / "go"}
        )
        apps.append(app)
        all_arrived(place, workers)
        return app

    yield start
    for app in apps:
        app.cancel(0.0)
        app.wait()


def inner(go):
    wait_for(go)


def stay(place, go):
    side = threading.Thread(target=wait_for, args=(go,), daemon=True)
    if os.environ["RANK"] == "1":
        side.start()
    arrive(place)
    if os.environ["RANK"] == "2":
        inner(go)
    else:
        wait_for(go)


def test_equal_stacks_of_a_running_app_are_shown_together(running, tmp_path):
    """From another process; all threads; the workers go on."""
    app = running(stay, 4)
    shown = command("stacks", app.id)
    assert shown.returncode == 0, shown.stderr
    heads = [line for line in shown.stdout.splitlines() if line.startswith("rank")]
    assert [re.sub(r"py:\d+", "py", head) for head in heads] == [
        "rank 2, in test_stacks.py in wait_for:",
        "ranks 0-1, 3, in test_stacks.py in wait_for:",
        "rank 1, another thread:",
    ]
    assert "in inner\n    wait_for(go)" in shown.stdout
    assert "bootstrap.py" not in shown.stdout
    (told,) = json.loads(command("stacks", "--json").stdout)
    assert told["app"] == app.id
    assert [one["rank"] for one in told["ranks"]] == [0, 1, 2, 3]
    pids = {worker.rank: worker.pid for worker in app.status().workers}
    assert {one["rank"]: one["pid"] for one in told["ranks"]} == pids
    assert [len(one["threads"]) for one in told["ranks"]] == [1, 2, 1, 1]
    (tmp_path / "go").touch()
    assert app.wait(30).state.value == "SUCCEEDED"
    ended = command("stacks", app.id)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"{app.id} has ended: SUCCEEDED" in ended.stderr
    assert app.stacks() == ()


def busy(place, go):
    """In C code that gives the interpreter to nobody, and in C code that does."""
    arrive(place)
    if os.environ["RANK"] == "0":
        ctypes.PyDLL(None).sleep(600)
    re.match(r"(a+)+$", "a" * 200 + "b")


@pytest.mark.parametrize("method", ["zygote", "spawn"])
def test_a_worker_in_c_code_answers(running, method):
    """The stack is written by the signal's handler itself."""
    app = running(busy, start_method=method)

    def is_there():
        frames = [one.main.location for one in app.stacks() if one.main is not None]
        return [frame.function for frame in frames] == ["busy", "match"] or [
            frame.function for frame in frames
        ] == ["busy", "busy"]

    wait_until(is_there)


def peculiar(place, go):
    """Everything that may be in our way: one each."""
    match os.environ["RANK"]:
        case "0":
            os.closerange(3, 256)
            with open(place.parent / "mine", "w") as mine:
                arrive(place)
                wait_for(go)
                mine.write("mine alone")
                return
        case "1":
            signal.pthread_sigmask(signal.SIG_BLOCK, [SIGNAL])
        case "2":
            faulthandler.unregister(SIGNAL)
        case "3":
            faulthandler.enable()
            faulthandler.dump_traceback_later(600, file=sys.stderr)
    arrive(place)
    wait_for(go)


def test_what_a_program_does_of_its_own_is_not_disturbed(running, tmp_path):
    """Closed descriptors, a blocked signal, another use of faulthandler, a stopped process."""
    app = running(peculiar, 5)
    pids = {worker.rank: worker.pid for worker in app.status().workers}
    os.kill(pids[4], signal.SIGSTOP)
    first = app.stacks(1.0)
    told = {one.rank: one.problem for one in first}
    assert "closed" in told[0]
    assert "no answer" in told[1]
    assert "does not handle" in told[2]
    assert told[3] == ""
    assert "stopped" in told[4]
    os.kill(pids[4], signal.SIGCONT)
    wait_until(lambda: app.stacks(5.0)[4].main is not None)
    (tmp_path / "go").touch()
    assert app.wait(30).state.value == "SUCCEEDED"
    assert (tmp_path / "mine").read_text() == "mine alone"


@pytest.mark.skipif(
    not any(map(shutil.which, ("py-spy", "eu-stack", "gdb"))), reason="needs a native debugger"
)
def test_native_frames_are_shown_on_request(running):
    """Also of one that is stopped, which answers nobody."""
    app = running(stay, 2)
    os.kill(app.status().workers[1].pid, signal.SIGSTOP)
    shown = command("stacks", app.id, "--native", "--timeout", "20").stdout
    assert "rank 0, native frames:\n  " in shown
    assert "rank 1, native frames:\n  " in shown
    assert "not available" not in shown
    assert "rank 1: it is stopped by a signal (state T)" in shown
    os.kill(app.status().workers[1].pid, signal.SIGCONT)


def test_many_who_ask_at_once_are_all_answered(running):
    """A worker has one file; nobody gets half of it, or another's."""
    app = running(stay, 3)
    answers: list[tuple[RankStacks, ...]] = []
    asking = [threading.Thread(target=lambda: answers.append(app.stacks())) for _ in range(8)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(answers) == 8
    assert all([len(one.threads) for one in answer] == [1, 2, 1] for answer in answers)
    # Those asked later may find a worker at another line of what it waits in.
    pids = [worker.pid for worker in app.status().workers]
    assert all([one.pid for one in answer] == pids for answer in answers)
    mains = [one.main for answer in answers for one in answer]
    assert all("stay" in [frame.function for frame in main.frames] for main in mains)


def test_an_app_that_is_not_there_or_does_not_answer_is_one_sentence(script, tmp_path):
    """Unknown; none runs; its launcher was killed, or is stopped."""
    for arguments in (["nothing"], []):
        shown = command("stacks", *arguments)
        assert (shown.returncode, shown.stdout) == (1, "")
        assert len(shown.stderr.splitlines()) == 1
    process = script.start(
        "import phalanx, time, pathlib\n"
        "def f():\n    pathlib.Path('there').touch()\n    time.sleep(600)\n"
        "if __name__ == '__main__':\n    phalanx.launch(f, workers_per_host=1)\n",
    )
    wait_until(lambda: (tmp_path / "there").exists())
    os.kill(process.pid, signal.SIGSTOP)
    shown = command("stacks", "--timeout", "0.1")
    assert shown.returncode == 1
    assert "Is it stopped?" in shown.stderr
    assert not list((tmp_path / "state/phalanx/apps").glob("*/stacks"))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (app,) = os.listdir(tmp_path / "state/phalanx/apps")
    assert f"{app} has ended: FAILED" in command("stacks", app).stderr


# ── when one gives up waiting ─────────────────────────────────────────────────


def load_batch():
    time.sleep(600)


def step(elsewhere, barrier=False):
    import torch
    import torch.distributed as dist

    if os.environ["RANK"] in elsewhere:
        load_batch()
    if barrier:
        dist.monitored_barrier()
    dist.all_reduce(torch.ones(2))


@pytest.mark.parametrize("barrier", [False, True])
def test_the_rank_that_others_gave_up_waiting_for_is_named(barrier):
    """Its stack was taken before it was stopped."""
    launcher = phalanx.Launcher(workers_per_host=3, process_group_timeout=3)
    with pytest.raises(RuntimeError) as caught:
        launcher.run(step, {"elsewhere": "2", "barrier": barrier})
    notes = "\n".join(caught.value.__notes__)
    assert "rank 2 on localhost was not in the collective: it was in " in notes
    assert "test_stacks.py:" in notes
    assert "in load_batch\n" in notes
    assert "    time.sleep(600)" in notes
    assert "rank 0 on localhost was not" not in notes
    assert "rank 1 on localhost was not" not in notes


def test_ranks_elsewhere_at_one_place_are_one():
    """And one that is stopped costs no more than a second."""

    def work():
        if os.environ["RANK"] == "3":
            os.kill(os.getpid(), signal.SIGSTOP)
        step("12")

    with pytest.raises(RuntimeError) as caught:
        phalanx.Launcher(workers_per_host=4, process_group_timeout=3).run(work)
    notes = "\n".join(caught.value.__notes__)
    assert "ranks 1-2 were not in the collective: they were in test_stacks.py:" in notes
    assert "rank 3 returned no stack: it is stopped" in notes


def test_a_death_is_told_as_before():
    """It is known why the others missed it: where they were is of no interest."""

    def work():
        if os.environ["RANK"] == "1":
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        step("")

    with pytest.raises(phalanx.WorkerFailed) as caught:
        phalanx.Launcher(workers_per_host=3).run(work)
    notes = "\n".join(getattr(caught.value, "__notes__", []))
    assert caught.value.rank == 1
    assert "collective" not in notes


def test_torchrun_names_it_too(tmp_path):
    """A script, restarted once: the first time in a line, in the end with its stack."""
    (tmp_path / "train.py").write_text(
        "import datetime, time\nimport torch.distributed as dist\n"
        "def load():\n    time.sleep(600)\n"
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=3))\n"
        "if dist.get_rank() == 1:\n    load()\n"
        "dist.barrier()\n"
    )
    flags = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    shown = command("torchrun", *flags, "train.py", timeout=120)
    assert shown.returncode == 1
    told = "was not in the collective: it was in train.py:4 in load"
    assert shown.stderr.count(told) == 2
    assert '  File "' in shown.stderr.rpartition(told)[2]
    assert "time.sleep(600)" in shown.stderr.rpartition(told)[2]


def test_a_scheduler_s_app_is_asked_through_what_it_runs(tmp_path):
    """`dist.ddp` here: the torchrun below it answers."""
    (tmp_path / "train.py").write_text(
        "import os, pathlib, time\n"
        "def work():\n    pathlib.Path('r' + os.environ['RANK']).touch()\n    time.sleep(600)\n"
        "work()\n"
    )
    started = command("run", "-s", "local_cwd", "dist.ddp", "-j", "1x2", "--script", "train.py")
    handle = started.stdout.strip()
    try:
        wait_until(lambda: (tmp_path / "r0").exists() and (tmp_path / "r1").exists())
        shown = command("stacks", handle)
        assert "ranks 0-1, in train.py:4 in work:" in shown.stdout, shown.stderr
        assert "in work\n    time.sleep(600)" in shown.stdout
    finally:
        command("cancel", handle)
