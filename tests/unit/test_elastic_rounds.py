"""The coordinator with restarts and changing hosts: events in, actions out."""

import pytest

from phalanx._core.clock import Interval
from phalanx._launcher.reporting.report import describe_failure, make_exception, message_of
from phalanx._rendezvous.causes import Failure
from phalanx._rendezvous.coordinator import CONFIRM_TIMEOUT, Coordinator
from phalanx._rendezvous.membership import Host, choose, may_decide, natural
from phalanx._rendezvous.protocol import (
    BeginRoundAction,
    CancelEvent,
    RoundClearedEvent,
    ExpelAction,
    FinishAction,
    AgentGoneEvent,
    HaltRoundAction,
    JoinedEvent,
    Handover,
    Phase,
    CoordinatorSettings,
    Reason,
    WorkersStartedEvent,
    TickEvent,
    WorkerEndedEvent,
)
from phalanx._rendezvous.restart_policy import RESTART_POLICIES
from phalanx._rendezvous.restart_budget import Budget
from phalanx._core.rounds import Ended, Endpoint, ExceptionInfo, Outcome


class Driver:
    """A coordinator, and hosts that do what they are told."""

    def __init__(self, count, *, restart="all", past=None, workers=1, **options):
        self.now = 0.0
        self.hosts = tuple(Host(i, f"h{i}", workers, (i,)) for i in range(count))
        settings = CoordinatorSettings(() if options.get("open") else self.hosts, 100, 3, **options)
        self.c = Coordinator(settings, RESTART_POLICIES[restart](settings), 0.0, past)
        self.ports = 1000

    def feed(self, event):
        return self.c.handle(event, self.now)

    def join(self, *agents):
        actions = []
        for agent in agents:
            self.ports += 1
            host = Host(agent, f"h{agent}", 1, (agent,)) if agent >= len(self.hosts) else None
            if self.c.settings.open:
                host = Host(agent, f"h{agent}", 1, (agent,))
            actions += self.feed(JoinedEvent(agent, Endpoint(f"h{agent}", self.ports), host))
        return actions

    def run(self, begin):
        """All members report that they run."""
        actions = []
        for member in begin.round.members:
            actions += self.feed(WorkersStartedEvent(member.agent, begin.round.number))
        return actions

    def fail(self, agent, rank, number, kind=Ended.EXITED, after=1.0, **fields):
        self.now += after
        fields = {"code": 1} | fields if kind is Ended.EXITED else fields
        outcome = Outcome(rank, kind, self.now, **fields)
        return self.feed(WorkerEndedEvent(agent, number, outcome, Interval(self.now, self.now)))

    def lose(self, agent, *, closed=True, after=1.0):
        self.now += after
        return self.feed(AgentGoneEvent(agent, "cut off", Interval(self.now, self.now), closed))

    def clear(self, number, *agents):
        actions = []
        for agent in agents:
            self.ports += 1
            actions += self.feed(
                RoundClearedEvent(agent, number, Endpoint(f"h{agent}", self.ports))
            )
        return actions

    def wait(self):
        assert self.c.deadline is not None
        self.now = max(self.now, self.c.deadline)
        return self.feed(TickEvent())


def names(action):
    return [member.hostname for member in action.round.members]


def begun(count, **settings):
    d = Driver(count, last_call=5, **settings)
    (begin,) = d.join(*range(count))
    d.run(begin)
    return d


def test_a_failure_restarts_everybody_with_a_fresh_store():
    """One more round, one restart spent, the same for all."""
    d = begun(2, max_restarts=2)
    assert d.fail(1, 1, 1) == [HaltRoundAction(1, 3)]
    assert d.clear(1, 0) == []
    (begin,) = d.clear(1, 1)
    assert (begin.round.number, begin.round.restarts) == (2, 1)
    assert begin.round.store.port == 1003
    assert names(begin) == ["h0", "h1"]


