"""`phalanx chaos` on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx
from phalanx._chaos.fault_history import observation
from phalanx._chaos.hosts import ChaosHost, NotDone
from phalanx._registry.recorded_app import apps
from phalanx._remote import saboteur
from phalanx._schedulers.scheduler import BUILT_IN
from tests.conftest import is_alive, wait_until

SEED = 5
"""Its first second has one killed worker, and one agent, where they come every second on average."""


def command(*arguments):
    words = [sys.executable, "-m", "phalanx", "chaos", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def app():
    """Two workers that run until the file `end` is there."""

    def work():
        while not Path("end").exists():
            time.sleep(0.01)
        return phalanx.context().restart_count

    launcher = phalanx.Launcher(workers_per_host=2, max_restarts=1000, restart_backoff=0.0)
    app = launcher.start(work)
    wait_until(lambda: app.status().phases.get("workers forked"), timeout=60)
    yield app
    Path("end").touch()
    app.wait(60)


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_workers_are_killed_and_the_report_says_how_the_app_recovered(app):
    """Everything is overcome, and counted."""
    done = command(app.id, "--kill-worker", "1s", "--duration", "4s", "--seed", "1", "--json")
    assert done.returncode == 0, done
    report = json.loads(done.stdout)
    faults = [fault for fault in report["faults"] if not fault["problem"]]
    assert faults
    assert all(fault["recovery_seconds"] is not None for fault in faults)
    assert report["restarts"] >= 1
    assert report["state"] == "RUNNING"
    assert 0 < report["goodput"] < 1


def test_an_agent_is_killed_and_another_takes_its_place(app):
    """Its workers end with it."""
    before = app.status()
    flags = ("--kill-agent", "1s", "--duration", "1s", "--seed", str(SEED), "--json")
    done = command(app.id, *flags)
    assert done.returncode == 0, done
    (fault,) = _done(done)
    assert fault["where"] == "localhost"
    after = app.status()
    assert after.round > before.round
    assert after.hosts[0].pid != before.hosts[0].pid
    assert not any(map(is_alive, (worker.pid for worker in before.workers)))


@pytest.mark.parametrize("way", ["torchrun", "local_cwd"])
def test_torchrun_is_broken_where_it_runs(tmp_path, monkeypatch, way):
    """It is an app as any other, also as what an app of `phalanx run` consists of."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(
        "import os, pathlib, time\n"
        "while not pathlib.Path('end').exists():\n    time.sleep(0.01)\n"
        "print('restarts:', os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
    )
    monkeypatch.setenv("PET_MAX_RESTARTS", "1000")
    words = [sys.executable, "-m", "phalanx"]
    if way == "torchrun":
        words += ["torchrun", "--standalone", "--nproc-per-node", "1", "train.py"]
    else:
        words += ["run", "-s", way, "--wait", "--log", "dist.ddp", "-j", "1x1", "train.py"]
    run = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        known = lambda: [app for app in apps(parts=True) if app.is_launch]
        is_whole = lambda: [app for app in known() if observation(app.status(), 0.0).running]
        wait_until(is_whole, timeout=60)
        flags = ("--kill-worker", "1s", "--duration", "1s", "--seed", str(SEED), "--json")
        done = command(*flags)
        assert done.returncode == 0, done
        assert len(_done(done)) == 1
    finally:
        (tmp_path / "end").touch()
        said, _ = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert "restarts: 1" in said


