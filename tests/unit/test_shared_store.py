"""What hosts tell each other through a store that is the same in every round, as torch's static is."""

from datetime import timedelta

import pytest

from phalanx._elastic.shared_store import SharedStore
from phalanx.rendezvous import RendezvousTimeoutError


class Store:
    """A server's, without one; it waits for nobody."""

    timeout = timedelta(seconds=-1)

    def __init__(self):
        self.keys = {}

    def set(self, key, value):
        self.keys[key] = value

    def get(self, key):
        return self.keys[key]

    def check(self, keys):
        return all(key in self.keys for key in keys)


@pytest.fixture
def hosts():
    """Two that have met."""
    store = Store()
    store.set("phalanx/member/1", '[1, "b", 5001]')
    first, second = (SharedStore(store, rank, 2, is_kept=True) for rank in (0, 1))
    assert first.exchange(["a", 5000], lambda: False) == [["a", 5000], ["b", 5001]]
    return store, first, second


def test_a_host_that_comes_again_waits_for_those_that_do_not(hosts):
    """What they said in the round before does not count; they see that it waits."""
    store, first, second = hosts
    assert not second.is_behind()
    again = SharedStore(store, 0, 2, is_kept=True)
    assert again.exchange(["a", 6000], lambda: True) is None
    assert second.is_behind()
    assert not again.is_behind()
    with pytest.raises(RendezvousTimeoutError, match=r"after -1 s: b \(host 1\) did not come"):
        SharedStore(store, 0, 2, is_kept=True).exchange(["a", 7000], lambda: False)


def test_one_that_has_missed_rounds_comes_to_the_latest(hosts):
    """It may be a new process, or have been slow."""
    store, _, _ = hosts
    for port in (6000, 7000):
        SharedStore(store, 0, 2, is_kept=True).exchange(["a", port], lambda: True)
    store.timeout = timedelta(seconds=60)
    late = SharedStore(store, 1, 2, is_kept=True)
    assert late.exchange(["b", 8000], lambda: False) == [["a", 7000], ["b", 8000]]


def test_done_is_said_of_a_round(hosts):
    """Not of the one before."""
    store, first, second = hosts
    first.tell_done()
    second.tell_done()
    assert first.all_done() and second.all_done()
    again = SharedStore(store, 0, 2, is_kept=True)
    again.exchange(["a", 6000], lambda: True)
    assert not again.all_done()