def test_the_last_failure_is_final():
    """`max_restarts=2`: the third; the two before are told as well."""
    d = begun(1, max_restarts=2)
    for number in (1, 2):
        d.fail(0, 0, number, after=20)
        (begin,) = d.clear(number, 0)
        d.run(begin)
    d.fail(0, 0, 3)
    (finish,) = d.clear(3, 0)
    assert finish.verdict.reason is Reason.FAILED
    assert len(finish.verdict.restart_causes) == 2


def test_early_failures_in_a_row_are_waited_after():
    """The first restart comes at once; a failure after a long run starts over."""
    d = begun(1, max_restarts=9, backoff=0.5)
    waits = []
    for number, after in enumerate((1, 1, 1, 1, 100, 1), start=1):
        d.fail(0, 0, number, code=number, after=after)
        before = d.now
        actions = d.clear(number, 0) or d.wait()
        waits.append(d.now - before)
        d.run(actions[0])
    assert waits == [0, 0.5, 1, 2, 0, 0]


def test_the_same_early_failure_again_and_again_stops_early_and_says_so():
    """Though restarts are left; another failure in between begins the count anew."""
    d = begun(1, max_restarts=9, same_failures=3)
    for number, code in enumerate((1, 1, 2, 2), start=1):
        d.fail(0, 0, number, code=code)
        actions = d.clear(number, 0) or d.wait()
        d.run(actions[0])
    d.fail(0, 0, 5, code=2)
    (finish,) = d.clear(5, 0)
    assert "3 times in a row" in finish.verdict.note
    assert "5 restarts" in finish.verdict.note


def test_a_lost_host_is_survived_without_spending_a_restart():
    """With enough left, at once; ranks stay contiguous."""
    d = begun(3, min_hosts=2)
    assert d.lose(0) == [HaltRoundAction(1, 3)]
    (begin,) = d.clear(1, 1, 2)
    assert names(begin) == ["h1", "h2"]
    assert [m.first_rank for m in begin.round.members] == [0, 1]
    assert begin.round.restarts == 0
    assert begin.round.store.address == "h1"


def test_one_that_is_back_before_the_others_have_stopped_was_lost_all_the_same():
    """It takes part in the next round; no restart is spent."""
    d = begun(3, min_hosts=2)
    d.lose(2)
    assert d.join(2) == []
    (begin,) = d.clear(1, 0, 1)
    assert names(begin) == ["h0", "h1", "h2"]
    assert begin.round.restarts == 0


def test_a_spare_takes_the_place_of_a_lost_host():
    """Those of the round before stay in it."""
    d = begun(3, min_hosts=1, max_hosts=2)
    assert [m.hostname for m in d.c.round.members] == ["h0", "h1"]
    d.lose(0)
    (begin,) = d.clear(1, 1)
    assert names(begin) == ["h1", "h2"]


def test_a_spare_that_is_lost_changes_nothing():
    """It was only waiting."""
    d = begun(3, max_hosts=2, min_hosts=2)
    assert d.lose(2) == []
    assert d.c.phase is Phase.RUNNING


def test_too_few_hosts_without_restarts_is_the_end():
    """As without elasticity."""
    d = begun(2)
    d.lose(1)
    (finish,) = d.clear(1, 0)
    assert finish.verdict.reason is Reason.FAILED
    assert finish.verdict.cause.outcome.kind is Ended.LOST


def test_too_few_hosts_wait_for_one_to_come_back_at_the_cost_of_a_restart():
    """Or else a host that goes down for ever would be waited for again and again."""
    d = begun(2, max_restarts=1)
    d.lose(1)
    assert d.clear(1, 0) == []
    assert d.c.awaited == ("h1",)
    (begin,) = d.join(1)
    assert names(begin) == ["h0", "h1"]
    assert begin.round.restarts == 1
    d.run(begin)
    d.lose(1)
    (finish,) = d.clear(2, 0)
    assert finish.verdict.reason is Reason.FAILED


