"""`phalanx hosts check` and `Launcher.check`."""

import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from tests.ssh.test_failures import _other_python


def check(cluster, *arguments):
    command = [sys.executable, "-m", "phalanx", "hosts", "check", *arguments]
    command += ["--ssh-config-file", str(cluster.ssh_config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_row_for_each_host(cluster):
    """This machine among them; all reach each other."""
    done = check(cluster, "box1", "localhost", "box2")
    assert done.returncode == 0, done.stderr
    heads, *rows = done.stdout.splitlines()
    assert heads.split()[0] == "HOST"
    assert [row.split()[0] for row in rows] == ["box1", "localhost", "box2"]
    assert all(row.endswith("all") and platform.python_version() in row for row in rows)


def test_json_has_everything(cluster):
    """Numbers, not texts."""
    done = check(cluster, "box1", "box2", "--json")
    found = json.loads(done.stdout)
    assert found["usable"] is True
    first = found["hosts"][0]
    assert first["processors"] == len(os.sched_getaffinity(0))
    assert first["memory"] > 1 << 30
    assert abs(first["clock_offset"]) < 1
    assert 0 < first["round_trip"] < 1
    assert 0 < first["login_seconds"] < 30
    assert first["address"] == cluster.hosts[0].address


def test_hosts_that_cannot_be_used_are_told_with_the_reason(cluster):
    """The others are told all the same; the exit code says so."""
    done = check(cluster, "box1", "nosuchhost")
    assert done.returncode == 1
    assert "box1" in done.stdout
    assert "nosuchhost: not usable: ssh: Could not resolve hostname" in done.stdout


def test_hosts_that_do_not_reach_each_other_are_told(cluster):
    """Which, and why."""
    rule = ["INPUT", "-s", cluster.hosts[0].address, "-j", "REJECT", "--reject-with"]
    rule.append("icmp-port-unreachable")
    cluster.hosts[1].enter("iptables", "-I", *rule)
    try:
        done = check(cluster, "box1", "box2")
    finally:
        cluster.hosts[1].enter("iptables", "-D", *rule)
    assert done.returncode == 1
    assert "warning: box1 cannot reach box2: Connection refused" in done.stderr


def test_another_python_is_a_warning_and_not_usable(cluster):
    """Its version is told."""
    other = _other_python()
    if other is None:
        import pytest

        pytest.skip("no other Python in /usr; 'make test SYSTEM=1' installs pypy3")
    done = check(cluster, "box1", "--python", other)
    assert done.returncode == 1
    assert "warning: box1 has Python 3" in done.stderr


def test_a_launcher_checks_its_hosts(launcher):
    """The same, as data."""
    report = launcher(2).check()
    assert report.usable
    assert not report.warnings
    assert [host.hostname for host in report.hosts] == ["box1", "box2"]


def test_mistakes_of_the_command(cluster):
    """One sentence, and code 2."""
    for arguments in (["-x"], ["bogus"]):
        done = subprocess.run(
            [sys.executable, "-m", "phalanx", "hosts", *arguments], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert check(cluster, "not a valid host").returncode == 2


def test_without_hosts_it_is_this_machine():
    """And usable."""
    assert phalanx.Launcher().check().hosts[0].python == platform.python_version()


def test_hosts_are_checked_where_workers_start(cluster, launcher):
    """By our own checks and a function; one that fails is done without, and named."""

    def is_marked():
        return "it is marked" if Path("/tmp/marked").exists() else None

    cluster.hosts[1].write("/tmp/marked", "")
    try:
        checks = ["disk=1MiB", "clock", is_marked]
        result = launcher(2, min_hosts=1, host_checks=checks).run(socket.gethostname)
        assert list(result) == ["box1"]
        with pytest.raises(phalanx.StartFailed, match="box2.*: host check is_marked failed: it is"):
            launcher(2, host_checks=checks).run(socket.gethostname)
    finally:
        cluster.hosts[1].enter("rm", "/tmp/marked")
