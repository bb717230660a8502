"""Many calls on several hosts: spread, and made again elsewhere when a host is lost."""

import os
import socket
import time
from pathlib import Path

import pytest

import phalanx
from tests.conftest import wait_until


def items(count):
    return [{"x": x} for x in range(count)]


def where(x):
    return socket.gethostname()


def test_calls_are_spread_over_the_hosts(launcher):
    """One on each at a time; each knows where it was made."""
    results = list(launcher(2).map(where, items(6)))
    assert {r.rank(0) for r in results} == {"box1", "box2"}
    assert all(r.members[0].hostname == r.rank(0) for r in results)


def test_a_call_may_have_several_hosts(launcher):
    """With ranks across them."""

    def ranks(x):
        return socket.gethostname(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    results = list(launcher(4, workers=1).map(ranks, items(2), hosts_per_call=2))
    for result in results:
        assert [(rank, world) for _, rank, world in result] == [(0, 2), (1, 2)]
        assert len({host for host, *_ in result}) == 2


def test_a_call_whose_host_is_lost_is_made_on_another(launcher, cluster):
    """Those on the other host go on."""

    def hang_on_first(x):
        if socket.gethostname() == "box1":
            time.sleep(120)
        return x, socket.gethostname()

    calls = launcher(2, host_timeout=5.0).map(
        hang_on_first, items(3), retries=1, max_parallel=2, ordered=False
    )
    wait_until(lambda: cluster.hosts[0].pids("rank 0"), timeout=60)
    cluster.hosts[0].kill()
    results = sorted(r.rank(0) for r in calls)
    assert results == [(0, "box2"), (1, "box2"), (2, "box2")]


def test_without_retries_a_lost_host_is_a_failure(launcher, cluster):
    """Which names it."""

    def hang(x):
        time.sleep(120)

    calls = launcher(1, host_timeout=5.0).map(hang, items(1))
    wait_until(lambda: cluster.hosts[0].pids("rank 0"), timeout=60)
    cluster.hosts[0].kill()
    with pytest.raises(phalanx.MapFailed) as caught:
        list(calls)
    (error,) = caught.value.failures.values()
    assert isinstance(error, phalanx.AgentLost)
    assert error.hostname == "box1"


def test_output_of_calls_on_other_hosts_comes_home(launcher):
    """Into a file for each."""

    def say(x):
        print("here is", x)

    list(launcher(2).map(say, items(2)))
    found = {p.name: p.read_text() for p in Path("logs").glob("*/*.log")}
    assert found == {"0.log": "here is 0\n", "1.log": "here is 1\n"}