def test_hosts_that_do_not_come_back_are_named_when_the_time_is_over():
    """Every wait has a deadline."""
    d = begun(2, max_restarts=1)
    d.lose(1)
    d.clear(1, 0)
    (finish,) = d.wait()
    assert finish.verdict.reason is Reason.START_TIMEOUT
    assert finish.verdict.missing == ("h1",)
    assert d.now == 101
    assert "\nEarlier failures:\n  h1 was lost: cut off" in describe_failure(finish.verdict)
    assert message_of(finish.verdict) == "start timeout, after h1 was lost: cut off"


def test_a_host_that_comes_while_there_is_room_joins_at_once():
    """It sorts before all others: everybody gets the same store. No restart is spent."""
    d = Driver(0, open=True, min_hosts=2, max_hosts=3, last_call=5)
    assert d.join(5, 6) == []
    (begin,) = d.wait()
    d.run(begin)
    d.now += 1
    assert d.join(2) == [HaltRoundAction(1, 3)]
    d.fail(5, 0, 1, Ended.KILLED, after=0.01, signal=15, stopped=True)
    d.fail(6, 1, 1, after=0.01)
    (begin,) = d.clear(1, 5, 6)
    assert names(begin) == ["h2", "h5", "h6"]
    assert begin.round.store.address == "h2"
    assert begin.round.restarts == 0


def test_one_that_comes_while_a_round_begins_joins_when_it_runs():
    """Not lost, not early."""
    d = Driver(0, open=True, min_hosts=1, max_hosts=2, last_call=0)
    (begin,) = d.join(1)
    assert d.join(2) == []
    assert d.run(begin) == [HaltRoundAction(1, 3)]
    (begin,) = d.clear(1, 1)
    assert names(begin) == ["h1", "h2"]


def test_one_beyond_the_most_waits():
    """No round is disturbed for it."""
    d = Driver(0, open=True, min_hosts=1, max_hosts=1)
    (begin,) = d.join(1)
    d.run(begin)
    assert d.join(2) == []
    assert d.c.phase is Phase.RUNNING


def test_the_first_round_is_held_a_while_for_more():
    """Up to the most; then it begins."""
    d = Driver(0, open=True, min_hosts=1, max_hosts=3, last_call=5)
    assert d.join(1) == []
    d.now = 3
    assert d.join(2) == []
    assert d.c.deadline == 5
    (begin,) = d.join(3)
    assert len(names(begin)) == 3


def test_a_listed_host_that_cannot_be_used_is_done_without():
    """If the others are enough."""
    d = Driver(3, min_hosts=2, last_call=5)
    assert d.lose(1) == []
    assert d.join(0) == []
    (begin,) = d.join(2)
    assert names(begin) == ["h0", "h2"]


def test_an_agent_that_does_not_stop_in_time_is_expelled():
    """The others go on without it."""
    d = begun(3, min_hosts=2, max_restarts=1)
    d.fail(0, 0, 1)
    assert d.clear(1, 0, 1) == []
    expel, begin = d.wait()
    assert isinstance(expel, ExpelAction)
    assert expel.agent == 2
    assert names(begin) == ["h0", "h1"]
    assert d.now == 1 + 3 + CONFIRM_TIMEOUT


def test_a_cancel_during_a_restart_is_the_end():
    """While workers stop, and while hosts are waited for."""
    d = begun(2, max_restarts=3)
    d.fail(0, 0, 1)
    d.feed(CancelEvent())
    (finish,) = d.clear(1, 0, 1)
    assert isinstance(finish, FinishAction)
    d = begun(2, max_restarts=3)
    d.lose(0)
    d.clear(1, 1)
    (finish,) = d.feed(CancelEvent())
    assert finish.verdict.reason is Reason.CANCELLED


