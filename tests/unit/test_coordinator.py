"""The coordinator: events in, actions out, compared as lists; properties over any order of events."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx._core.clock import ClockOffset, Interval
from phalanx._core.ranks import members
from phalanx._rendezvous.causes import Failure, first_cause
from phalanx._rendezvous.coordinator import CONFIRM_TIMEOUT, Coordinator
from phalanx._rendezvous.membership import Host
from phalanx._rendezvous.restart_policy import RestartAll
from phalanx._rendezvous.protocol import (
    BeginRoundAction,
    CancelEvent,
    RoundClearedEvent,
    FinishAction,
    AgentGoneEvent,
    HaltRoundAction,
    JoinedEvent,
    Phase,
    CoordinatorSettings,
    Reason,
    WorkersStartedEvent,
    TickEvent,
    WorkerEndedEvent,
)
from phalanx._core.rounds import Ended, Endpoint, ExceptionInfo, Outcome

STORE = Endpoint("127.0.0.1", 1234)


def coordinator(*workers, failure_window=0.0, start_window=0.0):
    table = tuple(Host(i, f"h{i}", count, (i,)) for i, count in enumerate(workers))
    settings = CoordinatorSettings(
        table, 10, 3, failure_window=failure_window, start_window=start_window
    )
    return Coordinator(settings, RestartAll(settings), now=0.0)


def at(t):
    return Interval(t, t)


def ended(agent, rank, kind=Ended.RETURNED, t=1.0, **fields):
    return WorkerEndedEvent(agent, 1, Outcome(rank, kind, t, **fields), at(t))


def begun(*workers, **kwargs):
    c = coordinator(*workers, **kwargs)
    for agent in range(len(workers)):
        actions = c.handle(JoinedEvent(agent, STORE), 0.1)
    (begin,) = actions
    assert isinstance(begin, BeginRoundAction)
    for agent in range(len(workers)):
        assert c.handle(WorkersStartedEvent(agent, 1), 0.2) == []
    return c


def test_the_round_begins_when_all_have_joined():
    """With the store at rank 0's host, and contiguous ranks."""
    c = coordinator(2, 1)
    assert c.handle(JoinedEvent(1, Endpoint("other", 1)), 0.1) == []
    (begin,) = c.handle(JoinedEvent(0, STORE), 0.2)
    assert begin.round.store == STORE
    assert [list(m.ranks) for m in begin.round.members] == [[0, 1], [2]]
    assert begin.round.world_size == 3


def test_all_hosts_that_cannot_be_used_are_named():
    """Word from every host is waited for, once one has failed."""
    c = coordinator(1, 1, 1, start_window=5.0)
    assert c.handle(AgentGoneEvent(1, "no route", at(0.1)), 0.1) == []
    assert c.handle(JoinedEvent(0, STORE), 0.2) == []
    halt, finish = c.handle(AgentGoneEvent(2, "refused", at(0.3)), 0.3)
    assert isinstance(halt, HaltRoundAction)
    verdict = finish.verdict
    assert {f.hostname for f in (verdict.cause, *verdict.others)} == {"h1", "h2"}


def test_a_host_of_which_nothing_is_heard_does_not_hold_up_the_failure_of_another():
    """For longer than the settling time; and a host that joins late changes nothing."""
    c = coordinator(1, 1, start_window=5.0)
    assert c.handle(AgentGoneEvent(1, "no route", at(0.1)), 0.1) == []
    assert c.deadline == 5.1
    assert c.handle(TickEvent(), 5.0) == []
    _, finish = c.handle(TickEvent(), 5.1)
    assert finish.verdict.reason is Reason.FAILED
    assert finish.verdict.cause.hostname == "h1"
    late = coordinator(1, 1, start_window=5.0)
    late.handle(AgentGoneEvent(1, "no route", at(0.1)), 0.1)
    _, finish = late.handle(JoinedEvent(0, STORE), 1.0)
    assert finish.verdict.reason is Reason.FAILED