def test_a_replica_that_is_tried_again_has_recovered(tmp_path, monkeypatch):
    """Each try is a launch of its own; the app is what breaks, and goes on."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(
        "import pathlib, time\nwhile not pathlib.Path('end').exists():\n    time.sleep(0.01)\n"
    )
    words = [sys.executable, "-m", "phalanx", "run", "-s", "local_cwd", "--wait", "dist.ddp"]
    words += ["-j", "1x1", "--max_retries", "9", "--script", "train.py"]
    run = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        known = lambda: [app for app in apps(parts=True) if app.is_launch]
        is_whole = lambda: [app for app in known() if observation(app.status(), 0.0).running]
        wait_until(is_whole, timeout=60)
        flags = ("--kill-worker", "1s", "--duration", "1s", "--seed", str(SEED), "--json")
        done = command(*flags)
        assert done.returncode == 0, done
        report = json.loads(done.stdout)
        assert (report["state"], report["recovered"], report["restarts"]) == ("RUNNING", 1, 1)
    finally:
        (tmp_path / "end").touch()
        said, _ = run.communicate(timeout=60)
    assert run.returncode == 0, said


def test_a_paused_worker_goes_on_when_chaos_is_interrupted(app):
    """Even if it was to be paused for long."""
    words = [sys.executable, "-m", "phalanx", "chaos", app.id, "--pause-worker", "1s:10m"]
    pids = [worker.pid for worker in app.status().workers]
    chaos = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: "T" in map(state_of, pids), timeout=60)
    chaos.send_signal(signal.SIGINT)
    chaos.communicate(timeout=60)
    assert chaos.returncode == 130
    wait_until(lambda: "T" not in map(state_of, pids))


def test_a_paused_worker_goes_on_when_chaos_is_killed(app):
    """The far end notices."""
    words = [sys.executable, "-m", "phalanx", "chaos", app.id, "--pause-worker", "1s:10m"]
    pids = [worker.pid for worker in app.status().workers]
    chaos = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: "T" in map(state_of, pids), timeout=60)
    chaos.kill()
    chaos.wait()
    wait_until(lambda: "T" not in map(state_of, pids))


def test_what_cannot_be_done_is_said_before_anything_is_broken(app):
    """And nothing is."""
    done = command(app.id, "--kill-worker", "1s", "--cut", "1s", "--duration", "5s")
    assert done.returncode == 1
    assert "--cut is not possible on localhost" in done.stderr
    assert "nothing was broken" in done.stderr
    assert app.status().round == 1


def test_a_lent_host_is_reached_as_the_launcher_reaches_it(tmp_path, monkeypatch):
    """By the command that its record has."""
    monkeypatch.setitem(BUILT_IN, "pipe", "tests.pipe_scheduler")
    (tmp_path / "granted").touch()
    launcher = phalanx.Launcher(
        scheduler="pipe",
        scheduler_options={"place": str(tmp_path)},
        workers_per_host=1,
        workspace=None,
        max_restarts=1000,
        restart_backoff=0.0,
    )
    app = launcher.start(lambda: time.sleep(1000))
    wait_until(lambda: app.status().phases.get("workers forked"), timeout=60)
    done = command(app.id, "--kill-worker", "1s", "--duration", "3s", "--seed", "1", "--json")
    assert done.returncode == 0, done
    assert "rank 0 on n1" in {fault["where"].partition(" (")[0] for fault in _done(done)}
    app.cancel(0.0)
    app.wait(60)


def _done(done):
    return [fault for fault in json.loads(done.stdout)["faults"] if not fault["problem"]]


def test_no_other_process_is_killed():
    """A number may be another process's by now."""
    host = ChaosHost("localhost", None)
    try:
        with pytest.raises(NotDone, match="has ended"):
            host.ask(ask="kill", pid=os.getpid())
    finally:
        host.leave()


TOOL = """#!/bin/sh
echo "$(basename "$0") $*" >>"$LOG"
case "$*" in *-I*192.0.2.9*) echo refused >&2; exit 4;; esac
"""


def test_a_cut_that_fails_is_said_and_undone(tmp_path, monkeypatch):
    """What was asked afterwards gets its own answer. With tools that only write down their words:
    this machine's network is not ours to break.
    """
    for name, text in (("iptables", TOOL), ("ip6tables", TOOL), ("sudo", '#!/bin/sh\nshift; "$@"')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 1024 192.0.2.2 22")
    host = ChaosHost("localhost", None)

    def said():
        words = [line.partition(" -w ") for line in log.read_text().splitlines()]
        log.unlink()
        made = [tool + rule[3:] for tool, _, rule in words if rule.startswith("-I ")]
        mended = [tool + rule[3:] for tool, _, rule in words if rule.startswith("-D ")]
        assert sorted(made) == sorted(mended)
        return [rule.partition(" -j ")[0] for rule in made]

    try:
        with pytest.raises(NotDone, match="refused"):
            host.ask(ask="cut", peers=["192.0.2.3", "192.0.2.9"], seconds=600)
        assert said() == ["iptablesINPUT -s 192.0.2.3", "iptablesINPUT -s 192.0.2.9"]
        done = host.ask(ask="cut", peers=["2001:db8::1"], seconds=600)
        assert done == {"done": "cut off from 2 addresses"}
        assert host.ask(ask="mend") == {"done": ""}
        assert said()[-2:] == ["ip6tablesOUTPUT -d 2001:db8::1", "iptablesOUTPUT -d 192.0.2.1"]
    finally:
        host.leave()
    monkeypatch.setenv("SSH_CONNECTION", "2001:db8::1 1024 2001:db8::2 22")
    assert saboteur.abilities(0)["cut"] == ""
    assert log.read_text() == "ip6tables -w -n -L INPUT\n"


def test_a_plan_is_shown_without_an_app():
    """The same every time."""
    words = ("--dryrun", "--seed", "7", "--cut", "10s:2s", "--duration", "1m")
    shown = command(*words).stdout
    assert shown == command(*words).stdout
    assert "cut" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name at least one fault"),
        (("--kill-worker", "often"), "--kill-worker: invalid duration 'often'"),
        (("--cut", "1m", "--cut-command", "x"), "together"),
        (("slurm://phalanx/1", "--kill-worker", "1m"), "runs on slurm"),
        (("nothing-such", "--kill-worker", "1m"), "nothing-such"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message):
    """Without a traceback."""
    done = command(*arguments)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
