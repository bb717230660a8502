"""Apps that go on when workers fail, and hosts are lost and come: on real hosts, with real torch.

The toy training adds up numbers, whoever is there to add them; its checkpoints are on the hosts' own
disks. After every fault the sum must be exactly right.
"""

import os
import signal
import time

import pytest

import phalanx
from phalanx import events
from phalanx._launcher.session import app_run
from tests.conftest import wait_until


def train(pause=0.02, least_steps=0):
    """Add up 0, 1, 2, …, ten a step, until told to end; gives the step, the sum and the host."""
    import json
    import pathlib

    import torch
    import torch.distributed as dist

    context = phalanx.context()
    told = []
    signal.signal(signal.SIGUSR2, lambda *_: told.append(1))
    place = pathlib.Path("/tmp/checkpoint.json")
    own = json.loads(place.read_text()) if place.exists() else [0, 0]
    known = [None] * context.world_size
    dist.all_gather_object(known, own)
    step, total = max(known)
    print(f"begins at {step} as {context.rank}/{context.world_size} in {context.round}", flush=True)
    while True:
        mine = [10 * step + i for i in range(10) if i % context.world_size == context.rank]
        state = torch.tensor([sum(mine), int(bool(told) and step >= least_steps)])
        dist.all_reduce(state)
        step, total = step + 1, total + int(state[0])
        place.with_suffix(".new").write_text(json.dumps([step, total]))
        os.replace(place.with_suffix(".new"), place)
        if state[1]:
            return step, total, context.host
        time.sleep(pause)


def check(result, hosts):
    """The sum is right, and everybody agrees."""
    for step, total, _ in result:
        assert total == sum(range(10 * step))
    assert len({(step, total) for step, total, _ in result}) == 1
    assert [host for _, _, host in result] == hosts
    assert list(result.results) == list(dict.fromkeys(hosts))


class FaultHistory(events.EventHandler):
    """Keeps what happened."""

    def __init__(self):
        self.events = []

    def record(self, event):
        self.events.append(event)

    def rounds(self):
        return [event.metadata["hosts"] for event in self.events if event.name == "round"]

    def named(self, name):
        return [event for event in self.events if event.name == name]


@pytest.fixture
def chronicle():
    handler = FaultHistory()
    events.configure(handler)
    yield handler
    events.configure()


def is_training(cluster, hosts, chronicle, rounds):
    """So many rounds have begun, and the workers of the last one are in the user's code."""

    def condition():
        return len(chronicle.named("running")) >= rounds

    wait_until(condition, timeout=40)
    assert chronicle.rounds()[-1] == hosts


def test_three_hosts_lose_each_in_turn(launcher, cluster, chronicle):
    """Rank 0's and the store's included; each comes back, and joins; no restart is spent."""
    names = cluster.names[:3]
    app = launcher(3, min_hosts=2, host_timeout=5).start(train)
    is_training(cluster, names, chronicle, 1)
    rounds = 1
    for host in cluster.hosts[:3]:
        host.kill()
        rounds += 1
        is_training(cluster, [name for name in names if name != host.name], chronicle, rounds)
        host.boot()
        rounds += 1
        is_training(cluster, names, chronicle, rounds)
    app.signal(signal.SIGUSR2)
    check(app.result(30), names)
    assert app.status().num_restarts == 0
    assert len(chronicle.named("loss")) == 3
    (end,) = chronicle.named("end")
    assert 0 < end.metadata["goodput"] < 1
    assert abs(end.timestamp - time.time()) < 60


def test_a_spare_replaces_a_lost_host(launcher, cluster, chronicle):
    """One of four hosts waits, then takes part; the app goes on with as many."""
    app = launcher(4, min_hosts=3, max_hosts=3).start(train)
    wait_until(lambda: chronicle.named("running"), timeout=60)
    (first,) = chronicle.rounds()  # the three that were there first
    (spare,) = [host for host in cluster.hosts if host.name not in first]
    assert not spare.pids("rank")
    lost = next(host for host in cluster.hosts if host.name == first[1])
    lost.kill()
    wait_until(lambda: len(chronicle.named("running")) >= 2, timeout=60)
    second = chronicle.rounds()[1]
    assert set(second) == {*first, spare.name} - {lost.name}
    app.signal(signal.SIGUSR2)
    check(app.result(30), second)


def test_a_silent_host_is_lost_after_host_timeout(launcher, cluster, chronicle, caplog):
    """Packets are dropped: the others go on, and what is on the host ends by itself.

    Nobody saw that: in the end the host is named, once.
    """
    app = launcher(3, min_hosts=2, host_timeout=2, orphan_timeout=4).start(train)
    is_training(cluster, cluster.names[:3], chronicle, 1)
    cluster.hosts[0].cut()
    is_training(cluster, ["box2", "box3"], chronicle, 2)
    wait_until(lambda: not cluster.hosts[0].processes(), timeout=20)
    app.signal(signal.SIGUSR2)
    check(app.result(30), ["box2", "box3"])
    end = [record.getMessage() for record in caplog.records if "box1" in record.getMessage()]
    assert sum("may be left" in line for line in end) == 1, end
    assert end[-1].startswith("phalanx: box1 did not answer: processes may be left there")
    assert not any("cancelled" in record.getMessage() for record in caplog.records), end


def test_a_host_that_is_added_joins(launcher, cluster, chronicle):
    """It is told apart from those that were lost: no restart is spent."""
    app = launcher(2, max_hosts=3).start(train)
    is_training(cluster, ["box1", "box2"], chronicle, 1)
    app.add_host("box3")
    is_training(cluster, ["box1", "box2", "box3"], chronicle, 2)
    app.signal(signal.SIGUSR2)
    check(app.result(30), ["box1", "box2", "box3"])
    assert app.status().num_restarts == 0