def test_frames_of_an_old_round_change_nothing():
    """A member of the round before cannot act in this one."""
    d = begun(2, max_restarts=1)
    d.fail(0, 0, 1)
    (begin,) = d.clear(1, 0, 1)
    d.run(begin)
    assert d.fail(1, 1, 1) == []
    assert d.clear(1, 0, 1) == []
    assert d.c.phase is Phase.RUNNING
    assert d.c.outcomes == {}


# ── a majority ────────────────────────────────────────────────────────────────


def test_a_minority_that_hears_nothing_of_the_rest_does_not_decide():
    """The rest may have formed a round of its own."""
    d = begun(4, min_hosts=1, quorum=True)
    d.lose(0, closed=False)
    d.lose(1, closed=False)
    (finish,) = d.clear(1, 2, 3)
    assert finish.verdict.reason is Reason.NO_QUORUM
    assert finish.verdict.missing == ("h0", "h1")


def test_what_failed_before_a_majority_was_lost_is_part_of_the_error():
    """Of the rounds before, and of the last; each lost host once; none that followed from it."""
    d = begun(4, min_hosts=1, max_restarts=1, quorum=True, workers=2)
    exception = ExceptionInfo("ValueError", "bad batch", "Traceback: here")
    d.fail(3, 7, 1, Ended.RAISED, exception=exception)
    (begin,) = d.clear(1, 0, 1, 2, 3)
    d.run(begin)
    d.lose(0, closed=False)
    d.lose(1, closed=False)
    d.fail(2, 4, 2, Ended.KILLED, signal=15, stopped=True)
    (finish,) = d.clear(2, 2, 3)
    assert finish.verdict.reason is Reason.NO_QUORUM
    error = make_exception(
        finish.verdict, (), {}, lambda _: None, returned=(), running=(), start_timeout=100
    )
    (note,) = error.__notes__
    assert note.splitlines()[1:] == [
        "Earlier failures:",
        "  rank 7 on h3 raised ValueError: bad batch",
        "  h0 was lost: cut off",
        "",
        "  Traceback: here",
    ]
    assert describe_failure(finish.verdict).endswith(note)


@pytest.mark.parametrize(
    ("running", "cut_off", "said"),
    [
        ((0, 1), (), "lost the agent on h1: cut off. The other agent was stopped."),
        ((), (1,), "lost h1 before its workers started: cut off"),
        ((), (), "cannot start the agent on h1: cut off"),
    ],
)
def test_a_lost_host_is_told_with_all_of_its_ranks(running, cut_off, said):
    """Those that it had: the first of them, which is the cause, as well."""
    d = begun(2, workers=2)
    d.lose(1)
    (finish,) = d.clear(1, 0)
    error = make_exception(
        finish.verdict,
        finish.verdict.members,
        {},
        lambda _: None,
        returned=(),
        running=running,
        start_timeout=100,
        cut_off=cut_off,
    )
    assert str(error) == said
    notes = "\n".join(getattr(error, "__notes__", ()))
    assert ("Ranks 2-3 on h1 were lost with it." in notes) == bool(running)


