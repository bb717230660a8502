"""Many calls on this machine: results, failures, checkpoints, interruptions."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx
from phalanx._cli import main as command
from tests.conftest import is_alive, wait_until
from tests.process.terminal import phalanx as phalanx_at_terminal


def square(x):
    return x * x


def items(count):
    return [{"x": x} for x in range(count)]


@pytest.fixture
def launcher():
    return phalanx.Launcher(workers_per_host=1)


def test_a_map_gives_the_result_of_every_item_in_order(launcher):
    """One `LaunchResult` each."""
    calls = launcher.map(square, items(7), max_parallel=3)
    assert repr(calls) == "<Calls of 7 items: iterate over it for their results>"
    results = list(calls)
    assert [r.values for r in results] == [(x * x,) for x in range(7)]
    assert [r.item_index for r in results] == list(range(7))
    assert [r.index("localhost", 0) for r in results] == [x * x for x in range(7)]


def test_a_call_has_its_own_workers_and_ranks(launcher):
    """Two of them, in a process each, that know of each other and of no other call."""

    def who(x):
        environ = os.environ
        return x, environ["RANK"], environ["WORLD_SIZE"], os.getpid()

    launcher.workers_per_host = 2
    results = list(launcher.map(who, items(3), max_parallel=2))
    assert [[v[:3] for v in r] for r in results] == [
        [(x, "0", "2"), (x, "1", "2")] for x in range(3)
    ]
    assert len({pid for r in results for *_, pid in r}) == 6


def test_results_come_as_calls_end_if_that_is_wanted(launcher, tmp_path):
    """The first item waits for the last."""

    def wait_for(x):
        if x == 2:
            (tmp_path / "last").touch()
        while not x and not (tmp_path / "last").exists():
            time.sleep(0.01)
        return x

    calls = launcher.map(wait_for, items(3), max_parallel=2, ordered=False)
    assert len(calls) == 3
    assert next(calls).item_index == 1
    assert sorted(r.item_index for r in calls) == [0, 2]


def test_failures_are_collected_and_the_others_go_on(launcher):
    """What each raised, with its traceback and log; what the others returned."""

    def fail(x):
        print("item", x)
        if x == 1:
            raise ValueError("one")
        if x == 3:
            os._exit(7)
        return x

    got = []
    with pytest.raises(phalanx.MapFailed, match=r"2 of 5 calls failed") as caught:
        got.extend(launcher.map(fail, items(5)))
    failed = caught.value
    assert [r.values for r in got] == [(0,), (2,), (4,)]
    assert {i: r.values for i, r in failed.results.items()} == {0: (0,), 2: (2,), 4: (4,)}
    assert list(failed.failures) == [1, 3]
    assert isinstance(failed.failures[1], ValueError)
    assert isinstance(failed.failures[3], phalanx.WorkerFailed)
    assert failed.failures[3].exit_code == 7
    notes = "".join(failed.failures[1].__notes__)
    assert 'raise ValueError("one")' in notes
    (log,) = re.findall(r"Full log: (.*)", notes)
    assert Path(log).read_text().startswith("item 1\n")
    assert "item 1: ValueError: one" in str(failed)
    assert failed.__cause__ is failed.failures[1]


def test_output_of_each_call_is_in_a_file_of_its_own(launcher, capfd):
    """Only of those that print; nothing is shown."""

    def say(x):
        if x:
            print("this is", x)

    list(launcher.map(say, items(3)))
    assert {p.name: p.read_text() for p in Path("logs").glob("*/*")} == {
        "1.log": "this is 1\n",
        "2.log": "this is 2\n",
    }
    assert "this is" not in capfd.readouterr().out


def test_a_result_comes_after_the_last_of_its_output(launcher):
    """More of both than a pipe takes."""

    def say(x):
        print("x" * 3_000_000)
        return bytes(5_000_000)

    for result in launcher.map(say, items(3)):
        (log,) = Path("logs").glob(f"*/{result.item_index}.log")
        assert log.stat().st_size == 3_000_001
        assert len(result.rank(0)) == 5_000_000


@pytest.mark.parametrize("is_elastic", [False, True], ids=["lane", "launch"])
def test_without_a_place_for_logs_the_calls_are_made(launcher, caplog, is_elastic):
    """One warning for all of them, and their values come home."""

    def speak(x):
        print("said")
        return x

    Path("logs").touch()
    launcher.max_restarts = int(is_elastic)
    assert [r.values for r in launcher.map(speak, items(3))] == [(0,), (1,), (2,)]
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "calls done" not in text] == [
        "phalanx: cannot write log files to logs (Not a directory); continuing without them."
    ]


def test_a_call_finds_nothing_of_the_one_before(launcher, tmp_path):
    """Its files are as good as new, whatever was done to them; its variables are its own."""

    def call(x):
        own = Path(os.environ["PHALANX_STOP_FILE"]).parent / "0"
        found = sorted(
            (path.name, path.stat().st_size, path.stat().st_nlink, path.stat().st_mode & 0o777)
            for path in own.iterdir()
        )
        others = [path.name for path in own.parent.iterdir() if path != own]
        names = ("RANK", "PHALANX_ROUND", "TORCHELASTIC_RUN_ID", "PHALANX_HEARTBEAT_FILE")
        given = [os.environ.get(name) for name in names]
        if x == 0:
            print("first")
            phalanx.heartbeat()
        elif x == 1:
            (own / "left").mkdir()
            (own / "left" / "file").write_text("mine")
            (own.parent / "right").touch()
        elif x == 2:
            os.link(own / "stderr", tmp_path / "linked")
            (own / "stdout").chmod(0o644)
        elif x == 3:
            (own / "stacks").unlink()
            (own / "stacks").symlink_to(tmp_path / "linked")
            os.environ["RANK"] = "17"
        elif x == 4:
            shutil.rmtree(own)
            own.symlink_to(tmp_path)
        return found, others, given, "x" * (100_000 if x == 5 else x)

    results = list(launcher.map(call, items(7), max_parallel=1))
    first = [(name, 0, 1, 0o600) for name in ("payload", "stacks", "stderr", "stdout")]
    runs = set()
    for x, result in enumerate(results):
        found, others, (rank, number, run, beats), value = result.rank(0)
        assert (found, others, rank) == (first, [], "0")
        assert len(value) == (100_000 if x == 5 else x)
        assert (run.endswith(f"-{number}"), beats.endswith("/0/heartbeat")) == (True, True)
        runs.add(run)
    assert len(runs) == len(results)
    assert {path.name for path in tmp_path.iterdir()} <= {"linked", "logs"}
    assert (tmp_path / "linked").read_text() == ""


def test_a_log_spec_is_kept_to(launcher, capfd):
    """As in any other launch."""
    launcher.log_spec = phalanx.DefaultLogSpec(log_dir=None, show=(0,))
    list(launcher.map(print, [{"sep": ""}, {"end": "shown\n"}]))
    assert "shown" in capfd.readouterr().out
    assert not Path("logs").exists()


def test_without_items_there_is_nothing_to_do(launcher):
    """And nothing is started."""
    assert list(launcher.map(square, [])) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_parallel": 0}, "max_parallel=0: must be a whole number, 1 or more"),
        ({"retries": -1}, "retries=-1: must be a whole number, 0 or more"),
        ({"hosts_per_call": 2}, "hosts_per_call=2, but there is only 1 host"),
        ({"hosts_per_call": True}, "hosts_per_call=True"),
        ({"checkpoint": "/proc/none"}, "checkpoint='/proc/none': cannot write there"),
    ],
)
def test_mistakes_are_named_before_anything_starts(launcher, options, message):
    """At once, not with the first result."""
    with pytest.raises(phalanx.ConfigError, match=re.escape(message)):
        launcher.map(square, items(2), **options)


def test_items_must_fit_the_function(launcher):
    """Each of them, with what to write instead."""
    with pytest.raises(phalanx.ConfigError, match=r"Write map\(func, \[\{'x': value\}"):
        launcher.map(square, [1, 2])
    with pytest.raises(TypeError, match=r"^item 1: square"):
        launcher.map(square, [{"x": 1}, {"y": 2}])
    with pytest.raises(phalanx.ConfigError, match="cannot be pickled"):
        launcher.map(square, [{"x": (i for i in ())}])


# ── checkpoints ───────────────────────────────────────────────────────────────


def test_what_is_done_is_not_done_again(launcher, tmp_path):
    """What failed is; also for another map with some of the items, in another order."""

    def note(x):
        with open(tmp_path / "calls", "a") as file:
            file.write(f"{x}\n")
        if x == 2 and not (tmp_path / "fixed").exists():
            raise ValueError("two")
        return x

    def calls():
        return sorted((tmp_path / "calls").read_text().split())

    with pytest.raises(phalanx.MapFailed):
        list(launcher.map(note, items(4), checkpoint="done"))
    assert calls() == ["0", "1", "2", "3"]
    (tmp_path / "fixed").touch()
    results = list(launcher.map(note, items(4), checkpoint="done"))
    assert [r.values for r in results] == [(x,) for x in range(4)]
    assert calls() == ["0", "1", "2", "2", "3"]
    (result,) = launcher.map(note, [{"x": 3}], checkpoint="done")
    assert (result.values, result.item_index) == ((3,), 0)
    assert calls() == ["0", "1", "2", "2", "3"]


def test_a_map_that_was_killed_goes_on_where_it_was(script):
    """Two processes after each other; the second makes only the calls that are missing."""
    code = """
        import os, signal, sys, phalanx

        def note(x):
            with open("calls", "a") as file:
                file.write(f"{x}\\n")
            if x == 2 and sys.argv[1:] == ["killed"]:
                os.kill(int(os.environ["LAUNCHER"]), signal.SIGKILL)
            return x * 10

        if __name__ == "__main__":
            os.environ["LAUNCHER"] = str(os.getpid())
            launcher = phalanx.Launcher(workers_per_host=1)
            calls = launcher.map(note, [{"x": x} for x in range(4)], max_parallel=1,
                                 checkpoint="done")
            print([r.values[0] for r in calls])
    """
    assert script(code, "killed").returncode == -signal.SIGKILL
    done = script(code)
    assert done.stdout == "[0, 10, 20, 30]\n", done.stderr
    assert sorted(Path("calls").read_text().split()) == ["0", "1", "2", "2", "3"]


# ── ends ──────────────────────────────────────────────────────────────────────


def hang(x):
    Path(f"pid-{x}").write_text(str(os.getpid()))
    while x:
        time.sleep(0.05)
    return x


def pids(directory, count):
    """The processes of calls that hang, once there are so many."""
    found = wait_until(
        lambda: (
            (
                files := [p for p in directory.glob("pid-*") if p.read_text()],
                len(files) >= count,
            )[1]
            and files
        )
    )
    return [int(p.read_text()) for p in found]


def test_leaving_a_map_stops_what_runs(launcher, tmp_path):
    """By `with`, by `close`, or by forgetting it."""
    with launcher.map(hang, items(4), max_parallel=2) as calls:
        assert next(calls).values == (0,)
        running = pids(tmp_path, 2)
    assert not any(map(is_alive, running))
    assert list(calls) == []
    calls = launcher.map(hang, items(2), max_parallel=2)
    del calls  # `nothing_left_behind` looks


def test_a_map_is_listed_and_can_be_cancelled_from_outside(launcher, tmp_path, monkeypatch, capfd):
    """By its id, as any launch."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def wait(x):
        (tmp_path / f"here-{x}").touch()
        while x:
            time.sleep(0.05)

    calls = launcher.map(wait, items(2), max_parallel=2)
    next(calls)
    wait_until((tmp_path / "here-1").exists)
    assert command(["list", "--running"]) == 0
    row = capfd.readouterr().out.splitlines()[-1].split()
    assert row[1:5] == ["launch", "RUNNING", "2", "calls"]
    assert command(["cancel", row[0]]) == 0
    assert list(calls) == []
    assert command(["status", row[0]]) == 0
    assert "CANCELLED" in capfd.readouterr().out


