"""What `status` and `list` say of a launch is true in every round, and after its end."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import phalanx
from phalanx._registry import recorded_app
from tests.conftest import is_alive, wait_until
from tests.process.commands import phalanx as command
from tests.process.terminal import Terminal


@pytest.fixture(autouse=True)
def own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def status_of(app=None):
    return json.loads(command("status", *([app] if app else []), "--json").stdout)["status"]


def work(go):
    while not go.exists():
        time.sleep(0.01)
    return os.environ["RANK"]


def pids(status):
    return {worker["rank"]: worker["pid"] for worker in status["workers"]}


def is_running(app, round_=1):
    """All workers of this round, or a later one, run, as far as is recorded."""
    status = recorded_app.get(app.id).status()
    states = {worker["state"] for worker in status["workers"]}
    return status if states == {"running"} and status["round"] >= round_ else None


def test_after_a_restart_the_pids_are_the_new_ones_and_the_cause_is_told(tmp_path):
    """In words, as JSON and from the handle; each round's cause stays, in one line."""
    go = tmp_path / "go"
    app = phalanx.Launcher(workers_per_host=2, max_restarts=3).start(work, {"go": go})
    first = wait_until(lambda: is_running(app))
    assert first["round"] == 1
    assert first["rounds"][0]["cause"] == ""
    assert all(map(is_alive, pids(first).values()))
    os.kill(pids(first)[1], signal.SIGKILL)
    second = wait_until(lambda: is_running(app, 2))
    assert second["round"] == 2
    assert second["num_restarts"] == 1
    assert not set(pids(first).values()) & set(pids(second).values())
    assert all(map(is_alive, pids(second).values()))
    assert [r["cause"] for r in second["rounds"]] == [
        "",
        "rank 1 on localhost was killed by SIGKILL",
    ]
    handle = app.status()
    assert {w.rank: w.pid for w in handle.workers} == pids(second)
    assert [host.ranks for host in handle.hosts] == [(0, 1)]
    assert (handle.num_restarts, len(handle.rounds)) == (1, 2)
    text = command("status").stdout
    assert f"localhost  active  0–1    {pids(second)[0]} {pids(second)[1]}" in text
    assert "restart 1 of 3: rank 1 on localhost was killed by SIGKILL" in text
    go.touch()
    app.wait(30)
    last = status_of()
    assert last["state"] == "SUCCEEDED"
    assert pids(last) == pids(second)
    assert {worker["state"] for worker in last["workers"]} == {"returned"}
    assert {worker["ended"] for worker in last["workers"]} == {"returned"}
    assert [host["state"] for host in last["hosts"]] == ["active"]
    text = command("status").stdout
    assert "active" not in text  # to a reader it is no more
    assert f"localhost  released  0–1    {pids(second)[0]} {pids(second)[1]}" in text


def test_a_lost_host_a_spare_and_one_that_joins(tmp_path):
    """Three hosts, of which two take part: each is shown as it is now."""
    go = tmp_path / "go"
    names = ["localhost"] * 3
    app = phalanx.Launcher(hostnames=names, workers_per_host=1, min_hosts=1, max_hosts=2).start(
        work, {"go": go}
    )

    def hosts(*states):
        status = is_running(app)
        found = [host["state"] for host in status["hosts"]] if status else []
        return status if found == list(states) else None

    first = wait_until(lambda: hosts("active", "active", "spare"))
    assert [host["ranks"] for host in first["hosts"]] == [[0], [1], []]
    assert json.loads(command("list", "--json").stdout)[-1]["status"]["round"] == first["round"]
    lost = first["hosts"][1]["pid"]
    os.kill(lost, signal.SIGKILL)

    def is_replaced():
        status = is_running(app)
        now = [h["pid"] for h in status["hosts"] if h["state"] == "active"] if status else []
        return status if len(now) == 2 and lost not in now else None

    second = wait_until(is_replaced)
    assert second["round"] == 2
    assert second["num_restarts"] == 0
    assert "localhost was lost: " in second["rounds"][-1]["cause"]
    row = command("list").stdout.splitlines()[-1].split()
    assert row[3:5] == ["2", "workers"]
    third = wait_until(lambda: hosts("active", "active", "spare"))
    assert third["hosts"][2]["reason"] == ""
    app.add_host("localhost")
    wait_until(lambda: hosts("active", "active", "spare", "spare"))
    assert len(recorded_app.get(app.id).facts["roles"][0]["replicas"]) == 4
    go.touch()
    assert app.wait(30).state.value == "SUCCEEDED"


