"""Launches on hosts that a scheduler lends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import phalanx
from phalanx._schedulers.scheduler import BUILT_IN
from tests.conftest import phalanx_processes, wait_until
from tests.process.terminal import Terminal


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
    own = given.pop("scheduler_options", {})
    return phalanx.Launcher(scheduler_options={"place": str(place), **own}, **given)


def log(place):
    return (place / "log").read_text().splitlines() if (place / "log").exists() else []


def verb(*words):
    """What a command of ours prints."""
    command = [sys.executable, "-m", "phalanx", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def where():
    return os.environ["PIPE_HOST"], int(os.environ["RANK"])


def test_a_function_runs_on_lent_hosts(place):
    """And they are given back."""
    result = launcher(place, num_hosts=2, workers_per_host=2).call(where)
    assert list(result) == [("n1", 0), ("n1", 1), ("n2", 2), ("n2", 3)]
    assert log(place) == ["lend 2 where", "give back"]


def test_the_schedulers_tasks_are_the_workers(place):
    """Where no number is given."""
    lent = launcher(place, workers_per_host="auto", scheduler_options={"tasks": 2})
    assert len(lent.run(where)) == 2


def test_a_number_that_depends_on_the_host_is_asked_there(place):
    """Once the hosts are there."""
    lent = launcher(place, workers_per_host="cpu")
    assert len(lent.run(where)) == len(os.sched_getaffinity(0))


def test_an_exception_comes_home_and_the_hosts_go_back(place):
    """With rank and host."""

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        launcher(place).run(fail)
    assert "rank 0 on n1" in "".join(caught.value.__notes__)
    assert log(place)[-1] == "give back"


def test_a_with_has_one_lease_for_all_runs(place):
    """Its agents stay there as well."""
    with launcher(place) as lent:
        first, second = lent.run(os.getppid), lent.run(os.getppid)
        assert log(place) == ["lend 1 getppid"]
    assert list(first) == list(second)
    assert log(place) == ["lend 1 getppid", "give back"]


def test_a_lease_that_has_ended_is_replaced_within_a_with(place):
    """The next run asks for hosts again."""
    with launcher(place) as lent:
        lent.run(where)
        (place / "taken").touch()
        with pytest.raises(phalanx.SchedulerError, match="TimeLimit"):
            lent.run(where)
        (place / "taken").unlink()
        assert list(lent.run(where)) == [("n1", 0)]
    assert log(place).count("give back") == log(place).count("lend 1 where")


def test_runs_at_once_share_the_hosts_of_a_with(place):
    """The last gives them back, though the with was left before."""
    (place / "granted").unlink()
    with launcher(place) as lent:
        apps = [lent.start(where), lent.start(where)]
    assert "give back" not in log(place)
    (place / "granted").touch()
    assert [list(app.result(60)) for app in apps] == [[("n1", 0)]] * 2
    assert log(place) == ["lend 1 where", "give back"]


def test_start_returns_while_the_hosts_are_queued(place):
    """The status says why it waits."""
    (place / "granted").unlink()
    app = launcher(place, num_hosts=2).start(where)
    message = "waiting for 2 hosts from pipe: job 1: PENDING (Resources)"
    wait_until(lambda: app.status().message == message)
    assert app.status().state is phalanx.AppState.PENDING
    assert app.log_files == {}
    assert app.stacks() == ()
    (place / "granted").touch()
    assert len(app.result(60)) == 2
    assert app.status().state is phalanx.AppState.SUCCEEDED
    assert len(app.log_files) == 2


def test_an_app_that_waits_for_hosts_is_awaited(place):
    """In an asyncio program."""

    async def main():
        return await launcher(place).start(where)

    assert list(asyncio.run(main())) == [("n1", 0)]


def test_cancelling_gives_queued_hosts_back(place):
    """Nothing was started."""
    (place / "granted").unlink()
    app = launcher(place).start(where)
    app.cancel()
    assert app.wait(20).state is phalanx.AppState.CANCELLED
    with pytest.raises(phalanx.Cancelled):
        app.result()
    assert log(place) == ["lend 1 where", "give back"]


def test_an_app_that_waits_for_hosts_is_listed_and_cancelled_from_outside(place):
    """By the commands that every launch has."""
    (place / "granted").unlink()
    app = launcher(place, num_hosts=2).start(where)
    message = "waiting for 2 hosts from pipe: job 1: PENDING (Resources)"
    wait_until(lambda: message in verb("status", app.id))
    assert "PENDING" in verb("list")
    verb("cancel", app.id)
    assert app.wait(20).state is phalanx.AppState.CANCELLED
    assert "CANCELLED" in verb("status", app.id)
    assert log(place)[-1] == "give back"


def test_an_app_that_had_to_wait_is_recorded_as_any_other(place):
    """With its hosts and logs, once they are there."""
    app = launcher(place, num_hosts=2).start(lambda: print("hi"))
    app.result(60)
    assert verb("status", app.id).count("n1") >= 1
    assert "hi" in verb("log", app.id)


def test_cancelling_ends_logins_that_ask_a_host(place):
    """Which is asked how many workers it takes, and does not answer."""
    (place / "slow-n1").touch()
    app = launcher(place, workers_per_host="cpu").start(where)
    wait_until((place / "asked-n1").exists)
    app.cancel()
    assert app.wait(20).state is phalanx.AppState.CANCELLED
    assert log(place)[-1] == "give back"


def test_queue_timeout_ends_with_the_queues_reason(place):
    """And the request is withdrawn."""
    (place / "granted").unlink()
    with pytest.raises(phalanx.QueueTimeout, match=r"job 1: PENDING \(Resources\)") as caught:
        launcher(place, queue_timeout=0.2).run(where)
    assert (caught.value.timeout, caught.value.reason) == (0.2, "Resources")
    assert log(place)[-1] == "give back"


def test_the_time_to_start_in_begins_when_the_hosts_are_there(place):
    """However long they were queued: here as long again."""
    (place / "granted").unlink()
    (place / "slow-n1").touch()
    app = launcher(place, start_timeout=0.5).start(where)
    wait_until(lambda: "PENDING (Resources)" in app.status().message)
    time.sleep(0.6)  # what is tested is that nothing happens
    assert app.status().state is phalanx.AppState.PENDING
    granted = time.monotonic()
    (place / "granted").touch()
    with pytest.raises((phalanx.StartTimeout, phalanx.StartFailed), match=r" 0\.5 s"):
        app.result(60)
    assert time.monotonic() - granted >= 0.5


def test_a_refusal_is_told_in_the_schedulers_words(place):
    """Before anything waits."""
    with pytest.raises(phalanx.SchedulerError, match="no such partition"):
        launcher(place, scheduler_options={"refuse": "no such partition"}).run(where)


def test_hosts_that_are_taken_away_are_told(place):
    """Beside the loss itself."""

    def work(place):
        print("running", flush=True)
        Path(place, "taken").touch()
        os.kill(int(Path("/proc/self/stat").read_text().split()[3]), signal.SIGKILL)
        threading.Event().wait(60)

    with pytest.raises(phalanx.PhalanxError) as caught:
        launcher(place).run(work, {"place": str(place)})
    assert "taken away: pipe: job 1: TimeLimit" in "".join(caught.value.__notes__)


def test_a_lost_host_is_replaced(place):
    """The round after it has another one."""

    def work(place):
        host = os.environ["PIPE_HOST"]
        if host == "n1":
            Path(place, "down-n1").touch()
            agent = int(Path(f"/proc/{os.getppid()}/stat").read_text().split()[3])
            os.kill(agent, signal.SIGKILL)
            threading.Event().wait(60)
        return host

    lent = launcher(place, num_hosts=2, max_restarts=2, host_timeout=5.0)
    assert sorted(lent.run(work, {"place": str(place)})) == ["n2", "n3"]
    assert log(place) == ["lend 2 work", "replace n1", "give back"]


def test_lent_hosts_are_checked(place):
    """As named ones are."""
    report = launcher(place, num_hosts=2).check()
    assert [host.hostname for host in report.hosts] == ["n1", "n2"]
    assert report.usable
    assert log(place) == ["lend 2 check", "give back"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hostnames": ["a"]}, "hostnames cannot be used with scheduler='pipe'"),
        ({"num_hosts": 0}, "num_hosts=0: must be a number of hosts"),
        ({"queue_timeout": 0}, "queue_timeout=0: must be a number of seconds"),
        ({"scheduler": "pip"}, "unknown scheduler 'pip'. Did you mean 'pipe'"),
        ({"scheduler": "local_cwd"}, "local_cwd does not lend hosts"),
        ({"scheduler_options": {"plac": 1}}, "pipe has no option 'plac'. Did you mean 'place'"),
        ({"scheduler": None}, "scheduler_options need a scheduler"),
        ({"start_method": "inline"}, "scheduler='pipe' cannot be used with start_method"),
        ({"num_hosts": 2, "workers_per_host": [1]}, "workers_per_host has 1 entries for 2"),
        ({"num_hosts": 2, "min_hosts": 3}, "min_hosts=3, but num_hosts is only 2"),
    ],
)
def test_mistakes_are_found_before_anything_is_asked(place, options, message):
    """Each is named."""
    with pytest.raises(phalanx.ConfigError, match=message):
        launcher(place, **options).run(where)
    assert log(place) == []


def test_warming_is_for_this_machine(place):
    """Lent hosts are warm in a with."""
    with pytest.raises(phalanx.ConfigError, match=r"with phalanx\.Launcher"):
        phalanx.warm("json", scheduler="pipe", scheduler_options={"place": str(place)})


@pytest.fixture
def command(place, tmp_path):
    """Start `phalanx launch` or `map` where the scheduler is a plugin's."""
    plugin = tmp_path / "plugin" / "pipe-1.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Name: pipe\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text(
        "[phalanx.schedulers]\npipe = tests.pipe_scheduler:create_scheduler\n"
    )
    (tmp_path / "job.py").write_text("def main(word: str = 'hi'):\n    return word\n")
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": f"{plugin.parent}:{root}"}

    def words(*arguments, verb="launch"):
        return [sys.executable, "-m", "phalanx", verb, "job.py:main", *arguments]

    def start(*arguments, **options):
        return subprocess.Popen(
            words(*arguments, **options),
            env=environ,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    start.at_terminal = lambda *arguments: Terminal(*words(*arguments), **environ)
    return start


def test_the_command_borrows_hosts(command, place):
    """As `phalanx run` names schedulers and their options."""
    options = ["-s", "pipe", "--num-hosts", "2", "--workers-per-host", "1", "-cfg"]
    process = command(*options, f"place={place},tasks=1", "--", "--word", "ho")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "rank 0: 'ho'\nrank 1: 'ho'\n"), errors
    assert log(place) == ["lend 2 main", "give back"]