@pytest.mark.parametrize("ended", [True, False])
def test_a_host_that_is_added_while_the_app_ends_is_let_go(
    launcher, cluster, monkeypatch, *, ended
):
    """It was asked how many workers it takes, and an agent waits there."""
    real = app_run.add_host
    app = launcher(1, "auto", max_hosts=2, keep_warm=0).start(time.sleep, args=(600,))

    def asked_late(*arguments):
        plan = real(*arguments)
        assert cluster.hosts[1].processes()
        app.cancel(0.0)
        if ended:
            app.wait()
        return plan

    monkeypatch.setattr(app_run, "add_host", asked_late)
    if ended:
        with pytest.raises(phalanx.ConfigError, match="has ended"):
            app.add_host("box2")
    else:
        app.add_host("box2")
    app.wait()
    wait_until(lambda: not cluster.hosts[1].processes())


def test_a_failure_restarts_the_workers_of_all_hosts(launcher):
    """With one count everywhere, and a store that has nothing of the old one's."""

    def work():
        import torch
        import torch.distributed as dist

        context = phalanx.context()
        total = torch.ones(1)
        dist.all_reduce(total)
        if context.restart_count < 2 and context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(total)
        return context.restart_count, context.round, int(total)

    assert list(launcher(3, max_restarts=2).run(work)) == [(2, 3, 9)] * 3


def test_the_last_failure_is_final_and_tells_of_those_before(launcher):
    """`max_restarts=2`: the third."""

    def work():
        context = phalanx.context()
        if context.rank == 1:
            raise ValueError(f"for the {context.restart_count + 1}. time")
        time.sleep(60)

    with pytest.raises(ValueError, match="for the 3. time") as caught:
        launcher(2, max_restarts=2).run(work)
    notes = "\n".join(caught.value.__notes__)
    assert "Restarted 2 times, after:" in notes
    assert "rank 1 on box2 raised ValueError: for the 1. time" in notes


def test_hosts_that_do_not_communicate_restart_alone(launcher):
    """The other host's workers are not disturbed."""

    def work():
        context = phalanx.context()
        if context.rank == 1 and context.restart_count < 2:
            raise ValueError("again")
        time.sleep(1)
        return context.host, context.restart_count, os.getpid()

    first, second = launcher(2, max_restarts=2, restart="host").run(work)
    assert first[:2] == ("box1", 0)
    assert second[:2] == ("box2", 2)


def test_a_host_that_will_be_taken_away_leaves_when_its_workers_end(launcher, cluster, chronicle):
    """They learn of it through `should_stop`; the others form a group without it."""

    def work():
        import torch.distributed as dist

        context = phalanx.context()
        while context.world_size == 3:
            stops = [None] * 3
            dist.all_gather_object(stops, context.should_stop())
            if context.should_stop():
                assert context.host == "box2"
                return "left"
            time.sleep(0.02)
        return context.host

    app = launcher(3, min_hosts=1).start(work)
    is_training(cluster, cluster.names[:3], chronicle, 1)
    (agent,) = cluster.hosts[1].pids(" agent")
    cluster.hosts[1].enter("kill", "-USR1", str(agent))
    assert list(app.result(40)) == ["box1", "box3"]


def test_an_agent_that_is_told_to_end_leaves_at_once(launcher, cluster, chronicle):
    """The others form a group while its workers still have their grace."""

    def work():
        context = phalanx.context()
        if context.world_size == 3:
            signal.signal(signal.SIGTERM, lambda *_: None)
            time.sleep(600)
        return context.host

    app = launcher(3, min_hosts=2, stop_grace=3).start(work)
    is_training(cluster, cluster.names[:3], chronicle, 1)
    (agent,) = cluster.hosts[2].pids(" agent")
    cluster.hosts[2].enter("kill", "-TERM", str(agent))
    assert list(app.result(40)) == ["box1", "box2"]


def test_hosts_that_do_not_come_back_are_named(launcher, cluster):
    """With a restart to spend they are waited for; then the error says whom."""

    def stay():  # without torch, whose loading is part of the start and takes its time
        time.sleep(600)

    app = launcher(2, max_restarts=1, start_timeout=15).start(stay)
    states = lambda: [worker.state.value for worker in app.status().workers]
    wait_until(lambda: states() == ["running"] * 2, timeout=60)
    cluster.hosts[1].kill()
    with pytest.raises(phalanx.StartTimeout, match="box2"):
        app.result(120)


def test_a_host_that_cannot_be_used_is_done_without(launcher, cluster):
    """If the others are enough."""
    cluster.hosts[1].kill()
    result = launcher(3, min_hosts=2).run(lambda: phalanx.context().host)
    assert list(result) == ["box1", "box3"]


def test_a_host_that_comes_back_with_another_python_is_not_taken(cluster, launcher):
    """As one whose environments are not mounted yet: what it falls back to would fail all workers."""
    app = launcher(2, min_hosts=1, max_restarts=1).start(train)
    wait_until(lambda: len(app.status().workers) == 2, timeout=60)
    other, shown = cluster.hosts[1], cluster.shown
    cluster.shown = []
    try:
        other.reboot()
        reasons = lambda: list(app._run._session.missing.values())
        wait_until(lambda: any("its Python" in reason for reason in reasons()), timeout=60)
    finally:
        cluster.shown = shown
    wait_until(lambda: app.signal(signal.SIGUSR2) or app.status().state.is_final, timeout=60)
    check(app.result(), cluster.names[:1])
    other.reboot()