def test_a_host_that_is_lost_is_shown_as_lost():
    """While the rest goes on, and when the app has ended because of it."""

    def stay():
        time.sleep(600)

    app = phalanx.Launcher(hostnames=["localhost"] * 2, workers_per_host=1).start(stay)
    first = wait_until(lambda: is_running(app))
    os.kill(first["hosts"][1]["pid"], signal.SIGKILL)
    app.wait(30)
    status = status_of()
    assert status["state"] == "FAILED"
    assert [host["state"] for host in status["hosts"]] == ["active", "lost"]
    assert status["hosts"][1]["reason"]
    assert [worker["state"] for worker in status["workers"]] == ["killed", "lost"]
    text = command("status").stdout
    (row,) = [line for line in text.splitlines() if line.split()[1:2] == ["lost"]]
    heads = next(line for line in text.splitlines() if line.startswith("  HOST"))
    assert row[heads.index("REASON") :] == status["hosts"][1]["reason"]
    assert row[heads.index("PIDS") : heads.index("REASON")].strip() == "-"


def test_a_lost_host_is_among_those_whose_workers_are_counted():
    """Two workers on each of two hosts are not four on one of them."""
    phalanx.launch(int, workers_per_host=2)
    (app,) = recorded_app.apps()
    status = json.loads((app.path / "status.json").read_text())
    status["workers"][1]["hostname"] = "gpu-2"
    status["hosts"].append({**status["hosts"][0], "hostname": "gpu-2", "state": "lost"})
    (app.path / "status.json").write_text(json.dumps(status))
    assert "2 workers on localhost, gpu-2" in command("status").stdout


def test_restarts_of_single_hosts_are_each_told(tmp_path):
    """`restart="host"`: the other host's workers stay."""
    go = tmp_path / "go"
    app = phalanx.Launcher(
        hostnames=["localhost"] * 2, workers_per_host=1, max_restarts=2, restart="host"
    ).start(work, {"go": go})
    first = wait_until(lambda: is_running(app))
    os.kill(pids(first)[1], signal.SIGKILL)
    second = wait_until(lambda: is_running(app, 2))
    assert pids(second)[0] == pids(first)[0]
    assert pids(second)[1] != pids(first)[1]
    assert second["rounds"][-1]["cause"] == "rank 1 on localhost was killed by SIGKILL"
    os.kill(pids(second)[0], signal.SIGKILL)
    assert wait_until(lambda: is_running(app, 3))["num_restarts"] == 2
    go.touch()
    assert app.wait(30).state.value == "SUCCEEDED"


def test_a_launcher_that_was_killed_leaves_no_worker_that_runs(script, tmp_path):
    """Nobody knows how they ended; they do not run."""
    process = script.start(
        "import phalanx, time\ndef f():\n    time.sleep(600)\n"
        "if __name__ == '__main__':\n    phalanx.launch(f, workers_per_host=2)\n"
    )
    root = tmp_path / "state/phalanx/apps"
    wait_until(
        lambda: root.is_dir() and recorded_app.apps() and is_running(recorded_app.apps()[0]), 60
    )
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    status = status_of()
    assert status["state"] == "FAILED"
    assert [worker["state"] for worker in status["workers"]] == ["unknown", "unknown"]


