"""The guarantees of rounds where etcd says who leads: those of TCP, and one that TCP cannot give.

The same deciders, hosts and histories; etcd is simulated as well, and can be cut off or be away.
"""

import functools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from phalanx._core.rounds import Endpoint, Member, Round
from phalanx._rendezvous.etcd import records
from phalanx._rendezvous.etcd.candidacy import (
    Examine,
    FollowLeader,
    HearEnd,
    LookFor,
    StandForElection,
    View,
    choose_step,
)
from phalanx._rendezvous.errors import RendezvousStateError
from phalanx._rendezvous.etcd.proofs import ValueProof
from phalanx._rendezvous.etcd.keys import KeyValue
from phalanx._rendezvous.protocol import Handover, Reason
from phalanx._wire.rendezvous_frames import AppEnded, LeaderElected, RoundFormed
from tests.unit import simulation
from tests.unit.test_tcp_rendezvous import PAUSES, check_agreement, check_formed

simulate = functools.partial(simulation.simulate, rendezvous="etcd")
many = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)

# ── what is found in etcd, and what follows ───────────────────────────────────

AT = Endpoint("h1", 1)


def leader(agent, revision=5):
    return records.LeaderRecord(agent, AT, revision)


def formed(number, *agents):
    members = tuple(Member(agent, f"h{agent}", rank, 1) for rank, agent in enumerate(agents))
    round_ = Round(number, members, Endpoint("h1", 5), 2, torch=False)
    return RoundFormed.make(round_, agents[0], dict.fromkeys(agents, AT))


def last(number, *agents, ended=False, revision=3):
    end = AppEnded(reason="succeeded", missing=(), note="", hosts=()) if ended else None
    return records.RoundRecord(formed(number, *agents), revision, ended=end)


def last_round(hosts):
    """What etcd has of it in the end."""
    there = hosts[0].net.etcd.read(records.ROUND)
    return records.round_of(ValueProof(b"key", "run").open(records.ROUND, there))


def view(leader=None, last=None, present=(), claims=()):
    at = tuple(0 if record is None else record.revision for record in (leader, last))
    return View(leader, last, frozenset(present), at, claims)


def test_whoever_is_elected_is_followed():
    """Unless it has certainly ended, or is this host from before."""
    assert choose_step(view(leader(2)), 1, 0) == FollowLeader(leader(2))
    assert choose_step(view(leader(2)), 1, 0, ended={2}) == StandForElection(5, 0)
    assert choose_step(view(leader(1)), 1, 0) == StandForElection(5, 0)
    assert choose_step(view(), 1, 0) == StandForElection(0, 0)


def test_a_member_of_the_last_round_goes_on_where_that_was():
    """It knows of whom nothing is left, and of whom nothing is heard."""
    there = view(leader(2), last(7, 1, 2, 3, 4), present={1, 2, 3})
    past = Handover(last(7, 1, 2, 3, 4).round, frozenset({2}), frozenset({3, 4}))
    assert choose_step(there, 1, 7, ended={2}, silent={3}) == StandForElection(5, 3, past, floor=7)


def test_a_host_that_was_not_in_the_last_round_lets_its_members_go_first():
    """It begins anew, with higher numbers, once none of them is left."""
    there = view(None, last(7, 2, 3), present={1, 3})
    assert choose_step(there, 1, 0) == LookFor(frozenset({3}))
    assert choose_step(there, 1, 0, ended={3}) == StandForElection(0, 3, floor=7)
    assert choose_step(view(None, last(7, 2, 3)), 1, 0) == StandForElection(0, 3, floor=7)


def test_the_end_is_heard_by_those_that_were_there():
    """In any round; for others the name is free."""
    there = view(None, last(7, 2, 3, ended=True), present={1, 3})
    for own_round in (7, 6, 1):
        assert choose_step(there, 1, own_round) == HearEnd(there.last)
    assert choose_step(there, 1, 0) == StandForElection(0, 3, floor=7)


