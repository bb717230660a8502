"""Nothing is left on any host, however a launch ends."""

import os
import signal
import subprocess
import time

import pytest

from tests.conftest import is_alive, wait_until

BUSY = """
def work():
    import subprocess, sys
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["setsid", "sleep", "601"])
    print("running", flush=True)
    time.sleep(600)

launcher.run(work)
"""


def running(cluster, count=2):
    return all(h.pids("sleep 600") and h.pids("sleep 601") for h in cluster.hosts[:count])


def quiet(cluster):
    return all(not host.processes() for host in cluster.hosts[:2])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_signal_to_the_launcher_leaves_nothing(remote_script, cluster, number):
    """Grandchildren and daemons of workers among it."""
    started = remote_script.start(BUSY)
    wait_until(lambda: running(cluster), 30)
    started.send_signal(number)
    _, errors = started.communicate(timeout=60)
    wait_until(lambda: quiet(cluster), 10)
    assert "Traceback" not in errors
    assert not any(host.files() for host in cluster.hosts[:2])


@pytest.mark.parametrize("after", [0.05, 0.15, 0.3, 0.5])
def test_ctrl_c_while_hosts_are_dialled_leaves_nothing(remote_script, cluster, after):
    """At any moment of the start, with or without counts to ask for."""
    for workers in (1, "auto"):
        started = remote_script.start("print('up', flush=True)\n" + BUSY, workers_per_host=workers)
        started.stdout.readline()
        time.sleep(after)
        started.send_signal(signal.SIGINT)
        _, errors = started.communicate(timeout=60)
        assert "Traceback" not in errors, errors
        wait_until(lambda: quiet(cluster), 10)


def test_a_killed_ssh_leaves_nothing(remote_script, cluster):
    """The launcher says so."""
    started = remote_script.start(BUSY)
    wait_until(lambda: running(cluster), 30)
    found = subprocess.run(["pgrep", "-P", str(started.pid), "ssh"], capture_output=True, text=True)
    os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
    _, errors = started.communicate(timeout=60)
    assert "AgentLost" in errors
    wait_until(lambda: quiet(cluster), 10)


def test_a_launcher_that_is_killed_while_the_network_is_cut(remote_script, cluster):
    """The agent there ends by itself; the ssh here does not stay."""
    started = remote_script.start(BUSY, host_timeout=3, orphan_timeout=3)
    wait_until(lambda: running(cluster), 30)
    found = subprocess.run(["pgrep", "-P", str(started.pid), "ssh"], capture_output=True, text=True)
    ssh = [int(pid) for pid in found.stdout.split()]
    assert len(ssh) == 2
    cluster.hosts[1].cut()
    started.kill()
    started.communicate()
    wait_until(lambda: quiet(cluster), 20)
    wait_until(lambda: not any(map(is_alive, ssh)), 20)


def test_a_launcher_that_is_stopped_and_continued_ends_nothing(remote_script, cluster):
    """For longer than host_timeout."""
    started = remote_script.start(
        "print(list(launcher.run(time.sleep, args=(6,))))", host_timeout=2
    )
    wait_until(lambda: cluster.hosts[1].pids("rank 1"), 30)
    started.send_signal(signal.SIGSTOP)
    time.sleep(4)
    started.send_signal(signal.SIGCONT)
    output, errors = started.communicate(timeout=30)
    assert output.strip() == "[None, None]", errors


def test_workers_that_ignore_sigterm_are_killed_after_the_grace(remote_script, cluster):
    """On every host."""
    started = remote_script.start(
        """
def stubborn():
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", flush=True)
    time.sleep(600)

launcher.run(stubborn)
""",
        stop_grace=1.0,
    )
    started.stdout.readline()
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=60)
    wait_until(lambda: quiet(cluster), 5)


def test_an_app_on_hosts_is_cancelled_from_another_terminal(
    remote_script, cluster, tmp_path, monkeypatch
):
    """It is in the registry like any other."""
    import sys

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # no other app runs there
    started = remote_script.start(BUSY)
    wait_until(lambda: running(cluster), 30)
    phalanx = [sys.executable, "-m", "phalanx"]
    listed = subprocess.run([*phalanx, "list"], capture_output=True, text=True)
    assert "box1" in listed.stdout
    subprocess.run([*phalanx, "cancel"], check=True, capture_output=True)
    _, errors = started.communicate(timeout=60)
    assert "Cancelled" in errors
    assert quiet(cluster)


def test_agent_and_zygote_killed_together_leave_nothing(remote_script, cluster):
    """Not even what workers had started: it is swept up."""
    started = remote_script.start(BUSY)
    wait_until(lambda: running(cluster), 30)
    host = cluster.hosts[1]
    pids = [*host.pids(" agent"), *host.pids(" zygote")]
    host.enter("kill", "-9", *map(str, pids), check=False)  # the first may take the second along
    _, errors = started.communicate(timeout=30)
    assert "AgentLost" in errors
    wait_until(lambda: quiet(cluster), 10)
    wait_until(lambda: not host.files(), 10)
