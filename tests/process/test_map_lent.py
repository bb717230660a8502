"""Many calls on hosts that a scheduler lends."""

import os
import time

import pytest

import phalanx
from phalanx._schedulers.scheduler import BUILT_IN


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The directory of a scheduler that lends hosts at once, and is known as `pipe`."""
    monkeypatch.setitem(BUILT_IN, "pipe", "tests.pipe_scheduler")
    found = tmp_path / "pipe"
    found.mkdir()
    (found / "granted").touch()
    return found


def launcher(place, **options):
    given = {"scheduler": "pipe", "workers_per_host": 1, "workspace": None, **options}
    return phalanx.Launcher(scheduler_options={"place": str(place)}, **given)


def log(place):
    return (place / "log").read_text().splitlines()


def where(x):
    return os.environ["PIPE_HOST"]


def items(count):
    return [{"x": x} for x in range(count)]


def test_calls_are_made_on_lent_hosts(place):
    """One lease for all of them, which is given back."""

    def wait(x):
        while len(os.listdir(place.parent / "seen")) < 2:
            (place.parent / "seen" / os.environ["PIPE_HOST"]).touch()
            time.sleep(0.01)
        return os.environ["PIPE_HOST"]

    (place.parent / "seen").mkdir()
    results = list(launcher(place, num_hosts=2).map(wait, items(4)))
    assert {r.rank(0) for r in results} == {"n1", "n2"}
    assert log(place) == ["lend 2 wait", "give back"]


def test_a_call_may_have_several_lent_hosts(place):
    """Each its own."""
    (result,) = launcher(place, num_hosts=2).map(where, items(1), hosts_per_call=2)
    assert list(result) == ["n1", "n2"]


def test_a_lent_host_that_cannot_be_used_is_not_used(place):
    """Its calls are made on the other."""
    (place / "down-n1").touch()
    results = list(launcher(place, num_hosts=2).map(where, items(4), retries=1))
    assert [r.rank(0) for r in results] == ["n2"] * 4


def test_no_hosts_is_one_error(place):
    """Not one for each item."""
    (place / "taken").touch()
    with pytest.raises(phalanx.SchedulerError, match="TimeLimit"):
        list(launcher(place, num_hosts=2).map(where, items(4)))


def test_a_map_that_waits_for_hosts_can_be_left(place):
    """The request is withdrawn."""
    (place / "granted").unlink()
    with launcher(place).map(where, items(2)):
        pass
    assert log(place) == ["lend 1 where", "give back"]


def test_a_warm_launcher_borrows_once(place):
    """For a map and a run."""
    with launcher(place) as lent:
        list(lent.map(where, items(2)))
        lent.run(where, {"x": 0})
    assert log(place) == ["lend 1 where", "give back"]