def test_success_waits_for_the_last_host_to_be_clear():
    """Values first, then the confirmation that nothing is left."""
    c = begun(1, 1)
    assert c.deadline is None
    assert c.handle(ended(0, 0), 1.0) == []
    assert c.handle(RoundClearedEvent(0, 1), 1.1) == []
    assert c.handle(ended(1, 1), 1.2) == []
    (finish,) = c.handle(RoundClearedEvent(1, 1), 1.3)
    assert finish.verdict.reason is Reason.SUCCEEDED


def test_a_failure_halts_and_then_names_the_cause():
    """One halt, however many fail."""
    c = begun(2)
    assert c.handle(ended(0, 1, Ended.KILLED, signal=9), 1.0) == [HaltRoundAction(1, 3)]
    assert c.handle(ended(0, 0, Ended.KILLED, t=1.1, signal=15, stopped=True), 1.2) == []
    (finish,) = c.handle(RoundClearedEvent(0, 1), 1.3)
    assert finish.verdict.cause.outcome.rank == 1
    assert [f.outcome.rank for f in finish.verdict.others] == [0]
    assert finish.verdict.others[0].consequence


def test_across_hosts_a_first_failure_settles_before_the_halt():
    """So that another host's own failure is heard as such."""
    c = begun(1, 1, failure_window=0.1)
    assert c.handle(ended(0, 0, Ended.RAISED, t=1.0), 1.0) == []
    assert c.handle(ended(1, 1, Ended.RAISED, t=0.95), 1.05) == []
    assert c.handle(TickEvent(), 1.06) == []
    assert c.handle(TickEvent(), 1.11) == [HaltRoundAction(1, 3)]
    c.handle(RoundClearedEvent(0, 1), 1.2)
    (finish,) = c.handle(RoundClearedEvent(1, 1), 1.2)
    assert finish.verdict.cause.outcome.rank == 1
    assert not any(f.consequence for f in finish.verdict.others)


def test_an_agent_that_does_not_confirm_is_named_after_the_grace():
    """Every wait has a deadline."""
    c = begun(1, 1)
    c.handle(ended(0, 0, Ended.EXITED, code=1), 1.0)
    c.handle(RoundClearedEvent(0, 1), 1.1)
    assert c.handle(TickEvent(), 1.0 + 3 + CONFIRM_TIMEOUT - 0.1) == []
    (finish,) = c.handle(TickEvent(), 1.0 + 3 + CONFIRM_TIMEOUT)
    assert finish.verdict.unconfirmed == (1,)


def test_a_start_that_takes_too_long_names_who_is_missing():
    """Before the round: who has not joined. After: whose workers do not run."""
    c = coordinator(1, 1)
    c.handle(JoinedEvent(0, STORE), 1)
    halt, finish = c.handle(TickEvent(), 10.0)
    assert isinstance(halt, HaltRoundAction)
    assert (finish.verdict.reason, finish.verdict.missing) == (Reason.START_TIMEOUT, ("h1",))
    c = coordinator(1, 1)
    c.handle(JoinedEvent(0, STORE), 1)
    c.handle(JoinedEvent(1, STORE), 1)
    c.handle(WorkersStartedEvent(1, 1), 2)
    assert c.handle(TickEvent(), 10.0) == [HaltRoundAction(1, 0.0)]
    c.handle(RoundClearedEvent(0, 1), 10.1)
    (finish,) = c.handle(RoundClearedEvent(1, 1), 10.1)
    assert finish.verdict.missing == ("h0",)


def test_a_lost_agent_is_the_cause_and_need_not_confirm():
    """Its ranks are lost; those that had returned are not."""
    c = begun(2, 1)
    c.handle(ended(0, 0), 1.0)
    assert c.handle(AgentGoneEvent(0, "silence", Interval(1, 5)), 5.0) == [HaltRoundAction(1, 3)]
    (finish,) = c.handle(RoundClearedEvent(1, 1), 5.1)
    assert finish.verdict.cause.outcome.kind is Ended.LOST
    assert finish.verdict.cause.outcome.rank == 1


def test_cancelling_twice_may_shorten_the_grace():
    """The second Ctrl-C."""
    c = begun(1)
    assert c.handle(CancelEvent(), 1.0) == [HaltRoundAction(1, 3)]
    assert c.handle(CancelEvent(0.0), 1.5) == [HaltRoundAction(1, 0.0)]
    (finish,) = c.handle(RoundClearedEvent(0, 1), 2.0)
    assert finish.verdict.reason is Reason.CANCELLED


