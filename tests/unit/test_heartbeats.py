"""Heartbeats: what is in the file, when a worker has hung, and how ranks get on."""

import struct

import pytest

from phalanx._core import heartbeats
from phalanx._core.heartbeats import KEPT, SIZE, HangWatch, HeartbeatPage, read
from phalanx._specs import RankState, StepStatus, WorkerStatus


def page(beats=0, deadline=0.0, after=0.0):
    return HeartbeatPage(beats, 0, deadline, after, ())


def numbers(*values):
    return struct.pack(f"{SIZE // 8}d", *values, *[0.0] * (SIZE // 8 - len(values)))


def test_a_file_is_read():
    """The first step has no beginning; the others' times are kept, as many as there is room for."""
    assert read(numbers()) == page()
    found = read(numbers(7, 3, 12.5, 10, 0.5, 0.25))
    assert found == HeartbeatPage(7, 3, 12.5, 10.0, (0.5, 0.25))
    assert found.step_seconds == 0.375
    full = read(numbers(1000, 1000, 0, 0, *[0.1] * KEPT))
    assert len(full.times) == KEPT


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * (SIZE - 1),
        b"\xff" * SIZE,
        numbers() + b"\0",
        numbers(-1),
        numbers(float("nan")),
        numbers(0, float("inf")),
    ],
)
def test_nonsense_is_nothing(data):
    """The file is the user's process's: whatever is in it, nobody fails of it."""
    assert read(data) is None


def test_one_that_never_beats_is_not_watched():
    """And none is without a timeout."""
    watch = HangWatch(10.0)
    assert not any(watch.look(page(), 0.0, 5.0) for _ in range(10))
    watch = HangWatch(0.0)
    assert not any(watch.look(page(beats=3), 0.0, 5.0) for _ in range(10))


def test_one_that_stops_beating_has_hung():
    """The time begins with the last beat that was seen."""
    watch = HangWatch(10.0)
    assert not watch.look(page(beats=1), 0.0, 5.0)
    assert not watch.look(page(beats=2), 0.0, 50.0)
    assert not watch.look(page(beats=2), 0.0, 9.0)
    expected = "has not called phalanx.heartbeat() for 10 s"
    assert watch.look(page(beats=2), 0.0, 1.0) == expected
    assert watch.look(page(beats=2), 0.0, 1.0) == expected
    assert watch.silent == 11.0
    assert not watch.look(page(beats=3), 0.0, 1.0)


def test_a_block_that_takes_too_long_has_hung():
    """Whether or not beats are watched; another timer has a time of its own."""
    watch = HangWatch(0.0)
    assert not watch.look(page(deadline=110.0, after=10.0), 109.0, 1.0)
    told = watch.look(page(deadline=110.0, after=10.0), 110.0, 1.0)
    assert told == "has been in a block of phalanx.expires(after=10) for more than 10 s"
    assert not watch.look(page(deadline=120.0, after=10.0), 111.0, 1.0)
    assert not watch.look(page(), 130.0, 1.0)


def test_time_in_which_the_host_slept_does_not_count():
    """Neither for beats nor for timers."""
    watch = HangWatch(10.0)
    timed = page(beats=1, deadline=110.0, after=10.0)
    assert not watch.look(timed, 101.0, 1.0)
    assert not watch.look(timed, 202.0, 1.0, slept=100.0)
    assert not watch.look(timed, 208.0, 6.0)
    assert "expires" in watch.look(timed, 211.0, 1.0)


def test_the_median_is_in_the_middle():
    """Of an odd number the one, of an even number between the two."""
    assert heartbeats.median([3.0]) == 3.0
    assert heartbeats.median([3.0, 1.0, 2.0]) == 2.0
    assert heartbeats.median([4.0, 1.0, 2.0, 3.0]) == 2.5


def worker(rank, steps, seconds):
    state = RankState.RUNNING
    return WorkerStatus(rank, f"box{rank}", 0, state, steps=steps, step_seconds=seconds)


def test_the_slowest_rank_is_named_with_how_much_slower_it_is():
    """Ranks that do not count their steps are not among them."""
    assert StepStatus.of([]) is None
    assert StepStatus.of([worker(0, 1, None)]) is None
    ranks = [worker(0, 12, 1.0), worker(1, 10, 1.5), worker(2, 12, 1.0), worker(3, 0, None)]
    steps = StepStatus.of(ranks)
    assert steps == StepStatus(10, 1.0, 1, "box1", 1.5)
    assert steps.excess == 0.5
    assert steps.describe() == "10 steps, 1 s each; slowest: rank 1 on box1, 1.5 s (+50%)"
    assert StepStatus.of(ranks[:1]).describe() == "12 steps, 1 s each"
