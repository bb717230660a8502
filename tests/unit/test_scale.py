"""What grows with the number of hosts, and what must not: bytes, encodings, pings; no times."""

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx import _wire as wire
from phalanx._core import ranks
from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Ended, Endpoint, Outcome, Round
from phalanx._rendezvous import causes, succession
from phalanx._rendezvous.settings import Settings
from phalanx._rendezvous.tcp import leader
from phalanx._rendezvous.tcp.pings import Pings
from phalanx._wire.rendezvous_frames import HostPosition, RoundFormed
from tests.unit.simulation import simulate

STORE = Endpoint("10.0.0.1", 29500)


def round_of(count):
    """So many hosts with eight workers each, and where they are reached."""
    hosts = [(AgentId((1 << 47) + i), f"node{i:06d}", 8, "default") for i in range(count)]
    members = ranks.lay_out(hosts)
    contacts = {m.agent: Endpoint("10.0.0.9", 40000) for m in members}
    return Round(1, members, STORE), contacts


def told(count):
    """How a round of so many is told, and its members."""
    round_, contacts = round_of(count)
    return leader.TellRound(round_, round_.members[0].agent, contacts), round_.members


def test_what_a_member_is_told_does_not_grow_with_the_members():
    """But for the digits of numbers."""
    sizes = {}
    for count in (100, 1_000, 10_000):
        tell, members = told(count)
        sizes[count] = sum(map(len, tell.to(members[-1].agent)))
    assert max(sizes.values()) - min(sizes.values()) < 200
    assert max(sizes.values()) < 100 * succession.MOST_SUCCESSORS


def test_only_those_that_may_decide_next_are_told_of_all():
    """As many in a large round as in a larger one."""
    for count in (1_000, 5_000):
        tell, members = told(count)
        long = [m for m in members if sum(map(len, tell.to(m.agent))) > 10 * count]
        assert len(long) == succession.MOST_SUCCESSORS


def test_a_round_is_written_down_once_for_all(monkeypatch):
    """Each member's own is a frame of a few bytes."""
    written = []

    def encode(frame):
        data = encode_frame(frame)
        written.append((type(frame), len(data)))
        return data

    encode_frame = wire.encode
    monkeypatch.setattr(leader.wire, "encode", encode)
    tell, members = told(500)
    for member in members:
        tell.to(member.agent)
    assert [kind for kind, _ in written].count(RoundFormed) == 2
    own = [size for kind, size in written if kind is HostPosition]
    assert len(own) == 500 - succession.MOST_SUCCESSORS
    assert max(own) < 80


def test_successors_are_spread_over_the_ranks():
    """Hosts that fail together are often neighbours."""
    assert succession.successors([AgentId(i) for i in range(10)]) == tuple(range(10))
    chosen = succession.successors([AgentId(i) for i in range(6400)])
    assert chosen == tuple(range(0, 6400, 100))


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from("ab")), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_a_member_computes_its_ranks_from_its_position(kinds, most):
    """All of its variables are those that it would have with the whole list."""
    rows = [(AgentId(i), f"h{i}", workers, role) for i, (workers, role) in enumerate(kinds)]
    whole = Round(3, ranks.lay_out(rows), STORE)
    contacts = {m.agent: STORE for m in whole.members}
    some = set(range(most))
    (formed,) = wire.Decoder().feed(
        wire.encode(RoundFormed.make(whole, AgentId(0), contacts, some))
    )
    assert formed.membership.world_size == whole.world_size
    assert formed.membership.members == whole.members[:most]
    (full,) = wire.Decoder().feed(wire.encode(RoundFormed.make(whole, AgentId(0), contacts)))
    assert full.membership == whole
    for at, (member, part) in enumerate(zip(whole.members, whole.parts().values(), strict=True)):
        assert part.members == (member,)
        assert ranks.member_at(formed.hosts, at, member.agent, member.hostname) == member
        for rank in member.ranks:
            options = {"run_id": "a", "error_file": "e", "agent_store": True}
            assert ranks.worker_environment(
                part, member, rank, **options
            ) == ranks.worker_environment(whole, member, rank, **options)