def test_events_of_another_round_are_dropped():
    """A member of an old round cannot act in this one."""
    c = begun(1)
    assert c.handle(WorkerEndedEvent(0, 0, Outcome(0, Ended.RETURNED, 1.0), at(1)), 1.0) == []
    assert c.handle(RoundClearedEvent(0, 2), 1.0) == []
    assert c.outcomes == {}


def events(agents, ranks):
    agent = st.integers(0, agents - 1)
    rank = st.integers(0, ranks)
    round_ = st.sampled_from([1, 1, 1, 1, 0, 2])
    kinds = st.sampled_from([Ended.RETURNED] * 4 + list(Ended))
    exception = st.none() | st.builds(
        ExceptionInfo, st.just("E"), st.just("m"), st.just("t"), st.booleans()
    )
    outcome = st.builds(Outcome, rank=rank, kind=kinds, clock=st.floats(0, 50), exception=exception)
    moment = st.floats(0, 50).map(at)
    return st.one_of(
        st.builds(JoinedEvent, agent, st.just(STORE)),
        st.builds(WorkersStartedEvent, agent, round_),
        st.builds(WorkerEndedEvent, agent, round_, outcome, moment),
        st.builds(RoundClearedEvent, agent, round_),
        st.builds(AgentGoneEvent, agent, st.just("gone"), moment),
        st.builds(CancelEvent, st.none() | st.floats(0, 5)),
        st.just(TickEvent()),
    )


@settings(max_examples=300)
@given(st.data())
def test_any_order_of_events_ends_once_and_truthfully(data):
    """Hypothesis: crashes, repeats, stale rounds, in any order; then only time passes."""
    workers = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    total = sum(workers)
    settles = st.sampled_from([0.0, 0.1]), st.sampled_from([0.0, 2.0])
    c = coordinator(
        *workers, failure_window=data.draw(settles[0]), start_window=data.draw(settles[1])
    )
    joined = data.draw(st.booleans())
    sequence = [JoinedEvent(a, STORE) for a in range(len(workers))] if joined else []
    sequence += data.draw(st.lists(events(len(workers), total), max_size=40))
    now, actions, gone = 0.0, [], set()
    for event in sequence:
        if isinstance(event, AgentGoneEvent):
            gone.add(event.agent)
        elif isinstance(event, JoinedEvent) and event.agent in gone:
            continue  # without elasticity nobody comes back
        now += data.draw(st.floats(0, 1))
        before = len(actions)
        new = c.handle(event, now)
        actions += new
        if any(isinstance(a, FinishAction) for a in actions[:before]):
            assert new == []
    for _ in range(6):
        if c.phase is Phase.DONE or c.deadline is None:
            break
        now = max(now, c.deadline)
        actions += c.handle(TickEvent(), now)
    finishes = [a for a in actions if isinstance(a, FinishAction)]
    begins = [a for a in actions if isinstance(a, BeginRoundAction)]
    assert len(begins) <= 1
    assert len(finishes) <= 1
    if not finishes:
        # Only workers that run, or are leaving after they returned, may take as long as they like.
        assert c.phase is Phase.RUNNING
        assert not c._round_state.failures
        return
    verdict = finishes[0].verdict
    returned = [r for r, o in c.outcomes.items() if o.kind is Ended.RETURNED]
    assert (verdict.reason is Reason.SUCCEEDED) == (sorted(returned) == list(range(total)))
    if verdict.reason is Reason.FAILED:
        assert verdict.cause is not None
        assert not verdict.cause.outcome.succeeded
        assert all(f is not verdict.cause for f in verdict.others)
    if verdict.reason is Reason.START_TIMEOUT:
        assert c._round_state.halted_at >= 10


def failure(rank, kind, earliest, latest=None, *, echo=False, consequence=False):
    exception = ExceptionInfo("E", "", "", communication=echo) if kind is Ended.RAISED else None
    return Failure(
        rank,
        "h",
        Outcome(rank, kind, earliest, exception=exception),
        Interval(earliest, earliest if latest is None else latest),
        consequence,
    )


