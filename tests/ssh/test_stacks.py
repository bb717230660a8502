"""Where workers on other hosts are, and how such hosts stand, as the launcher's user sees it."""

import json
import os
import time

import pytest

from phalanx._registry import recorded_app
from tests.conftest import wait_until
from tests.process.commands import phalanx as command


@pytest.fixture(autouse=True)
def own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def load_batch():
    time.sleep(600)


def step(elsewhere):
    import torch
    import torch.distributed as dist

    if os.environ["RANK"] in elsewhere:
        load_batch()
    dist.all_reduce(torch.ones(2))


def stay():
    if os.environ["RANK"] == "2":
        load_batch()
    time.sleep(600)


def running(app, hosts):
    record = recorded_app.get(app.id)
    status = record.status()
    states = [worker["state"] for worker in status["workers"]]
    active = [host["hostname"] for host in status["hosts"] if host["state"] == "active"]
    return status if active == hosts and set(states) == {"running"} else None


def test_stacks_come_from_all_hosts_with_the_paths_of_here(launcher, cluster):
    """Equal ones together, whichever host they are on; a host that is cut off is named."""
    app = launcher(3, host_timeout=60).start(stay)
    status = wait_until(lambda: running(app, cluster.names[:3]), timeout=60)
    for name, worker in zip(cluster.names, status["workers"], strict=False):
        (host,) = [host for host in cluster.hosts if host.name == name]
        assert worker["hostname"] == name
        assert worker["pid"]
        assert host.pids("rank")

    def heads():
        shown = command("stacks", app.id)
        lines = shown.stdout.splitlines()
        heads = [line.partition(",")[0] for line in lines]
        return shown.stdout if {"ranks 0-1", "rank 2"} <= {*heads} else None

    text = wait_until(heads, timeout=30)
    assert f'File "{__file__}", line ' in text
    assert "in load_batch\n    time.sleep(600)" in text
    cluster.hosts[1].cut()
    (told,) = json.loads(command("stacks", app.id, "--timeout", "1", "--json").stdout)
    cluster.hosts[1].mend()
    problems = [one["problem"] for one in told["ranks"]]
    assert [bool(problem) for problem in problems] == [False, True, False]
    assert "its host did not answer" in problems[1]
    app.cancel(0.0)
    app.wait(30)


def test_the_rank_that_was_elsewhere_is_named_with_its_host(launcher):
    """The stack was taken on its own host before it was stopped."""
    with pytest.raises(RuntimeError) as caught:
        launcher(3, process_group_timeout=4).run(step, {"elsewhere": "1"})
    notes = "\n".join(caught.value.__notes__)
    assert "rank 1 on box2 was not in the collective: it was in test_stacks.py:" in notes
    assert f'  File "{__file__}", line ' in notes
    assert "    time.sleep(600)" in notes


def test_a_host_that_is_lost_and_comes_back_is_followed(launcher, cluster):
    """Lost, with the reason; then in the round again, its agent another."""
    names = cluster.names[:2]
    app = launcher(2, min_hosts=1, host_timeout=5).start(stay)
    first = wait_until(lambda: running(app, names), timeout=60)
    cluster.hosts[0].kill()
    second = wait_until(lambda: running(app, names[1:]), timeout=60)
    assert second["hosts"][1]["hostname"] == "box1"
    assert second["hosts"][1]["state"] == "lost"
    assert second["hosts"][1]["reason"]
    assert [worker["hostname"] for worker in second["workers"]] == ["box2"]
    assert second["rounds"][-1]["cause"].startswith("box1 was lost: ")
    row = command("list").stdout.splitlines()[-1].split()
    assert row[3:6] == ["1", "worker", "box2"]
    cluster.hosts[0].boot()
    third = wait_until(lambda: running(app, names), timeout=60)
    assert third["rounds"][-1]["cause"] == "box1 joined"
    assert third["num_restarts"] == 0
    assert third["round"] > second["round"] > first["round"]
    app.cancel(0.0)
    app.wait(30)


def test_stacks_of_a_scheduler_s_app_come_from_the_hosts_that_run_it(
    cluster, tmp_path, monkeypatch
):
    """`dist.ddp` on two hosts: the workers of the torchrun on each, and the paths of here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import os, time\n"
        "def load():\n    time.sleep(600)\n"
        "def work():\n    time.sleep(600)\n"
        "print('there', flush=True)\n"
        "load() if os.environ['RANK'] == '3' else work()\n"
    )
    config = f"hosts={','.join(cluster.names[:2])},ssh_config_file={cluster.ssh_config}"
    ddp = ("dist.ddp", "-j", "2x2", "--script", "train.py")
    handle = command("run", "-s", "ssh", "-cfg", config, *ddp).stdout.strip()
    try:

        def shown():
            text = command("stacks", handle).stdout
            return text if "ranks 0-2, in" in text and "rank 3, in" in text else None

        text = wait_until(shown, timeout=90)
        assert f'File "{tmp_path}/train.py", line 5, in work\n    time.sleep(600)' in text
        (told,) = json.loads(command("stacks", handle, "--json").stdout)
        places = [(one["rank"], one["hostname"], one["replica"]) for one in told["ranks"]]
        expected = [(0, "box1"), (1, "box1"), (2, "box2"), (3, "box2")]
        assert sorted((rank, host) for rank, host, _ in places) == expected
        assert {replica.rpartition("/")[2] for _, _, replica in places} == {"0", "1"}
    finally:
        command("cancel", handle)


def test_a_replica_that_is_no_python_says_so(cluster):
    """It has no stacks that could be asked for; the others are shown all the same."""
    config = f"hosts={cluster.names[0]},ssh_config_file={cluster.ssh_config}"
    sh = ("utils.sh", "--", "echo there; sleep 600")
    handle = command("run", "-s", "ssh", "-cfg", config, *sh).stdout.strip()
    try:
        wait_until(lambda: "there" in command("log", handle).stdout, timeout=60)
        shown = command("stacks", handle)
        assert "sh/0 on box1: no worker of 'phalanx torchrun'" in shown.stdout, shown
    finally:
        command("cancel", handle)
