"""Many calls: who gets which item, what a call is known by, and what a checkpoint keeps."""

import functools
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx._core.rounds import Member
from phalanx._launcher.calls.checkpoint import Checkpoint
from phalanx._launcher.calls.digests import call_digest, function_digest
from phalanx._launcher.calls.schedule import CallEnd, CallSchedule, HostSlots, spread
from phalanx._launcher.result import LaunchResult
from phalanx.errors import ConfigError


KINDS = [(True, False), (False, False), (False, True)]
"""This machine, another, and one that is lent."""


def take_all(schedule):
    taken = []
    while (assignment := schedule.take()) is not None:
        taken.append(assignment)
    return taken


# ── the schedule ──────────────────────────────────────────────────────────────


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_item_is_done_once_whatever_happens(data):
    """And no host, and no map, has more calls at a time than it takes."""
    count = data.draw(st.integers(1, 4), label="hosts")
    hosts = [
        HostSlots(data.draw(st.integers(1, 3)), *data.draw(st.sampled_from(KINDS)))
        for _ in range(count)
    ]
    wanted = data.draw(st.integers(1, count), label="hosts_per_call")
    most = data.draw(st.integers(1, 5), label="max_parallel")
    retries = data.draw(st.integers(0, 3), label="retries")
    items = data.draw(st.integers(0, 12), label="items")
    schedule = CallSchedule(
        range(items), hosts, hosts_per_call=wanted, max_parallel=most, retries=retries
    )
    running, over, awaited = {}, [], []
    while not schedule.is_over:
        for assignment in take_all(schedule):
            assert assignment.item not in running
            assert len(set(assignment.hosts)) == wanted
            assert not {*assignment.hosts} & {*awaited}
            assert assignment.attempt <= retries
            running[assignment.item] = assignment
        while (lost := schedule.take_lost()) is not None:
            assert hosts[lost].is_lent
            awaited.append(lost)
        if awaited and (not running or data.draw(st.booleans(), label="replaces")):
            schedule.replaced(awaited.pop(), found=data.draw(st.booleans(), label="found"))
            continue
        assert running, "calls wait, and nothing runs"
        assert len(running) == schedule.running <= most
        for index, host in enumerate(hosts):
            assert sum(index in a.hosts for a in running.values()) <= host.slots
        item = data.draw(st.sampled_from(sorted(running)), label="ends")
        end = data.draw(st.sampled_from(CallEnd), label="how")
        lost = data.draw(st.sets(st.sampled_from(running[item].hosts)), label="lost")
        gone = {host for host in lost if hosts[host].is_lent and data.draw(st.booleans())}
        before = running.pop(item)
        if not schedule.ended(item, end, lost, gone):
            over.append(item)
            assert end is not CallEnd.UNPLACED or before.attempt == retries
    over += schedule.drop_waiting()
    assert sorted(over) == list(range(items))


def test_a_lost_call_is_tried_on_another_host():
    """Also if it has to wait for one, while others go on where it was lost."""
    schedule = CallSchedule(range(4), [HostSlots(1)] * 2, max_parallel=2, retries=1)
    first, second = take_all(schedule)
    assert (first.hosts, second.hosts) == ((0,), (1,))
    assert schedule.ended(0, CallEnd.LOST, first.hosts)
    (third,) = take_all(schedule)
    assert (third.item, third.hosts) == (2, (0,))
    schedule.ended(1, CallEnd.RETURNED)
    (again,) = take_all(schedule)
    assert (again.item, again.hosts, again.attempt) == (0, (1,), 1)


def test_a_host_that_is_lost_twice_in_a_row_is_not_used_again():
    """What succeeds between counts; with the last host, what waits is given up."""
    schedule = CallSchedule(range(9), [HostSlots(1)], max_parallel=1)
    for item, end in enumerate([CallEnd.LOST, CallEnd.RETURNED, CallEnd.LOST, CallEnd.LOST]):
        assert not schedule.is_stuck
        assert [a.item for a in take_all(schedule)] == [item]
        schedule.ended(item, end)
    assert schedule.take() is None
    assert schedule.is_stuck
    assert schedule.is_over
    assert schedule.drop_waiting() == [4, 5, 6, 7, 8]


def test_this_machine_is_never_given_up():
    """There is nowhere else to go."""
    schedule = CallSchedule(range(5), [HostSlots(1, is_local=True)], max_parallel=1)
    for item in range(5):
        assert [a.item for a in take_all(schedule)] == [item]
        schedule.ended(item, CallEnd.LOST)
    assert schedule.is_over
    assert not schedule.is_stuck


def test_only_the_host_to_blame_is_avoided():
    """Of several that a call had."""
    schedule = CallSchedule(
        range(1), [HostSlots(1)] * 3, hosts_per_call=2, max_parallel=1, retries=1
    )
    (first,) = take_all(schedule)
    assert first.hosts == (0, 1)
    schedule.ended(0, CallEnd.LOST, {1})
    (again,) = take_all(schedule)
    assert again.hosts == (0, 2)


