"""What must hold of a rendezvous over TCP, over hundreds of simulated histories.

The guarantees are those of docs/design.md: within a round everybody sees the same members, ranks
and store; round numbers only grow; a member of an old round cannot act in a new one; with enough
hosts left the group forms.
"""

import asyncio
import os

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from phalanx._core.rounds import Endpoint
from phalanx._rendezvous import protocol as p
from phalanx._rendezvous.protocol import Reason
from phalanx._rendezvous.settings import Settings
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.tcp_decider import TcpDecider
from tests.unit.simulation import simulate


def check_agreement(hosts):
    """Nobody saw another round under the same number, and numbers grew."""
    known = {}
    for host in hosts:
        numbers = [round_.number for round_ in host.seen]
        assert numbers == sorted(set(numbers)), (host.name, numbers)
        counts = [round_.restarts for round_ in host.seen]
        assert counts == sorted(counts), (host.name, counts)
        for round_ in host.seen:
            assert known.setdefault(round_.number, round_) == round_, (host.name, round_)
            assert host.name in [member.hostname for member in round_.members]
    for round_ in known.values():
        ranks = [rank for member in round_.members for rank in member.ranks]
        assert ranks == list(range(len(round_.members)))
        assert round_.store.address == round_.members[0].hostname


def check_formed(hosts, least):
    """Those that are left are in one round, all of them."""
    alive = [host for host in hosts if host.is_in]
    if len(alive) < least:
        return
    rounds = {host.current for host in alive}
    assert len(rounds) == 1, [(h.name, h.current, h.error, h.verdict) for h in hosts]
    (number,) = rounds
    assert number is not None, [(h.name, h.seen[-1:], h.decider.phase) for h in alive]
    members = {member.hostname for member in alive[0].seen[-1].members}
    assert members == {host.name for host in alive}
    lasts = [host.net.loop.time() - host.began_at for host in alive]
    assert min(lasts) > SETTLED, [(host.name, len(host.seen)) for host in alive]


SETTLED = 3.0
"""Seconds that the round has lasted in the end: hosts are not torn out of it again and again."""
EVERY = list(HealthCheck)
HISTORIES = int(os.environ.get("HISTORIES", "100"))
"""For each test, the same every time: a change to the rendezvous is worth some thousands."""
PAUSES = st.sampled_from([0.0, 0.02, 0.3, 2.0, 6.0])


@settings(max_examples=HISTORIES, deadline=None, derandomize=True, suppress_health_check=EVERY)
@given(
    count=st.integers(1, 5),
    crashes=st.lists(st.tuples(PAUSES, st.just("crash"), st.integers(0, 4)), max_size=4),
    seed=st.integers(0, 1 << 30),
)
@example(count=3, crashes=[(3.0, "crash", 0), (0.0, "crash", 1)], seed=1)
def test_crashes_are_survived_whoever_is_hit(count, crashes, seed):
    """Also the one that decides, and its successor, at any moment; down to one host."""
    first = [(8.0, "nothing", 0)]
    hosts = simulate(first + crashes, count, 1, count, seed)
    check_agreement(hosts)
    check_formed(hosts, 1)
    assert all(host.verdict is None and host.error is None for host in hosts if host.is_up)


@settings(max_examples=HISTORIES, deadline=None, derandomize=True, suppress_health_check=EVERY)
@given(
    count=st.integers(2, 4),
    lost=st.lists(st.tuples(PAUSES, st.integers(0, 3)), max_size=3),
    seed=st.integers(0, 1 << 30),
)
@example(count=3, lost=[(6.0, 0)], seed=1)
def test_hosts_that_come_back_join_those_that_went_on(count, lost, seed):
    """One after another; also where it began, and by then another decides."""
    events = [(8.0, "nothing", 0)]
    for pause, number in lost:
        events += [(6.0, "crash", number % count), (pause, "return", number % count)]
    hosts = simulate(events, count, 2, count, seed, failure_window=40.0)
    check_agreement(hosts)
    assert all(host.is_in for host in hosts), [(h.name, h.error, h.verdict) for h in hosts]
    check_formed(hosts, 2)