def test_the_command_maps_over_borrowed_hosts(command, place, tmp_path):
    """All calls on the hosts of one lease."""
    (tmp_path / "words.jsonl").write_text('{"word": "a"}\n{"word": "b"}\n{"word": "c"}\n')
    options = ["-s", "pipe", "--num-hosts", "2", "--json", "-cfg", f"place={place},tasks=1"]
    process = command("words.jsonl", *options, verb="map")
    output, errors = process.communicate(timeout=60)
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["values"] for line in lines] == [["a"], ["b"], ["c"]], errors
    assert {host for line in lines for host in line["hosts"]} <= {"n1", "n2"}
    assert log(place) == ["lend 2 main", "give back"]


def test_the_queue_is_shown_on_a_terminal_and_goes_away(command, place):
    """With its state and reason, and for how long."""
    (place / "granted").unlink()
    terminal = command.at_terminal("-s", "pipe", "--num-hosts", "2", f"-cfg=place={place},tasks=1")
    terminal.wait_for("waiting for 2 hosts from pipe: job 1: PENDING (Resources) (1 s)", 60)
    (place / "granted").touch()
    assert terminal.finish() == 0
    assert not [line for line in terminal.lines if "PENDING" in line]
    assert "rank 1: 'hi'" in terminal.lines


def test_ctrl_c_gives_queued_hosts_back(command, place):
    """And says so; before that, what is waited for was said once."""
    (place / "granted").unlink()
    process = command("--scheduler=pipe", "--num-hosts", "2", f"-cfg=place={place}")
    said = process.stderr.readline()
    assert "waiting for 2 hosts from pipe: job 1: PENDING (Resources)" in said
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "nothing was started, and the hosts were given back" in errors
    assert log(place) == ["lend 2 main", "give back"]
    assert not phalanx_processes()
