"""A failure over several hosts is told once: where it happened, and named elsewhere."""

import json
import re
import subprocess
import sys

import pytest

from tests.ssh.commands import Commands

FAILS = """
import os, time

def main():
    if os.environ["RANK"] == "3":
        raise ValueError("boom")
    time.sleep(600)

if __name__ == "__main__":
    main()
"""
STOPPED = "phalanx torchrun: stopped: rank 3 on box2 raised ValueError: boom"


def command(*words):
    words = [sys.executable, "-m", "phalanx", *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def times_told(text):
    """How often the traceback's last line is there as a line, whoever's it is."""
    return len(re.findall(r"^(?:\w+/\d )?\s*ValueError: boom$", text, re.MULTILINE))


@pytest.fixture(autouse=True)
def script(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)


@pytest.fixture
def commands(cluster, tmp_path):
    made = Commands(cluster, tmp_path, FAILS)
    yield made
    made.stop()


def test_an_app_over_ssh(cluster):
    """In the output of the replica that it happened in; the last words point there."""
    cfg = f"hosts=box1,box2,stop_grace=2,ssh_config_file={cluster.ssh_config}"
    ddp = ("dist.ddp", "-j", "2x2", "--script", "fails.py")
    done = command("run", "--wait", "--log", "-s", "ssh", "-cfg", cfg, *ddp)
    assert done.returncode == 1
    assert times_told(done.stdout + done.stderr) == 1, done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert re.search(r"^fails/1   ValueError: boom$", done.stderr, re.MULTILINE)
    about_0 = [line for line in done.stderr.splitlines() if line.startswith("fails/0")]
    assert about_0[-1] == f"fails/0 {STOPPED}"
    assert sum("rank 3" in line for line in about_0) == 1
    last = done.stderr[done.stderr.index("phalanx run: ssh://") :].splitlines()
    assert last[1] == "  fails/1 exited with code 1: ValueError: boom (rank 3 on box2)"
    assert last[2].startswith("  Full log: ")
    assert last[2].endswith("/fails/1/stderr.log")
    app = done.stdout.strip().rpartition("/")[2]
    assert times_told(command("log", app).stdout) == 1
    status = command("status", app).stdout
    assert "fails/1 exited with code 1: ValueError: boom (rank 3 on box2)" in status
    roles = json.loads(command("status", "--json", app).stdout)["status"]["roles"]
    first, second = roles[0]["replicas"]
    assert (second["state"], second["error"]) == ("FAILED", "ValueError: boom")
    assert "in main\n" in second["traceback"]
    stopped = "stopped: rank 3 on box2 raised ValueError: boom"
    assert first["error"] == {"FAILED": stopped, "CANCELLED": ""}[first["state"]]


def test_no_log_is_named_that_is_not_there(cluster):
    """A replica that never started has written nothing."""
    cfg = f"hosts=box1,ssh_config_file={cluster.ssh_config},python=/usr/share"
    done = command("run", "--log", "-s", "ssh", "-cfg", cfg, "utils.echo", "--msg", "x")
    assert done.returncode == 1
    assert "/usr/share has no bin/python" in done.stderr
    assert "Full log" not in done.stderr


def test_torchrun_typed_on_two_hosts(cluster, commands):
    """They share no report: one has all of it, the other says where to look."""
    hosts = cluster.hosts[:2]
    for host in hosts:
        commands.start(host, hosts[0].address, "--nnodes", "2", "--nproc-per-node", "2")
    assert [commands.running[host.name].wait(60) for host in hosts] == [1, 1]
    one, other = (commands.logs[host.name].read_text() for host in hosts)
    assert times_told(one + other) == times_told(other) == 1, one + other
    assert one.splitlines()[-1] == STOPPED
    assert one.count("rank 3") == 1
    assert "phalanx torchrun: rank 3 on box2 (pid " in other
    assert "3 other workers were stopped." in other


@pytest.mark.parametrize("show", ["0", "3", "all"])
def test_a_launch_over_two_hosts(cluster, show):
    """Whether the rank's output is shown or not."""
    hosts = ("--hostnames", "box1", "box2", "--ssh-config-file", cluster.ssh_config)
    done = command("launch", "fails.py:main", *hosts, "--workers-per-host", 2, "--show", show)
    assert done.returncode == 1
    assert times_told(done.stdout + done.stderr) == 1, done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "raised by rank 3 on box2 after" in done.stderr
    assert "\n3 other workers were stopped." in done.stderr