def test_a_lent_host_that_is_gone_is_replaced():
    """What it had is made again there, and what never began is no attempt."""
    schedule = CallSchedule(range(3), [HostSlots(1, is_lent=True)] * 2, max_parallel=2, retries=1)
    take_all(schedule)
    assert schedule.ended(0, CallEnd.LOST, {0}, gone={0})
    assert schedule.take_lost() == 0
    assert schedule.take_lost() is None
    schedule.ended(1, CallEnd.RETURNED)
    (again,) = take_all(schedule)
    assert (again.item, again.hosts, again.attempt) == (0, (1,), 1)
    assert schedule.ended(0, CallEnd.UNPLACED, {1}, gone={1})
    assert schedule.take_lost() == 1
    assert take_all(schedule) == []
    assert not schedule.is_over
    schedule.replaced(0, found=True)
    (again,) = take_all(schedule)
    assert (again.item, again.hosts, again.attempt) == (0, (0,), 1)
    schedule.ended(0, CallEnd.RETURNED)
    assert [a.item for a in take_all(schedule)] == [2]


def test_a_lent_host_on_which_nothing_could_begin_is_not_replaced():
    """The next would be no better."""
    schedule = CallSchedule(range(9), [HostSlots(1, is_lent=True)], max_parallel=1)
    for item in range(2):
        assert [a.item for a in take_all(schedule)] == [item]
        assert not schedule.ended(item, CallEnd.UNPLACED)
    assert schedule.take_lost() is None
    assert schedule.is_stuck


def test_calls_whose_host_cannot_be_replaced_are_given_up():
    """Nothing is waited for any more."""
    schedule = CallSchedule(range(2), [HostSlots(1, is_lent=True)], max_parallel=1)
    take_all(schedule)
    schedule.ended(0, CallEnd.LOST, gone={0})
    assert schedule.take_lost() == 0
    schedule.replaced(0, found=False)
    assert schedule.is_stuck
    assert schedule.drop_waiting() == [1]


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 50))
def test_hosts_take_as_many_calls_as_are_wanted_in_all(hosts, hosts_per_call, most):
    """And not one more than that needs."""
    each = spread(hosts, hosts_per_call, most)
    assert each * hosts >= most * hosts_per_call
    assert (each - 1) * hosts < most * hosts_per_call


# ── names of calls ────────────────────────────────────────────────────────────


def make(factor, code="x * factor"):
    space = {"factor": factor}
    exec(f"def make(factor):\n def f(x, y=1): return {code}\n return f", space)
    return space["make"](factor)


def test_a_function_is_known_by_its_code_and_what_it_holds():
    """Not by where it stands."""
    name = function_digest(make(2))
    assert name == function_digest(make(2))
    assert name != function_digest(make(3))
    assert name != function_digest(make(2, "x + factor"))
    assert name != function_digest(make(2), 4)
    assert function_digest(functools.partial(make(2), 1)) != function_digest(
        functools.partial(make(2), 2)
    )


def test_a_call_is_known_by_its_arguments():
    """Whatever their order, and whoever else holds them."""
    text = "".join(["a", "b"])
    shared, apart = {"p": text, "q": text}, {"q": "".join(["a", "b"]), "p": "ab"}
    assert call_digest("f", (), shared) == call_digest("f", (), apart)
    names = [{"x": 1}, {"x": 1.0}, {"x": "1"}, {"x": True}, {"x": [1]}, {"x": (1,)}, {"y": 1}, {}]
    assert len({call_digest("f", (), kwargs) for kwargs in names}) == len(names)
    assert call_digest("f", (), {"s": {"b", "a", "c"}}) == call_digest(
        "f", (), {"s": {"c", "a", "b"}}
    )


# ── checkpoints ───────────────────────────────────────────────────────────────

RESULT = LaunchResult((1, "two"), (Member(0, "localhost", 0, 2),))


def test_a_checkpoint_gives_back_what_it_was_given(tmp_path):
    """From the file, to another process as well."""
    Checkpoint(tmp_path / "a" / "b").store("0" * 64, RESULT)
    assert Checkpoint(tmp_path / "a" / "b").load("0" * 64) == RESULT
    assert Checkpoint(tmp_path / "a" / "b").load("1" * 64) is None


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: b"", lambda d: d[:20] + b"x" + d[21:]]
)
def test_a_file_that_is_not_whole_is_no_result(tmp_path, damage):
    """It was written by something else, or cut."""
    checkpoint = Checkpoint(tmp_path)
    checkpoint.store("0" * 64, RESULT)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert checkpoint.load("0" * 64) is None


def test_a_checkpoint_leaves_nothing_half_written(tmp_path):
    """What cannot be kept is said once, and leaves no file."""
    Checkpoint(tmp_path).store("0" * 64, LaunchResult((threading.Lock(),), ()))
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_needs_a_directory(tmp_path):
    """Before anything is started."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="checkpoint="):
        Checkpoint(tmp_path / "file")
