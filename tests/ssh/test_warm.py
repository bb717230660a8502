"""Agents on other hosts between two runs."""

import os
import socket
from pathlib import Path

import pytest

import phalanx
from tests.conftest import wait_until


def agents():
    return socket.gethostname(), os.getppid()


def test_agents_of_hosts_stay_within_a_with(launcher, cluster):
    """The zygote is the same; the project is as it is now."""
    with launcher(2, 2) as run:
        first = list(run.run(agents))
        Path("new.txt").write_text("now")
        assert list(run.run(agents)) == first
        assert list(run.run(lambda: Path("new.txt").read_text())) == ["now"] * 4
        with pytest.raises(ZeroDivisionError):
            run.run(lambda: 1 / 0)
        assert list(run.run(agents)) == first
    assert all(not host.processes() for host in cluster.hosts)


def test_the_number_of_workers_is_known_the_second_time(launcher):
    """No host is dialled again."""
    with launcher(2, "auto") as run:
        assert list(run.run(agents)) == list(run.run(agents))


def test_a_lost_host_is_dialled_again_at_the_next_run(launcher, cluster):
    """As if nothing had been."""
    with launcher(2) as run:
        before = list(run.run(agents))
        cluster.hosts[1].reboot()
        after = list(run.run(agents))
        assert after[0] == before[0]
        assert after[1][0] == "box2"
        app = run.start(lambda: __import__("time").sleep(60))
        wait_until(lambda: cluster.hosts[0].pids("rank 0"))
        cluster.hosts[0].reboot()
        with pytest.raises(phalanx.AgentLost):
            app.result(20)
        assert [value[0] for value in run.run(agents)] == ["box1", "box2"]


def test_a_new_agent_on_one_host_leaves_that_of_another_alone(launcher, cluster):
    """Of the same launch, and of one that does without it."""
    with launcher(2) as run:
        both = run.hostnames
        run.hostnames = both[1:]
        (second,) = run.run(agents)
        run.hostnames = both[:1]
        (first,) = run.run(agents)
        run.hostnames = both
        assert list(run.run(agents)) == [first, second]


def test_two_runs_at_once_on_hosts(launcher):
    """An agent each."""
    with launcher(2) as run:
        apps = [run.start(agents) for _ in range(3)]
        values = [list(app.result(30)) for app in apps]
    assert len({value[0] for value in values}) == 3


def test_warm_is_for_this_machine(launcher, cluster):
    """It says what to do instead."""
    with pytest.raises(phalanx.ConfigError, match="with phalanx.Launcher"):
        phalanx.warm("json", hostnames=["box1"], ssh_config_file=str(cluster.ssh_config))