def check_agreement(hosts):
    """Nobody saw another round under the same number; everybody has ranks of its own in it."""
    known, taken = {}, {}
    for host in hosts:
        for round_ in host.seen:
            facts = round_.number, round_.hosts, round_.store, round_.restarts
            assert known.setdefault(round_.number, facts) == facts
            own = round_.member(host.agent)
            assert taken.setdefault((round_.number, own.first_rank), host.name) == host.name


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    count=st.integers(4, 8),
    crashes=st.lists(
        st.tuples(st.sampled_from([0.0, 0.3, 6.0]), st.just("crash"), st.integers(0, 7)), max_size=2
    ),
    seed=st.integers(0, 1 << 30),
)
def test_a_round_of_which_few_know_all_members_survives(count, crashes, seed):
    """As long as one of the successors is left, whoever else is lost."""
    most, succession.MOST_SUCCESSORS = succession.MOST_SUCCESSORS, 3
    try:
        hosts = simulate([(8.0, "nothing", 0), *crashes], count, 1, count, seed)
    finally:
        succession.MOST_SUCCESSORS = most
    check_agreement(hosts)
    alive = [host for host in hosts if host.is_in]
    assert len(alive) >= count - 2, [(h.name, h.error, h.verdict) for h in hosts]
    assert len({host.current for host in alive}) == 1
    last = alive[0].seen[-1]
    assert last.world_size == len(alive)
    firsts = sorted(host.seen[-1].member(host.agent).first_rank for host in alive)
    assert firsts == list(range(len(alive)))


class FakeLink:
    """Counts pings."""

    def __init__(self):
        self.is_over = False
        self.pinged = []
        self.now = 0.0

    def post_ping(self, ping):
        self.pinged.append(self.now)


@pytest.mark.parametrize("count", [1, 100, 5_000, 10_000])
def test_the_more_hosts_the_fewer_pings_each_but_two_within_the_timeout(count):
    """So that the number of pings in a second is bounded."""
    rules = Settings(host_timeout=15.0)
    pings, links = Pings(rules), [FakeLink() for _ in range(count)]
    for link in links:
        pings.add(link)
    for tick in range(1, 301):
        for link in links[:1]:
            link.now = tick * 0.1
        pings.pass_time(0.1)
    times = links[0].pinged
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    assert max(gaps) <= rules.host_timeout / 2 + 0.2
    total = sum(len(link.pinged) - 1 for link in links)
    assert total / 30 <= max(1_350, count / rules.heartbeat + 1)


FAILURES = st.builds(
    causes.Failure,
    agent=st.integers(0, 2),
    hostname=st.just("h"),
    outcome=st.builds(
        Outcome,
        rank=st.integers(0, 9),
        kind=st.sampled_from([Ended.RAISED, Ended.KILLED, Ended.LOST]),
        clock=st.integers(0, 4).map(float),
    ),
    when=st.tuples(st.integers(0, 6), st.integers(0, 3)).map(lambda t: Interval(t[0], sum(t))),
)


def is_before(one, other):
    """By definition, for two."""
    if one.agent == other.agent and Ended.LOST not in (one.outcome.kind, other.outcome.kind):
        return one.outcome.clock < other.outcome.clock
    return one.when.latest < other.when.earliest


@given(st.lists(FAILURES, min_size=1, max_size=8))
def test_the_earliest_failures_are_found_without_comparing_all_with_all(failures):
    """The same as if they were."""
    failures = [
        dataclasses.replace(f, outcome=dataclasses.replace(f.outcome, rank=i))
        for i, f in enumerate(failures)
    ]
    expected = [f for f in failures if not any(is_before(other, f) for other in failures)]
    assert causes._without_earlier(failures) == expected