def test_those_that_have_another_token_are_asked_for_before_anybody_stands():
    """By a host that has been in no round, and sees none of its own; others stand over them."""
    claims = records.Claim(5, (AT,), has_round=False), records.Claim(3, (AT,), has_round=True)
    there = replace(view(claims=claims), at=(5, 3))
    assert choose_step(there, 1, 0) == Examine(claims)
    assert choose_step(there, 1, 0, refuted={5}) == Examine(claims[1:])
    assert choose_step(there, 1, 0, refuted={5, 3}) == StandForElection(5, 3)
    assert choose_step(there, 1, 7) == StandForElection(5, 3)
    ours = replace(view(None, last(7, 1), claims=claims[:1]), at=(5, 3))
    assert choose_step(ours, 1, 7).floor == 7
    ended = replace(view(None, last(7, 1, ended=True), claims=claims[:1]), at=(5, 3))
    assert choose_step(ended, 1, 7) == HearEnd(ended.last)
    assert choose_step(ended, 1, 0) == Examine(claims[:1])


def test_a_value_proves_the_token_the_run_and_the_key():
    """And every byte of it; without a proof it claims where hosts are, or nothing."""
    proof, elected = ValueProof(b"key", "run"), LeaderElected(leader=4, contact=AT)
    frames = records.encode([elected])
    value = proof.seal("leader", frames)
    assert proof.open("leader", KeyValue(value, 9)) == KeyValue(frames, 9)
    assert proof.open("leader", None) is None
    changed = value[:-1] + bytes([value[-1] ^ 1])
    for other, key, seen in (
        *(
            (ValueProof(b"another", "run"), "leader", value),
            (ValueProof(b"key", "2"), "leader", value),
        ),
        *((proof, "round", value), (proof, "leader", changed), (proof, "leader", frames)),
        *((proof, "leader", b""), (proof, "leader", value[:32])),
    ):
        assert other.open(key, KeyValue(seen, 9)) is None
    assert records.claim_of("leader", KeyValue(value, 9)) == records.Claim(
        9, (AT,), has_round=False
    )
    begun = bytes(32) + records.encode([formed(7, 2, 3)])
    assert records.claim_of("round", KeyValue(begun, 9)) == records.Claim(
        9, (AT, AT), has_round=True
    )
    end = last(7, 2, ended=True).ended
    for odd in (b"", b"x" * 99, frames, value, bytes(32) + records.encode_end(formed(7, 2), [end])):
        assert records.claim_of("round", KeyValue(odd, 9)) is None


def test_records_are_read_as_they_were_written():
    """What is something else is an error that names the key."""
    elected = LeaderElected(leader=4, contact=AT)
    assert records.leader_of(KeyValue(records.encode([elected]), 9)) == leader(4, 9)
    end = last(7, 2, 3, ended=True).ended
    read = records.round_of(KeyValue(records.encode_end(formed(7, 2, 3), [end]), 3))
    assert read == last(7, 2, 3, ended=True)
    assert read.members == {2, 3}
    for odd in (b"PHX", b"{}" * 20, records.encode([end]), b""):
        with pytest.raises(RendezvousStateError, match="'round' of the run"):
            records.round_of(KeyValue(odd, 1))
        with pytest.raises(RendezvousStateError, match="'leader' of the run"):
            records.leader_of(KeyValue(odd, 1))


# ── histories ─────────────────────────────────────────────────────────────────


@many
@given(
    count=st.integers(1, 5),
    crashes=st.lists(st.tuples(PAUSES, st.just("crash"), st.integers(0, 4)), max_size=4),
    seed=st.integers(0, 1 << 30),
)
@example(count=3, crashes=[(3.0, "crash", 0), (0.0, "crash", 1)], seed=1)
def test_crashes_are_survived_whoever_is_hit(count, crashes, seed):
    """Also the one that leads, and its successor, at any moment; down to one host."""
    hosts = simulate([(8.0, "nothing", 0), *crashes], count, 1, count, seed)
    check_agreement(hosts)
    check_formed(hosts, 1)
    assert all(host.verdict is None and host.error is None for host in hosts if host.is_up)


@many
@given(
    count=st.integers(2, 4),
    lost=st.lists(st.tuples(PAUSES, st.integers(0, 3)), max_size=3),
    seed=st.integers(0, 1 << 30),
)
def test_hosts_that_come_back_join_those_that_went_on(count, lost, seed):
    """One after another."""
    events = [(8.0, "nothing", 0)]
    for pause, number in lost:
        events += [(6.0, "crash", number % count), (pause, "return", number % count)]
    hosts = simulate(events, count, 2, count, seed)
    check_agreement(hosts)
    assert all(host.is_in for host in hosts), [(h.name, h.error, h.verdict) for h in hosts]
    check_formed(hosts, 2)