def test_interrupting_a_map_leaves_nothing(script, tmp_path):
    """Ctrl-C while results are waited for."""
    process = script.start(
        """
        import os, time, phalanx
        from pathlib import Path

        def hang(x):
            Path(f"pid-{x}").write_text(str(os.getpid()))
            while True:
                time.sleep(0.05)

        if __name__ == "__main__":
            launcher = phalanx.Launcher(workers_per_host=1)
            list(launcher.map(hang, [{"x": x} for x in range(9)], max_parallel=2))
        """
    )
    running = pids(tmp_path, 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert errors.strip().splitlines()[-1] == "phalanx: interrupted; nothing is left running"
    assert not any(map(is_alive, running))


def test_a_program_that_ends_takes_its_calls_with_it(script, tmp_path):
    """Though it has not waited for them."""
    done = script(
        """
        import os, time, phalanx
        from pathlib import Path

        def hang(x):
            Path(f"pid-{x}").write_text(str(os.getpid()))
            while True:
                time.sleep(0.05)

        if __name__ == "__main__":
            calls = phalanx.Launcher(workers_per_host=1).map(hang, [{"x": 1}])
            while not Path("pid-1").exists():
                time.sleep(0.01)
        """
    )
    assert done.returncode == 0, done.stderr
    assert not any(map(is_alive, pids(tmp_path, 1)))


def test_a_call_whose_agent_was_killed_is_made_again(launcher, tmp_path):
    """As often as `retries` says; what a function raises is not."""

    def lose(x):
        with open(tmp_path / f"calls-{x}", "a") as file:
            file.write("x")
        if x == 0 and (tmp_path / "calls-0").stat().st_size == 1:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        if x == 1:
            raise ValueError("one")
        return x

    with pytest.raises(phalanx.MapFailed) as caught:
        list(launcher.map(lose, items(3), retries=1, max_parallel=2))
    assert list(caught.value.failures) == [1]
    assert [(tmp_path / f"calls-{x}").read_text() for x in range(3)] == ["xx", "x", "x"]
    (tmp_path / "calls-0").unlink()
    with pytest.raises(phalanx.MapFailed) as caught:
        list(launcher.map(lose, items(1)))
    assert isinstance(caught.value.failures[0], phalanx.AgentLost)


def test_a_warm_launcher_lends_its_agents_to_a_map(launcher):
    """And has them back afterwards."""

    def zygote(x):
        return os.getppid()

    with launcher:
        first = launcher.run(zygote, {"x": 0}).values
        (call,) = launcher.map(zygote, [{"x": 0}])
        assert call.values == first == launcher.run(zygote, {"x": 0}).values


# ── the command ───────────────────────────────────────────────────────────────


@pytest.fixture
def sweep(tmp_path):
    """A file with a function, items for it, and the command that makes the calls."""
    (tmp_path / "sweep.py").write_text(
        "def train(lr, steps=1):\n"
        "    if not lr:\n"
        "        raise ValueError('lr is 0')\n"
        "    print('training')\n"
        "    return {'loss': lr * steps}\n"
    )

    def run(items, *options, target="sweep.py:train"):
        command = [sys.executable, "-m", "phalanx", "map", target, "-", *options]
        return subprocess.run(command, input=items, capture_output=True, text=True, timeout=60)

    return run


def test_the_command_prints_results_as_json_lines(sweep):
    """In order, then the failures; what workers print is not among them."""
    done = sweep('{"lr": 1}\n\n{"lr": 0}\n{"lr": 3, "steps": 2}\n', "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[:2] == [
        {"item": 0, "values": [{"loss": 1}], "hosts": ["localhost"]},
        {"item": 2, "values": [{"loss": 6}], "hosts": ["localhost"]},
    ]
    assert lines[2]["item"] == 1
    assert lines[2]["error"]["type"] == "ValueError"
    assert "raise ValueError('lr is 0')" in lines[2]["error"]["notes"]
    assert "item 1: ValueError: lr is 0" in done.stderr
    assert done.stderr.endswith("phalanx map: 1 of 3 calls failed\n")
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        ("{", (), "stdin, line 1: not JSON"),
        ('{"lr": 1}\n3\n', (), "stdin, line 2: must be a JSON object"),
        ('{"lr": 1}\n\n{"l": 1}\n', (), "stdin, line 3: train(lr, steps=1): missing a required"),
        ("", ("--max-paralel", "2"), "Did you mean --max-parallel?"),
    ],
)
def test_the_command_names_mistakes(sweep, items, options, message):
    """In one sentence, and nothing is started."""
    done = sweep(items, *options)
    assert done.returncode == 2
    assert done.stderr.startswith("phalanx map: ")
    assert message in done.stderr
    assert done.stdout == ""


def test_the_help_has_no_heading_without_options(capsys):
    """Options of `phalanx launch` that a map does not have leave none behind."""
    assert command(["map", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "\noptions:\n  -h" in shown
    assert "logs:" not in shown


def test_a_map_shows_a_bar_on_a_terminal_that_goes_away(tmp_path):
    """How many are done, and how long the rest will take."""
    (tmp_path / "job.py").write_text(
        "import time\n\ndef main(x: int):\n    time.sleep(0.3)\n    return x\n"
    )
    (tmp_path / "items.jsonl").write_text("".join(f'{{"x": {x}}}\n' for x in range(8)))
    terminal = phalanx_at_terminal("map", "job.py:main", "items.jsonl", "--max-parallel", "2")
    assert terminal.finish() == 0
    shown = re.findall("[█░]{20} main: [0-9]+ of 8 calls done.*? left", terminal.raw.decode())
    assert shown, terminal.raw
    assert not [line for line in terminal.lines if "█" in line]
