"""What follows when a replica ends, over any order of events."""

from hypothesis import given
from hypothesis import strategies as st

from phalanx._schedulers.replicas.lifecycle import (
    AppLifecycle,
    FinishApp,
    RoleLifecycle,
    StartReplica,
    StopReplica,
)
from phalanx.specs import AppState, RetryPolicy

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


def lifecycle(policy=RetryPolicy.APPLICATION, retries=0):
    made = AppLifecycle([RoleLifecycle("a", 2, retries, policy), RoleLifecycle("b", 1)])
    assert made.begin() == [StartReplica(A0), StartReplica(A1), StartReplica(B0)]
    return made


def test_all_succeed():
    """Then so does the app."""
    c = lifecycle()
    assert c.ended(A0, succeeded=True) == []
    assert c.ended(B0, succeeded=True) == []
    assert c.ended(A1, succeeded=True) == [FinishApp(AppState.SUCCEEDED)]


def test_the_first_failure_ends_the_rest():
    """And is the cause, whatever they do then."""
    c = lifecycle()
    assert c.ended(A1, succeeded=False) == [StopReplica(A0), StopReplica(B0)]
    assert c.ended(A0, succeeded=False, asked=True) == []
    assert c.ended(B0, succeeded=True, asked=True) == [FinishApp(AppState.FAILED)]
    assert c.first_failure == A1
    assert [c.states[k].name for k in (A0, A1, B0)] == ["CANCELLED", "FAILED", "SUCCEEDED"]


def test_a_replica_is_started_again():
    """The others go on."""
    c = lifecycle(RetryPolicy.REPLICA, 1)
    assert c.ended(A1, succeeded=False) == [StartReplica(A1)]
    assert c.ended(A0, succeeded=False) == [StartReplica(A0)], "each has its own"
    assert c.ended(A1, succeeded=False) == [StopReplica(A0), StopReplica(B0)]
    assert c.restarts == 2


def test_a_role_is_started_again():
    """When all of it has stopped; what had succeeded is done again."""
    c = lifecycle(RetryPolicy.ROLE, 1)
    assert c.ended(A0, succeeded=True) == []
    assert c.ended(A1, succeeded=False) == [StartReplica(A0), StartReplica(A1)]
    assert c.ended(A1, succeeded=False) == [StopReplica(A0), StopReplica(B0)]
    c = lifecycle(RetryPolicy.ROLE, 1)
    assert c.ended(A0, succeeded=False) == [StopReplica(A1)]
    assert c.ended(A1, succeeded=False) == [StartReplica(A0), StartReplica(A1)]
    assert c.retries == {A0: 1, A1: 1, B0: 0}


def test_an_app_is_started_again():
    """All of it."""
    c = lifecycle(RetryPolicy.APPLICATION, 1)
    assert c.ended(A0, succeeded=False) == [StopReplica(A1), StopReplica(B0)]
    assert c.ended(B0, succeeded=False) == []
    assert c.ended(A1, succeeded=True) == [StartReplica(A0), StartReplica(A1), StartReplica(B0)]
    assert c.restarts == 1


def test_a_replica_does_not_wait_for_another_role_to_stop():
    """Each is started again by itself."""
    c = AppLifecycle(
        [RoleLifecycle("a", 1, 1, RetryPolicy.REPLICA), RoleLifecycle("b", 2, 1, RetryPolicy.ROLE)]
    )
    c.begin()
    assert c.ended(("b", 0), succeeded=False) == [StopReplica(("b", 1))]
    assert c.ended(("a", 0), succeeded=False) == [StartReplica(("a", 0))]
    assert c.ended(("b", 1), succeeded=False, asked=True) == [
        StartReplica(("b", 0)),
        StartReplica(("b", 1)),
    ]


def test_retries_are_counted_for_the_role_that_fails():
    """Though all of the app is started again."""
    c = AppLifecycle([RoleLifecycle("a", 1, 2), RoleLifecycle("b", 1, 1)])
    c.begin()
    for failing, other in ((A0, B0), (A0, B0), (B0, A0)):
        assert c.ended(failing, succeeded=False) == [StopReplica(other)]
        assert c.ended(other, succeeded=False, asked=True) == [StartReplica(A0), StartReplica(B0)]
    assert c.ended(B0, succeeded=False) == [StopReplica(A0)]
    assert c.first_failure == B0


def test_one_that_is_lost_with_its_host_is_done_without_if_enough_are_left():
    """No retry is spent on it, and nobody is stopped; one that exits is a failure as ever."""
    c = AppLifecycle([RoleLifecycle("a", 3, 1, RetryPolicy.APPLICATION, 1)])
    c.begin()
    assert c.ended(A1, succeeded=False, lost=True) == []
    assert c.ended(("a", 2), succeeded=False, lost=True) == []
    assert c.ended(A0, succeeded=True) == [FinishApp(AppState.SUCCEEDED)]
    assert [c.states[key].name for key in (A0, A1)] == ["SUCCEEDED", "FAILED"]
    assert c.restarts == 0

    c = AppLifecycle([RoleLifecycle("a", 2, min_replicas=1)])
    c.begin()
    assert c.ended(A1, succeeded=False) == [StopReplica(A0)]

    c = AppLifecycle([RoleLifecycle("a", 2, min_replicas=1)])
    c.begin()
    assert c.ended(A1, succeeded=True) == []
    assert c.ended(A0, succeeded=False, lost=True) == [FinishApp(AppState.FAILED)]


def test_cancelling():
    """Once; also while it stops to start again."""
    c = lifecycle(RetryPolicy.APPLICATION, 1)
    assert c.ended(A0, succeeded=False) == [StopReplica(A1), StopReplica(B0)]
    assert c.cancel() == []
    assert c.cancel() == []
    assert c.ended(B0, succeeded=False) == []
    assert c.ended(A1, succeeded=False) == [FinishApp(AppState.CANCELLED)]


policies = st.sampled_from(list(RetryPolicy))
parts = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2), policies), min_size=1, max_size=3
).map(lambda ps: [RoleLifecycle(f"r{i}", n, m, p) for i, (n, m, p) in enumerate(ps)])


@given(parts, st.data())
def test_every_history_ends_once_and_starts_nothing_that_runs(parts, data):
    """Within the retries that there are, and with nothing left running."""
    c = AppLifecycle(parts)
    running, finished, starts = set(), [], 0
    queue = c.begin()
    for _ in range(500):
        for action in queue:
            assert not finished
            match action:
                case StartReplica(key):
                    assert key not in running
                    running.add(key)
                    starts += 1
                case StopReplica(key):
                    assert key in running
                case FinishApp(state):
                    finished.append(state)
        if finished:
            break
        event = data.draw(st.sampled_from([*sorted(running), "cancel"]))
        if event == "cancel":
            queue = c.cancel()
        else:
            running.discard(event)
            queue = c.ended(event, succeeded=data.draw(st.booleans()))
    assert len(finished) == 1
    assert not running
    replicas = sum(part.replicas for part in parts)
    most = sum(part.max_retries * max(1, part.replicas) for part in parts)
    assert c.restarts <= most
    assert starts <= replicas * (1 + most)
    if finished == [AppState.SUCCEEDED]:
        assert all(state is AppState.SUCCEEDED for state in c.states.values())
    if finished == [AppState.FAILED]:
        assert c.states[c.first_failure] is AppState.FAILED
