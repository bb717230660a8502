"""Hosts that meet by themselves: `phalanx torchrun` on each of several real hosts.

Nothing leads them from outside; they are started by hand, as a user would, and lose each other.
"""

import re
import signal

import pytest

from tests.cluster import etcd as etcd_box
from tests.conftest import wait_until
from tests.ssh.commands import Commands

needs_etcd = pytest.mark.skipif(etcd_box.why_not() is not None, reason=str(etcd_box.why_not()))


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


def test_a_leader_that_was_stopped_follows_those_that_went_on(commands, cluster):
    """Its connections are all closed when it runs again: the others have not ended for that."""
    hosts = cluster.hosts[:3]
    first = hosts[0]
    for host in hosts:
        commands.start(host, first.address, "--nnodes", "1:3")
    commands.wait_for_world(hosts, 3)
    (pid,) = first.pids("-m phalanx torchrun")
    first.enter("kill", "-STOP", str(pid))
    commands.wait_for_world(hosts[1:], 2)
    first.enter("kill", "-CONT", str(pid))
    commands.running[first.name].send_signal(signal.SIGCONT)  # `nsenter` stops with it
    commands.wait_for_world(hosts, 3)
    assert 1 not in {world for _, world, _, _ in commands.begun(first)}
    assert commands.end(*hosts) == [0, 0, 0]


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
    for host in hosts:  # also where nothing has failed, and where nothing is decided
        said = commands.logs[host.name].read_text()
        assert re.search(r"rank \d on box2 was killed by SIGKILL\b", said), said


def test_clocks_that_differ_by_ten_minutes_evict_nobody(commands, cluster):
    """The monotonic ones: others are never compared."""
    hosts = cluster.hosts[:2]
    commands.start(hosts[0], hosts[0].address, "--nnodes", "2")
    shifted = ("unshare", "--time", "--monotonic", "600", "--boottime", "600", "--fork")
    commands.start(hosts[1], hosts[0].address, "--nnodes", "2", before=shifted)
    commands.wait_for_world(hosts, 2)
    assert commands.end(*hosts) == [0, 0]
    assert all(len(commands.begun(host)) == 1 for host in hosts)


@needs_etcd
def test_of_two_hosts_that_are_cut_off_from_each_other_one_goes_on(commands, cluster):
    """Both reach etcd, which says which; mended, they train together again."""
    hosts = cluster.hosts[:2]
    etcd = etcd_box.Etcd(address=f"{cluster.network}.254")
    rules = [
        (one, ("INPUT", "-s", other.address, "-j", "DROP")) for one, other in (hosts, hosts[::-1])
    ]
    try:
        for host in hosts:
            commands.start(host, etcd.endpoint, "--nnodes", "1:2", backend="etcd")
        commands.wait_for_world(hosts, 2)
        for host, rule in rules:
            host.enter("iptables", "-A", *rule)
        alone = lambda: [host for host in hosts if commands.begun(host)[-1][1] == 1]
        wait_until(alone, timeout=60)
        (other,) = [host for host in hosts if host not in alone()]
        wait_until(lambda: not other.pids("train.py rank"), timeout=60)
        assert len(alone()) == 1
        for host, rule in rules:
            host.enter("iptables", "-D", *rule)
        commands.wait_for_world(hosts, 2, timeout=80)
        assert commands.end(*hosts) == [0, 0]
    finally:
        commands.stop()
        etcd.close()


@needs_etcd
@pytest.mark.timeout(300)
def test_each_host_and_etcd_itself_are_lost(commands, cluster):
    """One after the other, by a crash or in silence; each comes back, and the sum is right."""
    hosts = cluster.hosts[:3]
    etcd = etcd_box.Etcd(3, address=f"{cluster.network}.254")
    flags = ("--nnodes", "1:3", "--max-restarts", "1")
    start = lambda host: commands.start(host, etcd.endpoint, *flags, backend="etcd")
    try:
        for host in hosts:
            start(host)
        commands.wait_for_world(hosts, 3)
        for lost, how in zip(hosts, ("killed", "silent", "killed"), strict=True):
            if how == "silent":
                lost.cut()
            lost.kill()
            commands.wait_for_world([host for host in hosts if host is not lost], 2)
            lost.reboot()
            start(lost)
            commands.wait_for_world(hosts, 3)
            assert [commands.begun(host)[-1][2] for host in hosts] == [0, 0, 0]
        for member in etcd.members:
            member.kill()
        said = lambda host: "cannot reach etcd" in commands.logs[host.name].read_text()
        wait_until(lambda: all(map(said, hosts)), timeout=60)
        (pid, *_) = hosts[1].pids("train.py rank")
        hosts[1].enter("kill", "-9", str(pid))
        wait_until(lambda: not any(host.pids("train.py rank") for host in hosts), timeout=60)
        for member in etcd.members:
            member.start()
        wait_until(lambda: all(commands.begun(host)[-1][2] == 1 for host in hosts), timeout=60)
        assert commands.end(*hosts) == [0, 0, 0]
        assert all("RIGHT" in commands.logs[host.name].read_text() for host in hosts)
    finally:
        commands.stop()
        etcd.close()
