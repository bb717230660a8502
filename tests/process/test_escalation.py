"""Restart the workers, replace the host, fail the app: one after the other."""

import os
import signal

import pytest

import phalanx
from phalanx import _cli as cli
from phalanx import events
from phalanx._schedulers.scheduler import BUILT_IN
from phalanx.specs import HostState


class FaultHistory(events.EventHandler):
    def __init__(self):
        self.events = []

    def record(self, event):
        self.events.append(event)

    def names(self, *wanted):
        events.flush()
        return [event.name for event in self.events if event.name in wanted]


@pytest.fixture
def chronicle():
    handler = FaultHistory()
    events.configure(handler)
    yield handler
    events.configure()


def fail_in_the_second_place():
    """Each agent of this machine is a host; the second of them is a bad one."""
    context = phalanx.context()
    if os.environ["BAD"] == "yes":
        os.kill(os.getpid(), signal.SIGKILL)
    return context.restart_count


HOSTS = ["localhost", "127.0.0.1", "localhost"]
BAD = {"127.0.0.1": {"BAD": "yes"}, "localhost": {"BAD": "no"}}


def test_a_spare_replaces_a_host_on_which_workers_fail_again_and_again(chronicle):
    """The first failure restarts the workers, the second excludes the host."""
    launcher = phalanx.Launcher(
        hostnames=HOSTS,
        workers_per_host=1,
        host_env_vars=BAD,
        max_hosts=2,
        max_restarts=5,
        host_failures=2,
    )
    app = launcher.start(fail_in_the_second_place)
    assert list(app.result(60)) == [2, 2]
    states = [(host.hostname, host.state) for host in app.status().hosts]
    assert ("127.0.0.1", HostState.EXCLUDED) in states
    steps = chronicle.names("restart", "exclude", "end")
    assert steps == ["restart", "restart", "exclude", "end"]


def test_without_another_host_the_app_fails(capsys):
    """And the error says which host was excluded, and why; so does `phalanx status`."""
    app = phalanx.Launcher(
        hostnames=HOSTS[:2],
        workers_per_host=1,
        host_env_vars=BAD,
        max_restarts=5,
        host_failures=1,
    ).start(fail_in_the_second_place)
    with pytest.raises(phalanx.WorkerFailed) as caught:
        app.result(60)
    notes = "\n".join(caught.value.__notes__)
    assert "127.0.0.1 was excluded after 1 failure there" in notes
    assert "Fewer than 2 hosts are left." in notes
    assert cli.main(["status", app.id]) == 0
    assert "excluded" in capsys.readouterr().out


def test_a_lease_gives_another_host_for_an_excluded_one(tmp_path, monkeypatch, chronicle):
    """It is asked once, and the app goes on with it."""
    monkeypatch.setitem(BUILT_IN, "pipe", "tests.pipe_scheduler")
    place = tmp_path / "pipe"
    place.mkdir()
    (place / "granted").touch()

    def work():
        if os.environ["PIPE_HOST"] == "n2":
            os.kill(os.getpid(), signal.SIGKILL)
        return os.environ["PIPE_HOST"]

    launcher = phalanx.Launcher(
        scheduler="pipe",
        scheduler_options={"place": str(place)},
        num_hosts=2,
        workers_per_host=1,
        workspace=None,
        max_restarts=3,
        host_failures=1,
    )
    assert list(launcher.run(work)) == ["n1", "n3"]
    assert (place / "log").read_text().splitlines()[1:] == ["replace n2", "give back"]
    assert chronicle.names("exclude", "replace", "end") == ["exclude", "replace", "end"]
