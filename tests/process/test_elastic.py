"""Launches that go on, on this machine: three agents for one name, killed with real signals."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

import phalanx
from phalanx._launcher.placement import PlacedAgent
from phalanx._system.processes import children
from tests.conftest import is_alive, wait_until

HERE = ["localhost"] * 3


def agents():
    """The agents of this process's launches that run."""
    found = []
    for pid in children(os.getpid()):
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b" agent" in title and is_alive(pid):
            found.append(pid)
    return found


def wait_for_world(size):
    """Work until the group has this size; gives the context."""
    context = phalanx.context()
    while context.world_size != size:
        time.sleep(0.02)
    return context.world_size, context.restart_count


def test_a_killed_agent_is_replaced_without_a_restart():
    """The others go on at once; a new one joins."""

    def work(mark):
        context = phalanx.context()
        if context.round < 3:
            Path(mark).touch()
            time.sleep(600)
        return context.round, context.restart_count, context.world_size

    mark = Path("running").absolute()
    app = phalanx.Launcher(hostnames=HERE, workers_per_host=1, min_hosts=2).start(
        work, {"mark": str(mark)}
    )
    wait_until(mark.exists)
    os.kill(wait_until(lambda: len(agents()) == 3 and agents())[1], signal.SIGKILL)
    assert list(app.result(60)) == [(3, 0, 3)] * 3
    assert app.status().num_restarts == 0


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace_on_a_restart_too():
    """The next round begins when it is gone."""

    def work():
        context = phalanx.context()
        if context.restart_count == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if context.rank == 0:
                time.sleep(600)
            time.sleep(0.5)
            raise ValueError("first")
        return os.getpid()

    launcher = phalanx.Launcher(workers_per_host=2, max_restarts=1, stop_grace=0.5)
    assert len(set(launcher.run(work))) == 2


def test_grandchildren_of_a_round_do_not_see_the_next():
    """Daemons of the old round included."""

    def work(place):
        import subprocess

        context = phalanx.context()
        path = Path(place)
        if context.restart_count == 0:
            daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
            path.write_text(str(daemon.pid))
            raise ValueError("first")
        return is_alive(int(path.read_text()))

    place = str(Path("daemon").absolute())
    result = phalanx.launch(work, {"place": place}, workers_per_host=1, max_restarts=1)
    assert list(result) == [False]


def test_logs_of_all_rounds_are_kept():
    """In one file for each host and local rank, in order."""

    def work():
        context = phalanx.context()
        print("round", context.round)
        if context.restart_count < 2:
            raise ValueError("again")

    app = phalanx.Launcher(max_restarts=2, workers_per_host=1).start(work)
    app.result(60)
    lines = [line.text for line in app.logs([0])]
    assert [line for line in lines if line.startswith("round")] == ["round 1", "round 2", "round 3"]


@pytest.mark.parametrize("moment", ["running", "backoff", "waiting"])
def test_a_cancel_ends_it_in_every_phase(moment):
    """Quickly; nothing is restarted any more."""

    def work():
        if phalanx.context().restart_count < 2:
            raise ValueError("again")
        time.sleep(600)

    options = {"max_restarts": 5, "restart_backoff": 30.0 if moment == "backoff" else 0.0}
    count = 2 if moment == "waiting" else 1
    app = phalanx.Launcher(hostnames=HERE[:count], workers_per_host=1, **options).start(work)
    if moment == "backoff":
        wait_until(lambda: app.status().num_restarts >= 1)
        time.sleep(0.5)
    else:
        wait_until(lambda: app.status().num_restarts == 2)
    if moment == "waiting":
        os.kill(wait_until(lambda: len(agents()) == 2 and agents())[0], signal.SIGTERM)
        time.sleep(0.3)
    app.cancel(0.5)
    assert app.wait(15).state.is_final


def test_a_host_that_is_added_at_once_takes_part():
    """Before the first round has begun, and after."""
    app = phalanx.Launcher(hostnames=HERE[:1], workers_per_host=1, max_hosts=3).start(
        wait_for_world, {"size": 3}
    )
    app.add_host("localhost")
    app.add_host("localhost", workers=1)
    assert list(app.result(60)) == [(3, 0)] * 3
    with pytest.raises(phalanx.ConfigError, match="has ended"):
        app.add_host("localhost")


