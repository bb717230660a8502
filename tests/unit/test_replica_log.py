"""What replicas print, read from all of them at once."""

import threading

from phalanx._cli.replica_log import lines
from phalanx._schedulers.scheduler import LogLine


class Sources:
    """A runner whose replicas print what they are told to, when they may."""

    def __init__(self, *sources):
        self._sources = sources

    def lines(self, handle, role, replica, **options):
        return self._sources[replica]


def line(text, replica):
    return LogLine(text=text, role="role", replica=replica, stream=None, time=None)


def test_what_one_says_at_once_stays_together():
    """Though another speaks in between."""
    first, between, last = threading.Event(), threading.Event(), threading.Event()

    def report():
        yield line("rank 1 was not in the collective", 0)
        first.set()
        between.wait(30)
        yield line("its stack", 0)
        last.set()

    def other():
        first.wait(30)
        yield line("other", 1)
        between.set()

    found = lines(Sources(report(), other()), "app", [("role", 0), ("role", 1)], follow=True)
    texts = [next(found).text]
    assert last.wait(30)
    texts += [one.text for one in found]
    assert texts == ["rank 1 was not in the collective", "its stack", "other"]


def test_nobody_waits_for_one_that_pauses():
    """The end of each is found, whoever spoke last."""
    go = threading.Event()

    def one():
        yield line("a", 0)
        go.wait(30)
        yield line("b", 0)

    def two():
        yield line("c", 1)
        yield line("d", 1)

    found = lines(Sources(one(), two()), "app", [("role", 0), ("role", 1)], follow=True)
    assert sorted(next(found).text for _ in range(3)) == ["a", "c", "d"]
    go.set()
    assert [last.text for last in found] == ["b"]