@settings(max_examples=HISTORIES, deadline=None, derandomize=True, suppress_health_check=EVERY)
@given(
    count=st.integers(2, 4),
    events=st.lists(
        st.tuples(PAUSES, st.sampled_from(["crash", "fail", "fail"]), st.integers(0, 3)),
        max_size=6,
    ),
    seed=st.integers(0, 1 << 30),
)
def test_failures_and_crashes_in_any_order(count, events, seed):
    """The budget ends it, for everybody alike; otherwise it goes on."""
    hosts = simulate([(8.0, "nothing", 0), *events], count, 1, count, seed)
    check_agreement(hosts)
    verdicts = {host.verdict.reason for host in hosts if host.is_up and host.verdict is not None}
    assert verdicts <= {Reason.FAILED}
    if not verdicts:
        check_formed(hosts, 1)


@settings(max_examples=HISTORIES, deadline=None, derandomize=True, suppress_health_check=EVERY)
@given(
    count=st.integers(2, 5),
    events=st.lists(
        st.tuples(PAUSES, st.sampled_from(["cut", "cut", "mend", "crash"]), st.integers(0, 31)),
        max_size=6,
    ),
    seed=st.integers(0, 1 << 30),
)
def test_two_sides_of_a_cut_never_both_go_on(count, events, seed):
    """At most one side forms rounds; a minority that hears nothing ends, and says so."""
    hosts = simulate([(8.0, "nothing", 0), *events], count, 1, count, seed)
    check_agreement(hosts)


@settings(max_examples=HISTORIES, deadline=None, derandomize=True, suppress_health_check=EVERY)
@given(
    count=st.integers(2, 5),
    events=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.02, 0.3, 2.0, 6.0, 12.0]),
            st.sampled_from(["pause", "pause", "resume", "crash", "lose agent"]),
            st.integers(0, 4),
        ),
        max_size=8,
    ),
    seed=st.integers(0, 1 << 30),
)
@example(
    count=2,
    events=[(2, "lose agent", 0), (2, "lose agent", 1), (0.02, "pause", 0), (12, "resume", 1)],
    seed=1690,
)
@example(
    count=4,
    events=[(0.02, "pause", 1), (6, "crash", 2), (12, "pause", 0), (0.3, "crash", 0), (24, "x", 0)],
    seed=35,
)
def test_hosts_that_are_stopped_for_a_while_are_no_second_group(count, events, seed):
    """Whatever came to pass meanwhile: what they hear of it is that connections were closed."""
    resumed = [(0.0, "resume", number) for number in range(count)]
    history = [(8.0, "nothing", 0), *events, *resumed]
    hosts = simulate(history, count, 1, count, seed, failure_window=90.0)
    check_agreement(hosts)
    going = {host.current for host in hosts if host.is_in and host.current is not None}
    assert len(going) <= 1, [(host.name, host.current) for host in hosts]


@pytest.mark.parametrize("pause", [0.02, 0.5, 4.0, 10.0])
@pytest.mark.parametrize("waiting", [(1,), (2,), (1, 2)])
def test_those_that_wait_go_on_when_all_members_have_ended(waiting, pause):
    """Their agents were lost, the others went on, and crash before they are back."""
    lost = [(0.0, "lose agent", number) for number in waiting]
    crashed = [number for number in range(3) if number not in waiting]
    crashes = [(0.02, "crash", number) for number in crashed]
    history = [(8.0, "nothing", 0), *lost, (pause, "nothing", 0), *crashes]
    hosts = simulate(history, 3, 1, 3, seed=1)
    check_agreement(hosts)
    assert [number for number in range(3) if hosts[number].is_in] == list(waiting)
    check_formed(hosts, 1)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("number", [0, 1])
def test_a_host_that_was_stopped_takes_part_again(count, number):
    """The leader as well, which follows then; of two hosts that which went on goes on alone."""
    history = [(8.0, "nothing", 0), (0.0, "pause", number), (8.0, "resume", number)]
    hosts = simulate(history, count, 1, count, seed=number)
    check_agreement(hosts)
    check_formed(hosts, 1)
    assert [host.name for host in hosts if host.is_in] == (
        [host.name for host in hosts] if count > 2 else [hosts[number].name]
    )


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("side", range(1, 16))
def test_only_a_majority_survives_silence(count, side):
    """Whichever hosts are on which side; half is not enough."""
    hosts = simulate([(8.0, "nothing", 0), (0.0, "cut", side)], count, 1, count, seed=side)
    check_agreement(hosts)
    one = [host for number, host in enumerate(hosts) if side >> number & 1]
    other = [host for host in hosts if host not in one]
    for here, there in ((one, other), (other, one)):
        if not there or 2 * len(here) > count:
            check_formed(here, 1)
            assert all(host.is_in for host in here)
        else:
            for host in here:
                assert not host.is_in, (host.name, host.current)


