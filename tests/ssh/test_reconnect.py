"""With `reconnect_timeout`, what runs on hosts does not notice that a connection breaks."""

import time

import pytest

import phalanx
from phalanx.runner import get_runner
from phalanx.specs import AppDef, AppState, Role
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
    first.enter("kill", "-HUP", "1")  # the one that listens begins anew
    assert list(app.result(90)) == [(40.0, 0)] * 2
    assert _lines(app) == [f"step {step}" for step in range(40)]


def test_a_connection_is_reset(launcher, cluster, caplog):
    """By something on the way, which turns new ones away as well for a while."""
    app = launcher(1, reconnect_timeout=30.0).start(count)
    wait_until(lambda: "step 5" in _lines(app), timeout=60)
    reset = ("INPUT", "-p", "tcp", "--dport", "22", "-j", "REJECT", "--reject-with", "tcp-reset")
    cluster.hosts[0].enter("iptables", "-I", *reset)
    try:
        wait_until(lambda: "broke" in caplog.text)
    finally:
        cluster.hosts[0].enter("iptables", "-D", *reset)
    assert list(app.result(90)) == [40]
    assert _lines(app) == [f"step {step}" for step in range(40)]


def test_a_laptop_that_moves_to_another_network(launcher, cluster):
    """Silence for longer than `host_timeout`, then it is back, under another address."""
    app = launcher(1, host_timeout=2.0, reconnect_timeout=60.0).start(count)
    wait_until(lambda: "step 5" in _lines(app), timeout=60)
    cluster.hosts[0].cut()
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 4)
    cluster.move(to=253)
    try:
        cluster.hosts[0].mend()
        assert list(app.result(90)) == [40]
    finally:
        cluster.move(to=254)
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


def test_an_app_on_hosts_does_not_notice_a_login_that_ends(cluster, tmp_path):
    """With the option of `-s ssh` for it."""
    script = "for i in $(seq 40); do echo step $i; sleep 0.1; done"
    config = {"hosts": cluster.names[:1], "ssh_config_file": str(cluster.ssh_config)}
    app = AppDef("job", [Role("role", entrypoint="sh", args=["-c", script])])
    with get_runner() as runner:
        handle = runner.run(app, "ssh", {**config, "reconnect_timeout": 30.0})
        lines = lambda: list(runner.log_lines(handle, "role", 0))
        wait_until(lambda: any("step 5" in line for line in lines()), timeout=60)
        host = cluster.hosts[0]
        host.enter("kill", "-KILL", *_sessions(host))
        status = runner.wait(handle, wait_interval=0.1)
        assert status.state is AppState.SUCCEEDED, status
        assert [line.strip() for line in lines()] == [f"step {i + 1}" for i in range(40)]
        runner.delete(handle)