@many
@given(
    count=st.integers(2, 4),
    events=st.lists(
        st.tuples(
            PAUSES,
            st.sampled_from(["crash", "fail", "fail", "lose agent", "etcd down", "etcd up"]),
            st.integers(0, 3),
        ),
        max_size=6,
    ),
    seed=st.integers(0, 1 << 30),
)
def test_failures_crashes_and_an_etcd_that_is_away_in_any_order(count, events, seed):
    """The budget ends it, for everybody alike; otherwise it goes on once etcd is there."""
    history = [(8.0, "nothing", 0), *events, (8.0, "etcd up", 0)]
    hosts = simulate(history, count, 1, count, seed)
    check_agreement(hosts)
    verdicts = {host.verdict.reason for host in hosts if host.is_up and host.verdict is not None}
    assert verdicts <= {Reason.FAILED}
    if not verdicts:
        check_formed(hosts, 1)


@many
@given(
    count=st.integers(2, 5),
    events=st.lists(
        st.tuples(
            PAUSES,
            st.sampled_from(["cut", "cut", "divide", "mend", "crash", "etcd down", "etcd up"]),
            st.integers(0, 63),
        ),
        max_size=6,
    ),
    seed=st.integers(0, 1 << 30),
)
def test_two_sides_of_a_cut_never_both_go_on(count, events, seed):
    """Whichever side etcd is on; mended, all of them are one group again."""
    history = [(8.0, "nothing", 0), *events, (8.0, "etcd up", 0), (0.0, "mend", 0)]
    hosts = simulate(history, count, 1, count, seed, failure_window=70.0)
    check_agreement(hosts)
    assert all(host.is_in for host in hosts if host.is_up)
    check_formed(hosts, 1)