@pytest.mark.parametrize("pause", [0.01, 0.03, 0.05, 0.07, 0.1])
@pytest.mark.parametrize("seed", range(10))
def test_one_that_is_cancelled_while_it_looks_for_a_leader_has_ended(pause, seed):
    """It does not come to decide, and begins nothing any more."""
    history = [(8.0, "nothing", 0), (0.0, "crash", 0), (pause, "cancel", 1)]
    hosts = simulate(history, 2, 1, 2, seed, failure_window=5.0)
    assert hosts[1].error is None
    assert hosts[1].verdict.reason is Reason.CANCELLED
    assert len(hosts[1].seen) <= 2  # the second, where it had taken over by then


def test_a_join_timeout_names_what_is_missing():
    """Too few hosts come."""
    hosts = simulate([], 1, 2, 2, seed=1, failure_window=70.0)
    assert hosts[0].verdict.reason is Reason.START_TIMEOUT


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_that_comes_back_takes_part_again(number):
    """Whichever it was: the others have gone on, and make room for it."""
    history = [(8.0, "nothing", 0), (2.0, "crash", number), (6.0, "return", number)]
    hosts = simulate(history, 3, 2, 3, seed=number, failure_window=30.0)
    check_agreement(hosts)
    assert all(host.is_in for host in hosts), [(h.name, h.error, h.verdict) for h in hosts]
    check_formed(hosts, 3)


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1"])
def test_a_host_that_is_cancelled_while_it_looks_up_the_endpoint_ends(address):
    """It does not begin to lead or to follow, and takes no port."""
    coordinator_settings = p.CoordinatorSettings((), 1.0, 1.0, min_hosts=2, max_hosts=2, open=True)
    host = TcpHost(1, "h", 1, "run", Endpoint(address, 0), coordinator_settings, Settings())
    done = []

    async def run():
        decider = TcpDecider(host)
        starting = asyncio.create_task(decider.start(done.append, done.append))
        await asyncio.sleep(0)
        decider.tell(p.CancelEvent())
        await starting
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await decider.close()

    asyncio.run(run())
    assert done == [p.FinishAction(p.Verdict(p.Reason.CANCELLED))]


@pytest.mark.parametrize("pause", [0.0, 0.02])
@pytest.mark.parametrize("rendezvous", ["tcp", "etcd"])
def test_no_round_begins_where_the_agent_is_lost(rendezvous, pause):
    """Whoever decides is lost at the same time: then its host decides, and waits for its agent."""
    for left, lost in ((1, 0), (0, 1)):  # one of them decides
        both = [(0.0, "lose agent", left), (pause, "crash", lost)]
        for events in (both, both[::-1]):
            history = [(8.0, "nothing", 0), *events]
            hosts = simulate(history, 2, 1, 2, seed=3, rendezvous=rendezvous)
            check_agreement(hosts)
            assert not hosts[left].vain
            assert hosts[left].is_in, hosts[left].verdict
            check_formed(hosts, 1)
            assert hosts[left].seen[-1].restarts <= 1


@pytest.mark.parametrize("rendezvous", ["tcp", "etcd"])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_host_that_fails_again_and_again_leaves_and_the_others_go_on(rendezvous, bad):
    """Also the one that decides: the others begin once, without it."""
    history = [(8.0, "nothing", 0), (0.0, "fail", bad), (6.0, "fail", bad)]
    hosts = simulate(history, 3, 2, 3, seed=bad, rendezvous=rendezvous, host_failures=2)
    check_agreement(hosts)
    assert f"h{bad} was excluded after 2 failures there" in str(hosts[bad].error)
    check_formed(hosts, 2)
    others = [host for host in hosts if host is not hosts[bad]]
    sizes = [[len(round_.members) for round_ in host.seen] for host in others]
    assert sizes == [[3, 3, 2]] * 2
    assert {host.seen[-1].restarts for host in others} == {2}  # also where the other alone knew


def test_an_excluded_host_is_refused_when_it_comes_again():
    """Its connection is closed, and no other is taken in."""
    history = [(8.0, "nothing", 0), (0.0, "fail", 1)]
    hosts = simulate(history, 2, 1, 2, seed=1, host_failures=1)
    leader = hosts[0].decider._state.leader
    assert [link.agent for link in leader.links] == []
    request = hosts[1].decider._state.request
    assert "was excluded after 1 failure" in leader.problem_of(request)
    check_formed(hosts, 1)