def test_what_is_certainly_earlier_is_the_cause():
    """Kinds do not matter then."""
    assert (
        first_cause([failure(0, Ended.KILLED, 1.05), failure(1, Ended.RAISED, 1.0)]).outcome.rank
        == 1
    )


def test_on_one_host_its_own_clock_decides():
    """However uncertain its offset to the launcher's is."""
    from dataclasses import replace

    raised = replace(failure(0, Ended.RAISED, 1.0), when=Interval(0.5, 1.5))
    killed = replace(failure(1, Ended.KILLED, 1.1), when=Interval(0.6, 1.6), agent=0)
    assert first_cause([killed, raised]) is raised


def test_a_death_that_is_seen_after_its_echo_has_halted_everybody_is_the_cause():
    """It was not the signal that we send; an exit is seen late as well."""
    for kind, fields in ((Ended.KILLED, {"signal": 9}), (Ended.EXITED, {"code": 3})):
        c = begun(2)
        echo = ExceptionInfo("E", "", "", communication=True)
        halt = HaltRoundAction(1, 3, stacks=True)
        assert c.handle(ended(0, 1, Ended.RAISED, t=1.0, exception=echo), 1.0) == [halt]
        c.handle(ended(0, 0, kind, t=1.01, **fields), 1.02)
        (finish,) = c.handle(RoundClearedEvent(0, 1), 1.3)
        assert finish.verdict.cause.outcome.rank == 0


def test_a_death_that_is_our_own_doing_is_a_consequence():
    """SIGTERM in the moment of the halt, with an uncertain clock."""
    c = begun(2)
    assert c.handle(ended(0, 1, Ended.RAISED, t=1.0), 1.0)
    stopped = Outcome(0, Ended.KILLED, 1.001, signal=15, stopped=True)
    late = WorkerEndedEvent(0, 1, stopped, Interval(0.9, 1.1))
    c.handle(late, 1.1)
    (finish,) = c.handle(RoundClearedEvent(0, 1), 1.3)
    assert finish.verdict.cause.outcome.rank == 1
    assert finish.verdict.others[0].consequence


def test_where_intervals_overlap_the_kind_decides():
    """Killed or lost, then an exception, then a communication error."""
    killed = failure(0, Ended.KILLED, 1.0, 1.4)
    raised = failure(1, Ended.RAISED, 0.9, 1.3)
    echo = failure(2, Ended.RAISED, 0.8, 1.2, echo=True)
    assert first_cause([echo, raised, killed]) is killed
    assert first_cause([echo, raised]) is raised
    assert first_cause([echo]) is echo


def test_an_echo_yields_to_a_death_that_is_seen_a_little_later():
    """A death closes connections before it is reported."""
    echo = failure(0, Ended.RAISED, 1.0, echo=True)
    assert first_cause([echo, failure(1, Ended.KILLED, 1.02)]).outcome.rank == 1
    assert first_cause([echo, failure(1, Ended.KILLED, 9.0)]) is echo


def test_what_we_did_ourselves_is_never_the_cause():
    """Unless there is nothing else."""
    own = failure(0, Ended.KILLED, 0.5, consequence=True)
    assert first_cause([own, failure(1, Ended.RAISED, 1.0)]).outcome.rank == 1
    assert first_cause([own]) is own


@given(
    st.floats(-1e6, 1e6),
    st.lists(
        st.tuples(st.floats(0, 1e4), st.floats(0, 5), st.floats(0, 1)), min_size=1, max_size=20
    ),
)
def test_the_offset_is_true_within_its_bound(offset, trips):
    """Whatever the delays, the peer's moment lies in the interval."""
    clock = ClockOffset()
    assert clock.error == math.inf
    for sent, delay, share in sorted(trips):
        peer = sent + delay * share - offset
        clock.observe(sent, peer, sent + delay)
        moment = clock.interval(peer)
        tolerance = 1e-6 + 1e-5 * len(trips)
        assert moment.earliest - tolerance <= sent + delay * share <= moment.latest + tolerance
