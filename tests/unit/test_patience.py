"""A scheduler that does not answer for a while ends no wait."""

import itertools
from types import SimpleNamespace

import pytest

from phalanx._runner.handles import Handle
from phalanx._runner.submitted_app import SubmittedApp
from phalanx._schedulers import patience
from phalanx._schedulers.patience import PATIENCE, Patience
from phalanx._specs import AppState, AppStatus
from phalanx.errors import SchedulerUnreachable


@pytest.fixture
def clock(monkeypatch):
    """Set it to a time."""
    monkeypatch.setattr(patience, "_heard", [])
    return lambda now: monkeypatch.setattr(patience.time, "monotonic", lambda: now)


def test_it_is_borne_for_a_while_and_raised_then(clock, caplog):
    """Each answer begins a while of its own."""
    one, error = Patience(), SchedulerUnreachable("no engine here")
    for began in (1000.0, 2000.0):
        for seconds in (0.0, 1.0, PATIENCE):
            clock(began + seconds)
            one.bear(error)
        one.answered()
    clock(3000.0)
    one.bear(error)
    clock(3001.0 + PATIENCE)
    with pytest.raises(SchedulerUnreachable, match="no engine here"):
        one.bear(error)
    said = "phalanx: no engine here; asking again for up to 60 s"
    assert caplog.messages == [said] * 3


def test_of_all_who_wait_one_says_so(clock, caplog):
    """In whatever words the scheduler is missing."""
    for number, now in zip(range(50), itertools.count(10.0, 0.5), strict=False):
        clock(now)
        Patience().bear(SchedulerUnreachable(f"refused {number}"))
    assert len(caplog.messages) == 1


def watched(*answers):
    """What is seen of an app whose scheduler answers so: by a state, or not at all."""
    left = iter(answers)

    def describe(app_id):
        if (state := next(left)) is None:
            raise SchedulerUnreachable("no engine here")
        return AppStatus(app_id, state)

    scheduler = SimpleNamespace(describe=describe, poll_interval=0.0)
    app = SubmittedApp(Handle("scheduler", "session", "app"), lambda *_: scheduler)
    return [status.state for status in app.watch(0.0)]


def test_who_watches_an_app_sees_it_as_it_was(clock):
    """So that limits of time are kept meanwhile; nobody waits who has never seen it."""
    clock(10.0)
    running, done = AppState.RUNNING, AppState.SUCCEEDED
    assert watched(running, None, None, done) == [running, running, running, done]
    with pytest.raises(SchedulerUnreachable, match="no engine here"):
        watched(None, running)