def test_an_agent_that_comes_back_while_the_app_ends_ends_with_it(tmp_path, monkeypatch):
    """It was started before the end was known, and can be spoken to after."""
    came = tmp_path / "came"
    real = PlacedAgent.open

    async def open_late(index, start, child):
        agent = await real(index, start, child)
        if lost:
            lost.append(child.process.pid)
            came.touch()
            while not app._run._session._verdict.done():
                await asyncio.sleep(0.01)
            await asyncio.sleep(1.0)  # a busy machine: by now the others have been let go
        return agent

    def work():
        while not came.exists():
            time.sleep(0.02)

    lost = []
    monkeypatch.setattr(PlacedAgent, "open", open_late)
    app = phalanx.Launcher(hostnames=HERE[:2], workers_per_host=1, min_hosts=1).start(work)
    wait_until(lambda: app.status().state.value == "RUNNING")
    lost.append(agents()[1])
    os.kill(lost[0], signal.SIGKILL)
    app.result(60)
    assert len(lost) == 2
    assert not is_alive(lost[1])


def test_mistakes_in_the_bounds_are_told():
    """Before anything starts."""
    for options, said in (
        ({"min_hosts": 2}, "hostnames has only 1"),
        ({"min_hosts": 0}, "at least 1"),
        ({"min_hosts": 3, "max_hosts": 2}, "more than max_hosts"),
        ({"max_restarts": -1}, "0 or more"),
        ({"restart": "hosts"}, "Did you mean 'host'"),
        ({"restart": "host", "backend": "gloo"}, "cannot be used with backend"),
        ({"preempt_signal": "SIGKILL"}, "can be caught"),
    ):
        with pytest.raises(phalanx.ConfigError, match=said):
            phalanx.launch(print, **options)


def test_the_same_early_failure_stops_early():
    """And says how many restarts it spared."""

    def work():
        raise ValueError("as always")

    with pytest.raises(ValueError, match="as always") as caught:
        phalanx.launch(work, max_restarts=9, same_failures=3, restart_backoff=0.01)
    assert "3 times in a row" in "\n".join(caught.value.__notes__)


def test_a_restart_that_takes_too_long_says_what_it_was_restarted_for(tmp_path, monkeypatch):
    """The error is about slow starts; the reason that there was another is the worker's."""
    held = tmp_path / "held"
    (tmp_path / "slow_again.py").write_text(
        "import os, time\n"
        "def pause():\n"
        f"    while os.path.exists({str(held)!r}):\n"
        "        time.sleep(0.05)\n"
        "os.register_at_fork(before=pause)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def work():
        held.touch()
        raise ValueError("bad batch")

    options = {"max_restarts": 1, "preload": ["slow_again"], "start_timeout": 3.0}
    app = phalanx.Launcher(workers_per_host=1, backend=None, **options).start(work)
    with pytest.raises(phalanx.StartTimeout) as caught:
        app.result(60)
    (note,) = caught.value.__notes__
    assert "Earlier failures:\n  rank 0 on localhost raised ValueError: bad batch\n" in note
    assert 'raise ValueError("bad batch")' in note
    assert app.status().message.endswith("rank 0 on localhost raised ValueError: bad batch")


def test_context_outside_of_workers():
    """Rank 0 of 1."""
    context = phalanx.context()
    assert (context.rank, context.world_size, context.should_stop()) == (0, 1, False)


def test_record_writes_and_reraises(tmp_path, monkeypatch):
    """In torch's format; nothing without a file to write to."""
    import json

    @phalanx.record
    def main():
        raise KeyError("x")

    with pytest.raises(KeyError):
        main()
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "deep" / "error.json"))
    with pytest.raises(KeyError):
        main()
    said = json.loads((tmp_path / "deep" / "error.json").read_text())["message"]
    assert said["message"] == "KeyError: 'x'"
    assert "in main" in said["extraInfo"]["py_callstack"]
    assert int(said["extraInfo"]["timestamp"]) > 0
