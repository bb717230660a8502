"""Launches that outlive their program: killed, interrupted, or simply at its end."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx
from phalanx._registry import directory
from phalanx._system.processes import state_of
from phalanx.errors import Cancelled, ConfigError, LaunchError
from tests.conftest import is_alive, wait_until

PROGRAM = """
    import os, sys, time
    import phalanx

    class Box:
        def __init__(self, value):
            self.value = value

    def work(factor: int):
        print("rank", os.environ["RANK"], flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
        return Box(factor * int(os.environ["RANK"]))

    if __name__ == "__main__":
        app = phalanx.Launcher(workers_per_host=2).start(work, {"factor": 7}, detach=True)
        print(app.id, flush=True)
        time.sleep(100 if "stay" in sys.argv else 0)
"""


def wait_for_file():
    while not os.path.exists("go"):
        time.sleep(0.01)
    return os.environ["RANK"]


def owner_of(app):
    return int(phalanx_record(app)["owner"]["pid"])


def phalanx_record(app):
    import json

    return json.loads((directory() / app.id / "app.json").read_text())


def gone(app):
    """Its host has ended, so that nothing is left behind."""
    wait_until(lambda: not is_alive(owner_of(app)))


def test_an_app_outlives_its_program_and_gives_its_values_to_another(script):
    """Interrupted as by Ctrl-C, hung up on as by a closed terminal, and killed."""
    program = script.start(PROGRAM, "stay", start_new_session=True)
    app = phalanx.app(program.stdout.readline().strip())
    wait_until(lambda: app.status().state is phalanx.AppState.RUNNING)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
        if program.poll() is None:
            os.killpg(program.pid, number)
    program.communicate(timeout=60)
    assert app.status().state is phalanx.AppState.RUNNING
    assert {worker.rank for worker in app.status().workers} == {0, 1}
    with pytest.raises(TimeoutError, match="keeps running"):
        app.result(timeout=0.1)
    lines = app.logs([1], follow=True)
    assert next(lines).text == "rank 1"
    Path("go").touch()
    result = app.result(timeout=60)
    assert [box.value for box in result] == [0, 7]
    assert list(lines) == []
    kept = directory() / app.id / "result.pickle"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    gone(app)


def fail(rank):
    if os.environ["RANK"] == rank:
        raise ArithmeticError("no such number")
    wait_for_file()


def test_what_the_function_raises_is_raised_by_whoever_asks():
    """With its own type, and the worker's traceback in its notes."""
    app = phalanx.Launcher(workers_per_host=2).start(fail, args=("1",), detach=True)
    with pytest.raises(ArithmeticError, match="no such number") as info:
        phalanx.app(app.id).result(timeout=60)
    assert "rank 1" in "".join(info.value.__notes__)
    assert app.wait(1).state is phalanx.AppState.FAILED
    gone(app)


def test_an_app_is_cancelled_and_looked_at_from_another_program():
    """By its handle, and by the commands."""
    app = phalanx.Launcher(workers_per_host=1, stop_grace=1.0).start(wait_for_file, detach=True)
    wait_until(lambda: app.status().state is phalanx.AppState.RUNNING)
    wait_until(lambda: "wait_for_file" in str(app.stacks(10.0)))
    command = [sys.executable, "-m", "phalanx"]
    listed = subprocess.run([*command, "list"], capture_output=True, text=True, timeout=60)
    assert app.id in listed.stdout
    done = subprocess.run([*command, "cancel", app.id], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with pytest.raises(Cancelled):
        app.result(timeout=60)
    for ask in (lambda: app.signal(signal.SIGUSR1), lambda: app.add_host("other")):
        with pytest.raises(ConfigError, match="from another program"):
            ask()
    gone(app)


def test_an_app_whose_host_is_killed_has_failed():
    """Its workers end with it, and whoever asks is told."""
    app = phalanx.Launcher(workers_per_host=1).start(wait_for_file, detach=True)
    wait_until(lambda: app.status().state is phalanx.AppState.RUNNING)
    (worker,) = app.status().workers
    os.kill(owner_of(app), signal.SIGKILL)
    with pytest.raises(LaunchError, match="no longer exists"):
        app.result(timeout=60)
    wait_until(lambda: state_of(worker.pid) is None)


def test_a_terminated_host_cancels_its_app():
    """As a machine that shuts down asks for it."""
    app = phalanx.Launcher(workers_per_host=1, stop_grace=1.0).start(wait_for_file, detach=True)
    wait_until(lambda: app.status().state is phalanx.AppState.RUNNING)
    os.kill(owner_of(app), signal.SIGTERM)
    with pytest.raises(Cancelled):
        app.result(timeout=60)
    gone(app)


def start_inside():
    phalanx.Launcher(workers_per_host=1).start(wait_for_file, detach=True)


def test_mistakes_are_told_before_anything_runs():
    """In the program that makes them."""
    with pytest.raises(ConfigError, match="inline"):
        phalanx.Launcher(start_method="inline").start(print, detach=True)
    with pytest.raises(ConfigError, match="stop_grace"):
        phalanx.Launcher(workers_per_host=1, stop_grace=-1).start(print, detach=True)
    with pytest.raises(ConfigError, match="no GPU|GPU"):
        phalanx.Launcher(workers_per_host="gpu").start(print, detach=True)
    with pytest.raises(ConfigError, match="no such app: 'nothing-00000000'"):
        phalanx.app("nothing-00000000")
    with pytest.raises(ConfigError, match="cannot be used in a worker"):
        phalanx.launch(start_inside, workers_per_host=1)


def test_values_of_other_launches_are_their_programs_own():
    """An app of this process is found, too; its values are where they were."""
    app = phalanx.Launcher(workers_per_host=1).start(lambda: 3)
    assert app.result(timeout=60).rank(0) == 3
    with pytest.raises(ConfigError, match="detach=True"):
        phalanx.app(app.id).result()


def test_the_command_returns_at_once_and_the_app_goes_on(script):
    """`phalanx launch --detach`."""
    script.write(PROGRAM, "train.py")
    command = [
        sys.executable,
        "-m",
        "phalanx",
        "launch",
        "train.py:work",
        "--workers-per-host",
        "1",
    ]
    done = subprocess.run(
        [*command, "--detach", "--", "--factor", "3"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    app = phalanx.app(done.stdout.strip())
    assert f"phalanx log -f {app.id}" in done.stderr
    assert not app.status().state.is_final
    Path("go").touch()
    assert app.result(timeout=60).rank(0).value == 0
    gone(app)
