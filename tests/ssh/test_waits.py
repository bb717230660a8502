"""Over SSH: every wait has an end, and what is left on a host that does not answer is said."""

import os
import signal
import subprocess
import time

import pytest

from tests.conftest import is_alive, wait_until
from tests.process.test_waits import SLACK
from tests.ssh.test_cleanup import BUSY, quiet, running


def logins(started):
    """The ssh processes of a launcher."""
    found = subprocess.run(["pgrep", "-P", str(started.pid), "ssh"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def stop_there(host, pids):
    host.enter("kill", "-STOP", *map(str, pids))


def test_an_ssh_that_is_stopped_while_it_logs_in(remote_script, cluster):
    """Nothing is known of the host then, and that is said."""
    started = remote_script.start("launcher.run(print)", start_timeout=3)
    ssh = wait_until(lambda: logins(started))
    for pid in ssh:
        os.kill(pid, signal.SIGSTOP)
    _, errors = started.communicate(timeout=30)
    assert "box1" in errors and ("took more than 3 s" in errors or "still logging in" in errors)
    assert "did not answer: processes may be left there" in errors
    wait_until(lambda: not any(map(is_alive, ssh)))


def test_a_login_that_hangs(remote_script, cluster):
    """Its host is named."""
    cluster.hosts[1].write("/root/.bashrc", "sleep 5\n")
    try:
        started = remote_script.start("launcher.run(print)", start_timeout=2)
        _, errors = started.communicate(timeout=30)
    finally:
        cluster.hosts[1].enter("rm", "/root/.bashrc")
    assert "box2" in errors and "login" in errors, errors
    assert "box2 did not answer: processes may be left there" in errors
    assert "box1 did not" not in errors


@pytest.mark.parametrize("who", ["zygote", "agent"])
def test_one_that_is_stopped_while_packages_load(remote_script, cluster, who, tmp_path):
    """It is ended by another login, so nothing is said to be left."""
    pid = "os.getpid()" if who == "zygote" else "os.getppid()"
    cluster.hosts[1].write(
        "/opt/waits/slow.py",
        f"import os, signal, time\ntime.sleep(0.5)\nos.kill({pid}, signal.SIGSTOP)\n"
        "time.sleep(300)\n",
    )
    cluster.hosts[0].write("/opt/waits/slow.py", "")
    code = "sys.path.append('/opt/waits')\nlauncher.run(print)"
    started = remote_script.start(code, start_timeout=12, preload=["slow"])
    _, errors = started.communicate(timeout=40)
    assert "StartTimeout: timed out after 12 s" in errors
    assert "box2: still importing slow" in errors
    assert "box1:" not in errors
    assert "may be left" not in errors, errors
    assert quiet(cluster)


def test_an_agent_that_is_stopped_before_it_is_one(remote_script, cluster, tmp_path):
    """Nobody knows its process: the message says that something may be left."""
    (tmp_path / "env.sh").write_text('[ "$(hostname)" = box2 ] && kill -STOP $PPID; true\n')
    started = remote_script.start("launcher.run(print)", start_timeout=8, env_file="env.sh")
    _, errors = started.communicate(timeout=30)
    assert "box2" in errors and ("took more than 8 s" in errors or "still logging in" in errors)
    assert "box2 did not answer: processes may be left there" in errors
    host = cluster.hosts[1]
    host.enter("kill", "-9", *(line.split()[0] for line in host.processes()), check=False)
    wait_until(lambda: not host.processes(), message=str(host.processes()))


@pytest.mark.parametrize("who", [" agent", " zygote"])
def test_a_signal_while_one_there_is_stopped(remote_script, cluster, who):
    """Soon after the grace everything is gone, there too."""
    started = remote_script.start(BUSY, stop_grace=0.5)
    wait_until(lambda: running(cluster), 30)
    host = cluster.hosts[1]
    stop_there(host, host.pids(who))
    began = time.monotonic()
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=30)
    assert time.monotonic() - began < 0.5 + 1 + SLACK
    assert "phalanx: interrupted; nothing is left running" in errors
    assert quiet(cluster)


def test_a_signal_while_agent_and_zygote_there_are_stopped(remote_script, cluster):
    """Neither sees the other's end."""
    started = remote_script.start(BUSY, stop_grace=0.5)
    wait_until(lambda: running(cluster), 30)
    host = cluster.hosts[1]
    stop_there(host, [*host.pids(" agent"), *host.pids(" zygote")])
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=30)
    assert "phalanx: interrupted; nothing is left running" in errors
    assert quiet(cluster)


def test_a_signal_while_ssh_is_stopped(remote_script, cluster):
    """It is continued."""
    started = remote_script.start(BUSY, stop_grace=0.5)
    wait_until(lambda: running(cluster), 30)
    for pid in logins(started):
        os.kill(pid, signal.SIGSTOP)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=30)
    assert "phalanx: interrupted; nothing is left running" in errors
    assert quiet(cluster)


def test_a_signal_while_a_host_is_cut_off(remote_script, cluster):
    """What is there cannot be seen, and is not said to be gone."""
    started = remote_script.start(BUSY, stop_grace=0.5, orphan_timeout=3)
    wait_until(lambda: running(cluster), 30)
    cluster.hosts[1].cut()
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=30)
    assert "phalanx: interrupted; box2 did not answer: processes may be left there" in errors
    cluster.hosts[1].mend()
    wait_until(lambda: quiet(cluster), 20)
    wait_until(lambda: not cluster.hosts[1].files(), 20)


def test_what_a_kill_of_everything_left_on_a_host_is_swept_by_the_next_launch(
    remote_script, cluster, launcher
):
    """Nobody was there to see it: not the launcher, nor the agent, nor the zygote."""
    started = remote_script.start(BUSY)
    wait_until(lambda: running(cluster), 30)
    host = cluster.hosts[1]
    ours = [*host.pids(" agent"), *host.pids(" zygote")]
    stop_there(host, ours)
    started.kill()
    started.communicate()
    host.enter("kill", "-9", *map(str, ours), check=False)  # one may end with the other
    assert host.pids("sleep 600") and host.pids("sleep 601")
    assert host.files()
    assert len(launcher().run(os.getpid)) == 2
    wait_until(lambda: quiet(cluster), 10)
    assert not host.files()
