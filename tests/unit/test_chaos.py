"""The pure part of `phalanx chaos`: the plan of faults, what they hit, and what came of them."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx._chaos.fault_history import FaultHistory, FaultRecord, Observation
from phalanx._chaos.faults import Kind, PlannedFault, Rate, parse_rate, plan
from phalanx._chaos.victims import Victim, choose, victims
from phalanx._schedulers.scheduler import BUILT_IN
from phalanx._specs import AppState


def first(seed, rates, count=50):
    return list(itertools.islice(plan(seed, rates), count))


RATES = [Rate(Kind.KILL_WORKER, 30), Rate(Kind.PAUSE_WORKER, 60, 5), Rate(Kind.LOSE_HOST, 90)]


def test_a_seed_gives_the_same_faults():
    """Another one gives others."""
    assert first(1, RATES) == first(1, RATES)
    assert first(1, RATES) != first(2, RATES)


def test_leaving_a_kind_out_does_not_change_the_others():
    """Each has times of its own."""
    kept = [fault for fault in first(1, RATES, 200) if fault.kind is Kind.KILL_WORKER]
    assert first(1, RATES[:1], len(kept)) == kept


@given(seed=st.integers(0, 1 << 32))
def test_faults_come_in_order_and_as_often_as_they_should(seed):
    """On average; a thousand of them are within a fifth of it."""
    times = [fault.at for fault in first(seed, [Rate(Kind.KILL_WORKER, 10)], 1000)]
    assert times == sorted(times)
    assert 8 < times[-1] / 1000 < 12


@pytest.mark.parametrize(
    ("kind", "text", "rate"),
    [
        (Kind.KILL_WORKER, "30s", Rate(Kind.KILL_WORKER, 30)),
        (Kind.PAUSE_WORKER, "1m", Rate(Kind.PAUSE_WORKER, 60, 5)),
        (Kind.CUT, "2m:3s", Rate(Kind.CUT, 120, 3)),
    ],
)
def test_rates_are_read(kind, text, rate):
    """How often, and for how long."""
    assert parse_rate(kind, text) == rate


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (Kind.KILL_WORKER, "30s:5s", "over at once"),
        (Kind.KILL_WORKER, "often", "invalid duration"),
        (Kind.KILL_WORKER, "0.1", "not more often"),
        (Kind.CUT, "1m:0", "longer than 0 s"),
    ],
)
def test_mistakes_are_named(kind, text, message):
    """In words that say what to write."""
    with pytest.raises(ValueError, match=message):
        parse_rate(kind, text)


def test_the_page_names_every_scheduler_whose_apps_are_refused():
    """Only launches are broken, and what `local_cwd` runs here."""
    page = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text()
    assert [name for name in BUILT_IN if f"`{name}`" not in page] == []


STATUS = {
    "workers": [
        {"rank": 0, "hostname": "a", "pid": 10, "state": "running"},
        {"rank": 1, "hostname": "a", "pid": 11, "state": "stopping"},
        {"rank": 2, "hostname": "b", "pid": 10, "state": "running"},
    ],
    "hosts": [
        {"hostname": "a", "pid": 1, "state": "active"},
        {"hostname": "b", "pid": 2, "state": "active"},
        {"hostname": "c", "pid": 3, "state": "spare"},
        {"hostname": "d", "pid": None, "state": "lost"},
    ],
}


def test_only_what_runs_is_hit():
    """Workers that run, agents of hosts that take part, and only where it may be done."""
    assert victims(Kind.KILL_WORKER, STATUS, "abcd") == [Victim("a", 10, 0), Victim("b", 10, 2)]
    assert victims(Kind.KILL_AGENT, STATUS, "abcd") == [Victim("a", 1), Victim("b", 2)]
    assert victims(Kind.CUT, STATUS, "b") == [Victim("b", 2)]


def test_which_one_is_hit_is_a_matter_of_the_plan():
    """The first, the last, or none."""
    found = victims(Kind.KILL_AGENT, STATUS, "ab")
    assert choose(PlannedFault(1, Kind.KILL_AGENT, 0, 0.0), found).hostname == "a"
    assert choose(PlannedFault(1, Kind.KILL_AGENT, 0, 0.999), found).hostname == "b"
    assert choose(PlannedFault(1, Kind.KILL_AGENT, 0, 0.5), []) is None


def seen(at, round_=1, running=True, state=AppState.RUNNING):
    return Observation(at, state, round_, round_ - 1, running)


def test_a_killed_worker_is_overcome_when_a_later_round_runs():
    """Not before: what the app says of the old one may be old."""
    chronicle = FaultHistory()
    chronicle.observe(seen(0))
    chronicle.add(FaultRecord(10, Kind.KILL_WORKER, round=1))
    assert chronicle.observe(seen(10.1)) == []
    assert chronicle.observe(seen(11, 2, running=False)) == []
    (fault,) = chronicle.observe(seen(12, 2))
    assert fault.recovery == 2
    assert chronicle.has_recovered


def test_what_lasts_is_overcome_when_it_is_mended_and_the_app_runs():
    """It may have caused nothing."""
    chronicle = FaultHistory()
    chronicle.add(FaultRecord(10, Kind.CUT, seconds=5, round=1))
    assert chronicle.observe(seen(12)) == []
    (fault,) = chronicle.observe(seen(15.5))
    assert fault.recovery == 5.5


def test_goodput_is_the_time_in_which_all_workers_ran():
    """From a fault on they do not, though the app has not noticed yet."""
    chronicle = FaultHistory()
    chronicle.observe(seen(0))
    chronicle.observe(seen(10))
    chronicle.add(FaultRecord(10, Kind.KILL_WORKER, round=1))
    chronicle.observe(seen(11))
    chronicle.observe(seen(15, 2))
    chronicle.observe(seen(20, 2))
    report = chronicle.report()
    assert report["goodput"] == 15 / 20
    assert report["restarts"] == 1
    assert report["faults"][0]["recovery_seconds"] == 5


@pytest.mark.parametrize(
    ("kind", "useful"),
    [(Kind.CUT, 7), (Kind.PAUSE_WORKER, 7), (Kind.FILL_DISK, 10), (Kind.SLOW_NETWORK, 10)],
)
def test_time_in_which_ranks_are_held_up_is_not_useful(kind, useful):
    """Though all workers are said to run; in a round without the host that is cut off they do."""
    chronicle = FaultHistory()
    chronicle.observe(seen(0))
    chronicle.add(FaultRecord(0, kind, seconds=9, round=1))
    for at, round_ in ((3, 2), (9, 2), (10, 2)):
        chronicle.observe(seen(at, round_))
    assert chronicle.useful == useful


def test_a_fault_that_was_not_made_is_not_waited_for():
    """It is in the report, with the reason."""
    chronicle = FaultHistory()
    chronicle.add(FaultRecord(1, Kind.CUT, problem="iptables needs root"))
    assert chronicle.has_recovered
    assert chronicle.report()["faults"][0]["problem"] == "iptables needs root"


def test_an_app_that_ends_well_has_overcome_everything():
    """One that fails has not."""
    for state, settled in ((AppState.SUCCEEDED, True), (AppState.FAILED, False)):
        chronicle = FaultHistory()
        chronicle.add(FaultRecord(1, Kind.KILL_WORKER, round=1))
        chronicle.observe(seen(2, running=False, state=state))
        assert chronicle.has_recovered is settled