@pytest.mark.parametrize("what", ["cut", "divide"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_of_two_sides_exactly_one_goes_on(what, count):
    """Halves too; that which etcd is on, or, where both reach it, no minority."""
    for side in range(1, 2**count - 1):
        hosts = simulate([(8.0, "nothing", 0), (0.0, what, side)], count, 1, count, seed=side)
        check_agreement(hosts)
        one = [host for number, host in enumerate(hosts) if side >> number & 1]
        other = [host for host in hosts if host not in one]
        going = [here for here in (one, other) if any(host.current for host in here)]
        assert len(going) == 1, (side, [(h.name, h.current) for h in hosts])
        check_formed(going[0], 1)
        if what == "cut":
            assert going == [other], "etcd is on the side of those that are no bits"
        else:
            assert 2 * len(going[0]) >= count


def test_a_round_runs_on_while_etcd_is_away():
    """Nobody notices, for etcd_timeout; after that workers are stopped, and wait for it."""
    short = simulate([(8.0, "nothing", 0), (0.0, "etcd down", 0)], 3, 1, 3, 1, failure_window=15)
    assert [host.current for host in short] == [1, 1, 1]
    long = simulate([(8.0, "nothing", 0), (0.0, "etcd down", 0)], 3, 1, 3, 1, failure_window=40)
    assert [host.current for host in long] == [None, None, None]
    history = [(8.0, "nothing", 0), (0.0, "etcd down", 0), (40.0, "etcd up", 0)]
    back = simulate(history, 3, 1, 3, 1)
    check_agreement(back)
    check_formed(back, 3)
    assert all(host.is_in for host in back)


@pytest.mark.parametrize("away", [0.5, 6.0, 30.0])
def test_an_etcd_that_comes_back_empty_is_survived(away):
    """Numbers and restarts go on from what the hosts know."""
    history = [(8.0, "nothing", 0), (0.0, "fail", 1), (8.0, "etcd down", 0)]
    hosts = simulate([*history, (away, "etcd empty", 0), (10.0, "fail", 0)], 3, 1, 3, seed=1)
    check_agreement(hosts)
    check_formed(hosts, 3)
    assert all(host.is_in for host in hosts)
    assert {host.seen[-1].restarts for host in hosts} == {2}


def test_a_run_id_is_used_again_after_all_have_crashed():
    """By others, whose restarts are counted from none and whose rounds have higher numbers."""
    crashes = [(0.0, "crash", number) for number in range(3)]
    returns = [(1.0, "return", number) for number in range(3)]
    history = [(8.0, "nothing", 0), (0.0, "fail", 0), (8.0, "nothing", 0), *crashes, *returns]
    hosts = simulate(history, 3, 3, 3, seed=1)
    check_agreement(hosts)
    check_formed(hosts, 3)
    assert [[round_.restarts for round_ in host.seen] for host in hosts] == [[0]] * 3
    assert all(host.seen[0].number > 2 for host in hosts)


@pytest.mark.parametrize("what", ["cut", "divide"])
@pytest.mark.parametrize("pause", [0.0, 3.0, 12.0])
@pytest.mark.parametrize("was_done", [True, False])
def test_a_host_that_missed_the_end_reads_it_from_etcd(what, pause, was_done):
    """Its worker had returned before it was cut off, or the others went on, and ended, without it."""
    last = [(1.0, "succeed", 2)] if was_done else [(1.0, "nothing", 0)]
    history = [(8.0, "nothing", 0), *last, (1.0, what, 0b100), (pause, "nothing", 0)]
    history += [(0.0, "succeed", 0), (0.0, "succeed", 1), (10.0, "succeed", 0), (0.0, "succeed", 1)]
    hosts = simulate([*history, (30.0, "mend", 0)], 3, 1, 3, seed=1)
    check_agreement(hosts)
    assert [host.verdict.reason for host in hosts] == [Reason.SUCCEEDED] * 3
    assert len(hosts[2].seen) == 1, "it begins nothing by itself"


@pytest.mark.parametrize("late", [0.0, 1.5])
def test_the_end_is_written_though_the_leaders_lease_has_ended(late):
    """It did not reach etcd for a while, and does so again when it ends, or a moment later."""
    history = [(8.0, "nothing", 0), (0.0, "divide", 0b10), (20.0, "cut", 0b01), (8.0, "nothing", 0)]
    ends = [(0.0, "succeed", 0), (late, "divide", 0b10), (20.0, "mend", 0)]
    hosts = simulate(history + (ends if late else [ends[1], ends[0], ends[2]]), 2, 1, 2, seed=1)
    check_agreement(hosts)
    assert [host.verdict.reason for host in hosts] == [Reason.SUCCEEDED] * 2
    assert [len(host.seen) for host in hosts] == [2, 1], "the other one begins nothing by itself"


def test_a_host_is_present_though_the_first_write_of_it_was_lost():
    """Otherwise the others would count it as gone while its lease is kept."""
    hosts = simulate([(0.0, "etcd loses", ("hosts/", False)), (8.0, "nothing", 0)], 3, 3, 3, seed=1)
    there = {key for key in hosts[0].net.etcd.keys if key.startswith("hosts/")}
    assert there == {f"hosts/{host.agent}" for host in hosts}


@pytest.mark.parametrize("seed", range(4))
def test_the_end_is_that_of_the_last_round_whoever_formed_it(seed):
    """Also by a host that took over and formed none, or led before: no number comes twice."""
    history = [(8.0, "nothing", 0), (0.0, "divide", 0b001), (20.0, "mend", 0), (20.0, "crash", 1)]
    hosts = simulate([*history, (0.0, "crash", 2)], 3, 2, 3, seed, failure_window=90.0)
    assert hosts[0].verdict.reason is Reason.START_TIMEOUT
    last = last_round(hosts)
    assert last.ended is not None
    assert last.formed.round == max(round_.number for host in hosts for round_ in host.seen)


def test_an_office_that_was_won_back_is_kept_though_nobody_said_so():
    """etcd wrote it down, and the answer was lost."""
    history = [
        (8.0, "nothing", 0),
        (0.0, "etcd loses", ("leader", True)),
        (0.0, "lease ends", "leader"),
    ]
    hosts = simulate(history, 3, 1, 3, seed=1)
    check_formed(hosts, 3)
    assert [len(host.seen) for host in hosts] == [1, 1, 1], "no worker was stopped"


def test_the_end_is_written_once_etcd_is_there_again():
    """It was away when the app ended, and a host that was cut off could not be told."""
    history = [(8.0, "succeed", 2), (1.0, "divide", 0b100), (1.0, "etcd down", 0)]
    ends = [(0.0, "succeed", 0), (0.0, "succeed", 1), (12.0, "etcd up", 0), (10.0, "mend", 0)]
    hosts = simulate([*history, *ends], 3, 1, 3, seed=1)
    check_agreement(hosts)
    assert [host.verdict and host.verdict.reason for host in hosts] == [Reason.SUCCEEDED] * 3
    assert [len(host.seen) for host in hosts] == [1, 1, 1], "it begins nothing by itself"


# ── what others write ─────────────────────────────────────────────────────────


def forged(*frames):
    """A value by one with another token."""
    key = records.LEADER if isinstance(frames[0], LeaderElected) else records.ROUND
    return ValueProof(b"guessed", "run").seal(key, records.encode(frames))


def forged_keys(*agents, contact=AT):
    """A leader that never was, and the end of an app, as a success."""
    end = AppEnded(reason="succeeded", missing=(), note="", hosts=())
    named = LeaderElected(leader=99, contact=contact)
    return {records.LEADER: forged(named), records.ROUND: forged(formed(9, *agents), end)}


@pytest.mark.parametrize("seed", range(3))
def test_what_has_no_proof_stops_nobody_and_ends_nothing(seed):
    """No worker is stopped for it; of those that look for a leader nobody believes that it ended."""
    one = simulate([(8.0, "etcd is told", forged_keys(98, 99))], 3, 1, 3, seed)
    check_formed(one, 3)
    told = {records.LEADER: forged_keys(98)[records.LEADER]}
    history = [(8.0, "etcd is told", told), (10.0, "nothing", 0)]
    hosts = simulate(history, 3, 1, 3, seed)
    check_formed(hosts, 3)
    assert [len(host.seen) for host in hosts] == [1, 1, 1]
    for host in one + hosts:
        assert (host.verdict, host.error) == (None, None)


@pytest.mark.parametrize("seed", range(3))
def test_hosts_meet_though_somebody_has_written_keys_before(seed):
    """At once, and also after each of them has been lost."""
    history = [(0.0, "etcd is told", forged_keys(98, 99)), (8.0, "nothing", 0)]
    crashes = [(0.0, "etcd is told", forged_keys(98, 99)), (0.0, "crash", 0), (9.0, "crash", 1)]
    hosts = simulate(history, 3, 3, 3, seed, failure_window=1.0)
    check_formed(hosts, 3)
    hosts = simulate([*history, *crashes], 3, 1, 3, seed)
    check_agreement(hosts)
    check_formed(hosts, 1)
    assert hosts[2].is_in


@pytest.mark.parametrize("seed", range(3))
def test_a_host_with_another_token_that_comes_first_does_not_lead_the_others(seed):
    """They meet, and it meets nobody."""
    away = [(0.0, "crash", 1), (0.0, "crash", 2), (5.0, "return", 1), (3.0, "return", 2)]
    hosts = simulate(away, 3, 2, 2, seed, strangers={0})
    check_formed(hosts[1:], 2)
    assert all(host.is_in and len(host.seen) == 1 for host in hosts[1:])
    assert hosts[0].seen == []


@pytest.mark.parametrize("seed", range(3))
def test_a_host_with_another_token_that_comes_later_has_no_effect(seed):
    """Nor when the one that leads is lost, though it could go ahead alone."""
    late = [(0.0, "crash", 0), (8.0, "return", 0), (12.0, "crash", 1), (10.0, "nothing", 0)]
    hosts = simulate(late, 4, 1, 3, seed, strangers={0})
    check_formed(hosts[1:], 1)
    assert hosts[0].seen == []
    assert all(host.is_in for host in hosts[2:])


@pytest.mark.parametrize("seed", range(12))
def test_one_that_is_elected_with_nobody_steps_down_and_searches_once(seed):
    """Its presence is all that is left when etcd is back; the others are there, and go first.

    Were it to search twice, each search would have the connection of the other closed, for ever.
    """
    history = [(8.0, "nothing", 0), (0.0, "cut", 0b1000), (16.0, "cut", 0b1100)]
    hosts = simulate([*history, (8.0, "cut", 0b0100), (20.0, "mend", 0)], 3, 1, 3, seed)
    check_agreement(hosts)
    check_formed(hosts, 3)
    assert [[len(round_.members) for round_ in host.seen] for host in hosts] == [
        [3, 2, 3],
        [3, 2, 3],
        [3, 3],
    ]
