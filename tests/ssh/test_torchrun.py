"""Hosts that meet by themselves: `phalanx torchrun` on each of several real hosts.

Nothing leads them from outside; they are started by hand, as a user would, and lose each other.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from tests.conftest import wait_until
from tests.ssh.cluster import PATH

PORT = 29431

TRAIN = """
import json, os, pathlib, signal, sys, time
import torch, torch.distributed as dist

told = []
signal.signal(signal.SIGUSR2, lambda *_: told.append(1))
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
place = pathlib.Path("/root/checkpoint.json")
own = json.loads(place.read_text()) if place.exists() else [0, 0]
known = [None] * world
dist.all_gather_object(known, own)
step, total = max(known)
store = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
print("BEGIN", rank, world, os.environ["TORCHELASTIC_RESTART_COUNT"], store, flush=True)
while True:
    mine = sum(10 * step + i for i in range(10) if i % world == rank)
    state = torch.tensor([mine, len(told)])
    dist.all_reduce(state)
    step, total = step + 1, total + int(state[0])
    place.with_suffix(".new").write_text(json.dumps([step, total]))
    os.replace(place.with_suffix(".new"), place)
    if state[1]:
        break
    time.sleep(0.02)
assert total == sum(range(10 * step)), (step, total)
print("RIGHT", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


class Commands:
    """`phalanx torchrun` on hosts, and what each has printed."""

    def __init__(self, cluster, directory, script=TRAIN):
        self.cluster = cluster
        self.directory = directory
        self.script = script
        self.running = {}
        self.logs = {}

    def start(self, host, endpoint, *flags, before=()):
        source = Path(phalanx.__file__).parent
        log = self.logs[host.name] = self.directory / f"{host.name}-{len(self.running)}.log"
        pack = subprocess.run(
            ["tar", "-cC", source.parent, "--exclude=__pycache__", "phalanx"],
            capture_output=True,
            check=True,
        ).stdout
        enter = ["nsenter", "-t", str(host.pid), "-a", "--", "env", "-i", "HOME=/root"]
        subprocess.run(
            [*enter, f"PATH={PATH}", "sh", "-c", "mkdir -p /root/src; tar -xC /root/src"],
            input=pack,
            check=True,
        )
        host.write("/root/train.py", self.script)
        where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{endpoint}:{PORT}"]
        conf = ["--rdzv-conf", "host_timeout=3,last_call_timeout=30,join_timeout=60"]
        with open(log, "wb") as file:
            self.running[host.name] = subprocess.Popen(
                [*enter, f"PATH={PATH}", "PYTHONPATH=/root/src", "PYTHONUNBUFFERED=1", *before]
                + [sys.executable, "-m", "phalanx", "torchrun", *where, *conf, *map(str, flags)]
                + ["/root/train.py"],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def begun(self, host):
        """(rank, world, restarts, store) of every round that has begun there."""
        found = re.findall(r"BEGIN (\d+) (\d+) (\d+) (\S+)", self.logs[host.name].read_text())
        return [(int(rank), int(world), int(count), store) for rank, world, count, store in found]

    def wait_for_world(self, hosts, world, timeout=40):
        """All of them are in one round of this size, and see the same store."""

        def agree():
            last = [self.begun(host)[-1:] for host in hosts]
            if not all(last) or {item[0][1] for item in last} != {world}:
                return False
            stores = {item[0][3] for item in last}
            ranks = sorted(item[0][0] for item in last)
            return stores if len(stores) == 1 and ranks == list(range(world)) else False

        said = lambda: {host.name: self.logs[host.name].read_text()[-1500:] for host in hosts}
        try:
            return wait_until(agree, timeout=timeout)
        except AssertionError:
            raise AssertionError(said()) from None

    def end(self, *hosts):
        """Have the training end, and give every host's exit code."""
        host = hosts[0]
        (pid, *_) = host.pids("train.py rank")
        host.enter("kill", "-USR2", str(pid))
        return [self.running[host.name].wait(60) for host in hosts]

    def stop(self):
        """Leave nothing of them."""
        for process in self.running.values():
            process.kill()
            process.wait()
        for host in self.cluster.hosts:
            if host.pid is not None:
                host.mend()
                for pid in host.pids("phalanx"):
                    host.enter("kill", "-9", str(pid), check=False)


@pytest.fixture
def commands(cluster, tmp_path):
    made = Commands(cluster, tmp_path)
    yield made
    made.stop()


@pytest.mark.parametrize("how", ["killed", "silent"])
@pytest.mark.parametrize("number", [0, 2])
def test_the_loss_of_a_host_is_survived(commands, cluster, how, number):
    """The one that decides and carries the store, or another; it went down, or nothing is heard.

    Those that are left train again, and the sum is right.
    """
    hosts = cluster.hosts[:3]
    for host in hosts:
        commands.start(host, hosts[0].address, "--nnodes", "2:3")
    commands.wait_for_world(hosts, 3)
    lost = hosts[number]
    rest = [host for host in hosts if host is not lost]
    lost.kill() if how == "killed" else lost.cut()
    commands.wait_for_world(rest, 2)
    assert [commands.begun(host)[-1][2] for host in rest] == [0, 0]
    assert commands.end(*rest) == [0, 0]
    assert all("RIGHT" in commands.logs[host.name].read_text() for host in rest)
    if how == "silent":
        # It must not go on by itself: the others may, and did.
        assert commands.running[lost.name].wait(60) == 1
        said = commands.logs[lost.name].read_text()
        assert "no majority" in said
        assert "survives the silent loss" in said


def test_a_host_that_sorts_before_rank_0_joins(commands, cluster):
    """Everybody sees one and the same store; no restart is counted."""
    first, second, third = cluster.hosts[:3]
    for host in (second, third):
        commands.start(host, second.address, "--nnodes", "2:3")
    # Two are enough; the third is not waited for longer than the last call.
    commands.start(first, second.address, "--nnodes", "2:3")
    (store,) = commands.wait_for_world([first, second, third], 3)
    assert store.startswith(first.address)
    assert commands.begun(first)[-1][0] == 0
    assert commands.end(first, second, third) == [0, 0, 0]


def test_a_failed_worker_restarts_all_hosts(commands, cluster):
    """Killed on one host: the count is the same on both, and the sum right."""
    hosts = cluster.hosts[:2]
    for host in hosts:
        commands.start(host, hosts[0].address, "--nnodes", "2", "--max-restarts", "2")
    commands.wait_for_world(hosts, 2)
    (pid, *_) = hosts[1].pids("train.py rank")
    hosts[1].enter("kill", "-9", str(pid))
    wait_until(lambda: all(commands.begun(h)[-1][2] == 1 for h in hosts), timeout=30)
    assert commands.end(*hosts) == [0, 0]


def test_clocks_that_differ_by_ten_minutes_evict_nobody(commands, cluster):
    """The monotonic ones: others are never compared."""
    hosts = cluster.hosts[:2]
    commands.start(hosts[0], hosts[0].address, "--nnodes", "2")
    shifted = ("unshare", "--time", "--monotonic", "600", "--boottime", "600", "--fork")
    commands.start(hosts[1], hosts[0].address, "--nnodes", "2", before=shifted)
    commands.wait_for_world(hosts, 2)
    assert commands.end(*hosts) == [0, 0]
    assert all(len(commands.begun(host)) == 1 for host in hosts)