def test_what_to_do_about_a_missing_package_is_said_once():
    """However many hosts do not have it."""
    d = begun(2, workers=2)
    for rank in range(4):
        text = f"No module named 'torch' on h{rank // 2} (/v). Install it there"
        exception = ExceptionInfo("ModuleNotFoundError", text, "")
        d.fail(rank // 2, rank, 1, Ended.RAISED, after=0.0, exception=exception)
    (finish,) = d.clear(1, 0, 1)
    error = make_exception(
        finish.verdict, (), {}, lambda _: None, returned=(), running=(0, 1), start_timeout=100
    )
    told = "\n".join((str(error), *error.__notes__))
    assert told.count("Install it there") == 1
    assert "No module named 'torch' for ranks 1-3 on h0, h1 either." in told


def test_a_majority_or_certainty_decides():
    """Closed connections are ends, not silence."""
    d = begun(3, min_hosts=1, quorum=True)
    d.lose(0, closed=False)
    assert isinstance(d.clear(1, 1, 2)[0], BeginRoundAction)
    d = begun(2, min_hosts=1, quorum=True)
    d.lose(0, closed=True)
    assert isinstance(d.clear(1, 1)[0], BeginRoundAction)


@pytest.mark.parametrize(
    ("last", "there", "closed", "may"),
    [
        ((1, 2, 3), (2, 3), (), True),
        ((1, 2, 3), (3,), (1,), False),
        ((1, 2, 3), (3,), (1, 2), True),
        ((1, 2), (1,), (), False),
        ((1, 2, 3, 4), (1, 2), (), False),
        ((1,), (1,), (), True),
        ((1, 2), (), (1, 2), True),
    ],
)
def test_who_may_decide(last, there, closed, may):
    """More than half of the last round, or all others certainly ended."""
    assert may_decide(last, there, closed) is may


def test_one_that_takes_over_goes_on_counting():
    """Round numbers and restarts only grow; the one that is lost is not waited for."""
    d = begun(3, min_hosts=2, max_restarts=2, quorum=True)
    d.fail(0, 0, 1)
    (begin,) = d.clear(1, 0, 1, 2)
    past = Handover(begin.round, frozenset({0}))
    d = Driver(0, past=past, open=True, min_hosts=2, max_hosts=3, max_restarts=2, quorum=True)
    assert d.join(1) == []
    assert d.join(2) == []
    assert d.clear(2, 1) == []
    (begin,) = d.clear(2, 2)
    assert names(begin) == ["h1", "h2"]
    # A number is left out: the one that is lost may have begun a round that nobody has heard of.
    assert (begin.round.number, begin.round.restarts) == (4, 1)


# ── hosts that do not communicate ─────────────────────────────────────────────


def hostwise(count, **settings):
    return begun(count, restart="host", **settings)


def test_a_failure_restarts_its_own_host_alone():
    """The others run on, in their round."""
    d = hostwise(2, max_restarts=1)
    assert d.fail(1, 1, 1) == [HaltRoundAction(1, 3, (1,))]
    (begin,) = d.clear(1, 1)
    assert (begin.agents, begin.round.number, begin.round.restarts) == ((1,), 2, 1)
    d.feed(WorkersStartedEvent(1, 2))
    done = Outcome(0, Ended.RETURNED, 5.0), Outcome(1, Ended.RETURNED, 5.0)
    d.feed(WorkerEndedEvent(0, 1, done[0], Interval(5, 5)))
    d.feed(WorkerEndedEvent(1, 2, done[1], Interval(5, 5)))
    assert d.clear(1, 0) == []
    (finish,) = d.clear(2, 1)
    assert finish.verdict.reason is Reason.SUCCEEDED


def test_every_host_has_its_own_restarts_and_one_without_ends_the_app():
    """The cause is that host's."""
    d = hostwise(2, max_restarts=1)
    d.fail(1, 1, 1)
    d.clear(1, 1)
    d.fail(0, 0, 1)
    d.clear(1, 0)
    d.feed(WorkersStartedEvent(1, 2))
    assert d.fail(1, 1, 2) == [HaltRoundAction(2, 3, (1,)), HaltRoundAction(3, 3, (0,))]
    d.clear(2, 1)
    (finish,) = d.clear(3, 0)
    assert finish.verdict.cause.agent == 1


def test_a_spare_takes_over_the_ranks_of_a_lost_host():
    """Nobody else is disturbed; without a spare it is the end."""
    d = hostwise(3, max_hosts=2, min_hosts=2)
    (begin,) = d.lose(0)
    assert begin.agents == (2,)
    assert [(m.hostname, m.first_rank) for m in begin.round.members] == [("h2", 0), ("h1", 1)]
    d.feed(WorkersStartedEvent(2, 2))
    assert d.lose(2) == [HaltRoundAction(1, 3, (1,)), HaltRoundAction(2, 3, (2,))]
    (finish,) = d.clear(1, 1)
    assert finish.verdict.cause.outcome.kind is Ended.LOST


# ── small parts ───────────────────────────────────────────────────────────────


def test_names_sort_as_people_sort_them():
    """`node2` before `node10`; a number within, nothing at all."""
    listed = ["node10", "node2", "a", "", "node2-3", "10.0.0.10", "10.0.0.9"]
    ordered = ["", "10.0.0.9", "10.0.0.10", "a", "node2", "node2-3", "node10"]
    assert sorted(listed, key=natural) == ordered


def test_those_of_the_last_round_are_preferred_and_order_is_kept():
    """A newcomer that sorts first does not push one out."""
    hosts = [Host(i, f"h{i}", 1, (i,)) for i in range(4)]
    assert [h.agent for h in choose(hosts, 2, stay=(2, 3))] == [2, 3]
    assert [h.agent for h in choose(hosts, 3, stay=(3,))] == [0, 1, 3]


def test_a_failure_is_the_same_on_another_rank_and_not_with_another_message():
    """What is compared is how it ended."""

    def failure(rank, message):
        outcome = Outcome(rank, Ended.RAISED, 1.0, exception=ExceptionInfo("E", message, ""))
        return Failure(0, "h", outcome, Interval(1, 1))

    budget = Budget(9, same_failures=2)
    assert budget.spend(failure(0, "a"), 1) == 0
    assert budget.spend(failure(1, "b"), 1) is not None
    assert budget.spend(failure(2, "b"), 1) is None
    assert budget.note


# ── what was found by trying ──────────────────────────────────────────────────


def test_a_host_that_is_lost_while_a_restart_waits_does_not_end_it():
    """The wait for hosts has a time of its own, from when it is over."""
    d = begun(2, max_restarts=5, backoff=2.0, min_hosts=2)
    for number in (1, 2):
        d.fail(0, 0, number)
        actions = d.clear(number, 0, 1)
        if actions:
            d.run(actions[0])
    assert d.c.phase is Phase.GATHERING
    d.lose(1, after=0.5)
    assert d.c.deadline > d.now + 90
    d.now += 5
    (begin,) = d.join(1)
    assert names(begin) == ["h0", "h1"]
    assert d.c.deadline == d.now + 100


def test_what_returns_when_it_is_stopped_for_another_to_come_in_has_not_ended():
    """It saved its state at SIGTERM, and returned."""
    d = Driver(0, open=True, min_hosts=1, max_hosts=2)
    (begin,) = d.join(1)
    d.run(begin)
    assert d.join(2) == [HaltRoundAction(1, 3)]
    d.fail(1, 0, 1, Ended.RETURNED)
    (begin,) = d.clear(1, 1)
    assert names(begin) == ["h1", "h2"]


def test_one_that_was_told_to_leave_is_not_waited_for():
    """Where those that stay are too few, it is the end at once."""
    d = begun(2, max_restarts=3)
    d.now += 1
    d.feed(AgentGoneEvent(1, "told to end", Interval(1, 1), left=True))
    (finish,) = d.clear(1, 0)
    assert finish.verdict.reason is Reason.FAILED


def test_one_that_will_not_come_back_after_all_is_waited_for_no_longer():
    """No other was found in its place."""
    d = begun(2, max_restarts=3)
    d.now += 1
    d.feed(AgentGoneEvent(1, "taken away", Interval(1, 1)))
    assert d.clear(1, 0) == []
    (finish,) = d.feed(AgentGoneEvent(1, "there is no other", Interval(2, 2), left=True))
    assert finish.verdict.reason is Reason.FAILED


def test_an_app_that_is_ending_is_not_disturbed_for_a_newcomer():
    """Some have returned: the others will."""
    d = Driver(0, open=True, min_hosts=2, max_hosts=3, last_call=0)
    (begin,) = d.join(1, 2)
    d.run(begin)
    d.fail(1, 0, 1, Ended.RETURNED)
    assert d.join(3) == []


def test_names_of_any_shape_can_be_ordered():
    """With and without numbers, and ranks that were given."""
    from phalanx._rendezvous.tcp.leader import order_of
    from phalanx._wire import rendezvous_frames

    def request(name, rank=None):
        return rendezvous_frames.JoinRequest(
            version="", run_id="", agent=1, key="", hostname=name, workers=1, node_rank=rank,
            contact=Endpoint("10.0.0.1", 1), port=1, torch=None, bounds=(1, 1),
        )  # fmt: skip

    listed = [
        request("node10"),
        request("node"),
        request("node2"),
        request("2"),
        request("x", 0),
        request(""),
    ]
    ordered = sorted(listed, key=order_of)
    assert [m.hostname for m in ordered] == ["x", "", "2", "node", "node2", "node10"]


def test_one_hosts_start_does_not_wipe_anothers_wait():
    """Where hosts restart alone, each has its own times."""
    d = hostwise(2, max_restarts=5, backoff=4.0)
    for number in (1, 2):
        d.fail(1, 1, d.c.round_of(1))
        d.clear(d.c.round_of(1), 1)
        if d.c.round_of(1) > number:
            d.feed(WorkersStartedEvent(1, d.c.round_of(1)))
    waiting = d.c.deadline
    assert waiting is not None
    d.fail(0, 0, 1)
    (begin,) = d.clear(1, 0)
    d.feed(WorkersStartedEvent(0, begin.round.number))
    assert d.c.deadline == waiting
    (begin,) = d.wait()
    assert begin.agents == (1,)
    assert d.c.deadline == d.now + 100


def test_hosts_that_restart_alone_are_all_stopped_in_their_own_rounds():
    """When it is cancelled; one that waits for its restart is clear already."""
    d = hostwise(3, max_restarts=5, backoff=4.0)
    d.fail(1, 1, 1)
    d.clear(1, 1)
    d.feed(WorkersStartedEvent(1, 2))
    d.fail(1, 1, 2)
    d.clear(2, 1)
    halts = d.feed(CancelEvent())
    assert halts == [HaltRoundAction(1, 3, (0, 2)), HaltRoundAction(2, 3, (1,))]
    (finish,) = d.clear(1, 0, 2)
    assert finish.verdict.reason is Reason.FAILED  # what it waited to restart after


def test_one_hosts_wait_is_no_deadline_for_others_that_still_start():
    """A host that fails again and again while another is slow to start."""
    d = Driver(2, restart="host", max_restarts=5, backoff=4.0, last_call=5)
    (begin,) = d.join(0, 1)
    number = begin.round.number
    for _ in range(2):
        d.feed(WorkersStartedEvent(1, number))
        d.fail(1, 1, number)
        d.clear(number, 1)
        number = d.c.round_of(1)
    (begin,) = d.wait()
    assert begin.agents == (1,)
    (halt, *_) = d.wait()
    assert isinstance(halt, HaltRoundAction)
    assert d.now == 100  # the start timeout


@pytest.mark.parametrize("spares", [0, 1])
def test_a_host_lost_while_it_waits_for_its_restart_is_lost(spares):
    """A spare takes its place, or the app has failed: it is not started anew where nobody is."""
    d = hostwise(2 + spares, min_hosts=2, max_hosts=2, max_restarts=5, backoff=4.0)
    for _ in range(2):
        number = d.c.round_of(1)
        d.feed(WorkersStartedEvent(1, number))
        d.fail(1, 1, number)
        d.clear(number, 1)
    actions = d.lose(1)
    if spares:
        assert [action.agents for action in actions] == [(2,)]
        return
    assert actions == [HaltRoundAction(1, 3, (0,)), HaltRoundAction(2, 3, (1,))]
    (finish,) = d.clear(1, 0)
    assert finish.verdict.cause.agent == 1
