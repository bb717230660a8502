"""Hosts on which failures begin again and again are done without: the coordinator's part of it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx._core.clock import Interval
from phalanx._core.rounds import Ended, ExceptionInfo
from phalanx._launcher.reporting.report import describe_failure
from phalanx._rendezvous.protocol import (
    AgentGoneEvent,
    BeginRoundAction,
    ExcludeAction,
    FinishAction,
    Phase,
    Reason,
)
from tests.unit.test_elastic_rounds import Driver, begun, names


def halted(d, number):
    """Have everybody who is left stop; gives what follows."""
    actions = d.wait() if d.c.phase is Phase.COLLECTING else []
    members = [m.agent for m in d.c.round.members if m.agent in d.c._roster.joined]
    return actions + d.clear(number, *members)


def excluded(actions):
    return [a.exclusion.hostname for a in actions if isinstance(a, ExcludeAction)]


def begins(actions):
    (begin,) = (action for action in actions if isinstance(action, BeginRoundAction))
    return begin


def test_a_spare_takes_the_place_of_a_host_that_has_failed_too_often():
    """Each failure has cost a restart; the one before was a restart on the same hosts."""
    d = begun(3, max_hosts=2, min_hosts=2, max_restarts=5, host_failures=2)
    d.fail(1, 1, 1, after=60)
    actions = halted(d, 1)
    assert excluded(actions) == []
    assert names(begins(actions)) == ["h0", "h1"]
    d.run(begins(actions))
    d.c.take_progress()
    d.fail(1, 1, 2, after=60)
    actions = halted(d, 2)
    assert excluded(actions) == ["h1"]
    assert names(begins(actions)) == ["h0", "h2"]
    assert begins(actions).round.restarts == 2
    (told,) = (h for h in d.c.take_progress() if h.name == "exclude")
    assert told.facts["hostname"] == "h1"
    assert told.facts["failures"] == 2


def test_failures_on_different_hosts_exclude_nobody():
    """They are counted for each host."""
    d = begun(2, max_restarts=5, host_failures=2)
    for number, agent in enumerate((0, 1), start=1):
        d.fail(agent, agent, number, after=60)
        actions = halted(d, number)
        d.run(begins(actions))
        assert excluded(actions) == []


def test_a_host_that_is_lost_again_and_again_is_excluded():
    """Though that costs no restart; it is not taken back."""
    d = begun(2, min_hosts=1, host_failures=2)
    d.lose(1)
    d.run(begins(halted(d, 1)))
    d.join(1)
    d.run(begins(d.clear(2, 0)))
    d.lose(1)
    actions = halted(d, 3)
    assert excluded(actions) == ["h1"]
    d.run(begins(actions))
    assert d.join(1) == []
    assert names(begins(actions)) == ["h0"]


def test_without_another_host_the_app_fails_and_says_which_were_excluded():
    """Once it is known that none will come."""
    d = begun(2, max_restarts=5, host_failures=1)
    d.fail(1, 1, 1)
    actions = halted(d, 1)
    assert excluded(actions) == ["h1"]
    assert d.c.awaited == ()
    event = AgentGoneEvent(1, "there is no other", Interval(d.now, d.now), left=True)
    (finish,) = d.feed(event)
    assert isinstance(finish, FinishAction)
    assert finish.verdict.reason is Reason.FAILED
    said = describe_failure(finish.verdict)
    assert "h1 was excluded after 1 failure there, the last: rank 1 on h1 exited" in said
    assert "Fewer than 2 hosts are left." in said


def test_another_host_that_comes_ends_the_wait():
    """As a lease gives one."""
    d = begun(2, max_restarts=5, host_failures=1)
    d.fail(1, 1, 1)
    halted(d, 1)
    assert names(begins(d.join(2))) == ["h0", "h2"]


def test_one_that_missed_others_is_not_to_blame():
    """Such as a worker whose collective timed out."""
    d = begun(2, max_restarts=5, host_failures=1)
    exception = ExceptionInfo(
        "RuntimeError", "Timed out waiting 1000ms for recv", "", communication=True
    )
    d.fail(1, 1, 1, Ended.RAISED, exception=exception)
    assert excluded(halted(d, 1)) == []


def test_a_host_that_restarts_alone_gives_its_ranks_to_a_spare():
    """The others run on; without a spare it keeps its own restarts."""
    d = Driver(3, restart="host", max_hosts=2, min_hosts=2, max_restarts=3, host_failures=1)
    (begin,) = d.join(0, 1, 2)
    d.run(begin)
    exclude, begin = d.fail(1, 1, 1)
    assert exclude.exclusion.hostname == "h1"
    assert begin.agents == (2,)
    assert [m.hostname for m in begin.round.members] == ["h0", "h2"]
    (halt,) = d.fail(2, 1, begin.round.number)
    assert halt.agents == (2,)


@settings(max_examples=200)
@given(
    limit=st.integers(1, 3),
    least=st.integers(1, 3),
    exceptions=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=15),
)
def test_an_excluded_host_is_in_no_later_round(limit, least, exceptions):
    """And none is excluded before so many rounds have failed because of it."""
    d = begun(4, max_hosts=3, min_hosts=least, max_restarts=20, host_failures=limit)
    counts, gone = dict.fromkeys(range(4), 0), set()
    for is_loss, pick in exceptions:
        if d.c.phase is not Phase.RUNNING:
            break
        round_ = d.c.round
        member = round_.members[pick % len(round_.members)]
        counts[member.agent] += 1
        if is_loss:
            actions = d.lose(member.agent, after=60)
        else:
            actions = d.fail(member.agent, member.first_rank, round_.number, after=60)
        actions += halted(d, round_.number)
        for action in actions:
            if isinstance(action, ExcludeAction):
                gone.add(action.exclusion.agent)
                assert counts[action.exclusion.agent] == limit
        if d.c.phase is Phase.GATHERING and d.c.deadline is not None:
            actions += d.join(*(a for a in range(4) if a not in d.c._roster.joined))
        for begin in (a for a in actions if isinstance(a, BeginRoundAction)):
            assert not gone & {m.agent for m in begin.round.members}
            d.run(begin)
    assert {agent for agent, count in counts.items() if count >= limit} == gone