def test_torchrun_is_followed_as_well(tmp_path):
    """Its restarts, and the pids of this host's workers."""
    (tmp_path / "train.py").write_text(
        "import os, pathlib, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.01)\n"
    )
    flags = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "2"]
    line = [sys.executable, "-m", "phalanx", "torchrun", *flags, "train.py"]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: recorded_app.apps() and is_running(recorded_app.apps()[0]))
        (app,) = recorded_app.apps()
        first = app.status()
        os.kill(pids(first)[0], signal.SIGKILL)
        second = wait_until(lambda: is_running(app, 2))
        assert not set(pids(first).values()) & set(pids(second).values())
        assert "rank 0" in second["rounds"][-1]["cause"]
        assert "SIGKILL" in second["rounds"][-1]["cause"]
    finally:
        (tmp_path / "go").touch()
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert status_of()["state"] == "SUCCEEDED"


def test_rubbish_in_a_status_is_passed_over(tmp_path):
    """Another version, half a disk, or a hand has written it."""
    phalanx.launch(os.getpid, workers_per_host=1)
    (app,) = recorded_app.apps()
    known = json.loads((app.path / "status.json").read_text())
    for key in ("hosts", "workers", "rounds", "round", "num_restarts"):
        for value in (None, 3, "x", [None, 3, {}, {"rank": "x"}], {"a": 1}):
            (app.path / "status.json").write_text(json.dumps({**known, key: value}))
            assert command("status").returncode == 0, (key, value)
    assert command("list").returncode == 0


def test_the_torchrun_within_an_app_is_not_an_app_of_its_own(tmp_path):
    """`list`, and what is meant without a name, know the app that was submitted alone."""
    code = (
        "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"
    )
    (tmp_path / "train.py").write_text(code)
    handle = command("run", "dist.ddp", "-j", "1x2", "--script", "train.py").stdout.strip()
    wait_until(lambda: command("log").stdout.count("up") == 2)
    listed = json.loads(command("list", "--json").stdout)
    assert [app["handle"] for app in listed] == [handle]
    stacks = command("stacks").stdout
    assert "ranks 0-1, in train.py:3" in stacks
    assert stacks.splitlines()[0] == listed[0]["id"]
    (tmp_path / "go").touch()
    wait_until(lambda: "SUCCEEDED" in command("status").stdout)
    command("clean", "--older-than", "0")
    assert list((tmp_path / "state" / "phalanx" / "apps").iterdir()) == []


def test_a_launch_within_a_worker_is_listed_by_its_script(tmp_path):
    """And not by the program that a worker is started with, which nobody has typed."""
    (tmp_path / "inner.py").write_text(
        "import phalanx\ndef f(): return 1\n"
        "def outer(): return list(phalanx.launch(f, workers_per_host=1))\n"
    )
    done = command("launch", "inner.py:outer", "--workers-per-host", "1")
    assert done.returncode == 0, done.stderr
    inner = recorded_app.apps()[-1]
    assert inner.command.split()[1:] == ["inner.py"]


def test_commands_are_told_apart(tmp_path):
    """They are cut in the middle, to what the terminal has left; nowhere else are they cut."""
    long = "an/argument/that/is/the/same/for/both/of/them/" * 3
    for number in (1, 2):
        words = ("--msg", f"{long}-number-{number}")
        command("run", "--wait", "utils.echo", *words)
    rows = command("list").stdout.splitlines()[1:]
    assert [f"{long}-number-{i + 1}" in row for i, row in enumerate(rows)] == [True, True]
    shown = Terminal(sys.executable, "-m", "phalanx", "list", COLUMNS="150")
    assert shown.finish() == 0
    heads, *rows = [line for line in shown.lines if line.strip()]
    assert [row[-9:] for row in rows] == ["-number-1", "-number-2"]
    assert {len(row) for row in rows} == {150}
    assert all("…" in row for row in rows)
