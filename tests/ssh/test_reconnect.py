"""With `reconnect_timeout`, what runs on hosts does not notice that a connection breaks."""

import time

import pytest

import phalanx
from tests.conftest import wait_until


def train(steps=40):
    """All ranks together, step by step, for some seconds."""
    import torch
    import torch.distributed as dist

    total = torch.zeros(1)
    for step in range(steps):
        total += 1
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
        print(f"step {step}", flush=True)
        time.sleep(0.1)
    return total.item(), phalanx.context().restart_count


def _sessions(host):
    """The processes of sshd that each serve one login."""
    lines = host.enter("ps", "-eo", "pid=,args=", "-ww").splitlines()
    return [line.split()[0] for line in lines if "sshd: root@" in line]


def count(steps=40):
    """Some seconds of output."""
    for step in range(steps):
        print(f"step {step}", flush=True)
        time.sleep(0.1)
    return steps


def _lines(app):
    return [line.text for line in app.logs([0]) if line.text.startswith("step")]


def test_sshd_is_restarted(launcher, cluster):
    """All logins of a host end; its workers go on, in the same round."""
    app = launcher(reconnect_timeout=30.0).start(train)
    wait_until(lambda: "step 5" in _lines(app), timeout=60)
    first = cluster.hosts[0]
    first.enter("kill", "-KILL", *_sessions(first))
    assert list(app.result(90)) == [(40.0, 0)] * 2
    assert _lines(app) == [f"step {step}" for step in range(40)]


def test_a_network_that_is_away_for_a_while(launcher, cluster):
    """Longer than `host_timeout`, in silence, as for a laptop that moves; then it is back."""
    app = launcher(1, host_timeout=2.0, reconnect_timeout=60.0).start(count)
    wait_until(lambda: "step 5" in _lines(app), timeout=60)
    cluster.hosts[0].cut()
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 4)
    cluster.hosts[0].mend()
    assert list(app.result(90)) == [40]
    assert _lines(app) == [f"step {step}" for step in range(40)]


def test_a_killed_launcher_does_not_come_back(remote_script, cluster):
    """Hosts wait for it for `reconnect_timeout`, and end everything."""
    started = remote_script.start(
        "print('ready', flush=True); launcher.run(lambda: __import__('time').sleep(600))",
        reconnect_timeout=2.0,
    )
    wait_until(lambda: all(host.pids("rank") for host in cluster.hosts[:2]), timeout=60)
    started.kill()
    started.wait()
    for host in cluster.hosts[:2]:
        wait_until(lambda host=host: not host.processes())
    started.stdout.close()
    started.stderr.close()


def test_a_failure_after_a_break_is_told_as_any_other(launcher, cluster):
    """With its own type."""

    def fail():
        print("here", flush=True)
        time.sleep(2)
        raise ValueError("no")

    app = launcher(1, reconnect_timeout=30.0).start(fail)
    assert next(app.logs(follow=True)).text == "here"
    host = cluster.hosts[0]
    host.enter("kill", "-KILL", *_sessions(host))
    with pytest.raises(ValueError, match="no"):
        app.result(60)
