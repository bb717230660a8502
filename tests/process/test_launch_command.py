"""`phalanx launch`: files, values and functions of odd kinds."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx
from phalanx import AgentLost, ConfigError, LaunchError, WorkerFailed
from tests.conftest import is_alive, phalanx_processes, wait_until
from tests.process.test_cleanup import agents, find


def cli(*args, cwd):
    return subprocess.run(
        [sys.executable, "-m", "phalanx", "launch", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["my.train.py", "p/m.py", "with-dash.py"])
def test_any_file_can_be_launched(tmp_path, name):
    """Names that cannot be imported, are taken, or are parts of a package."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    code = "def fn():\n    return 4\n"
    if name == "p/m.py":
        (tmp_path / "p" / "__init__.py").write_text("")
        (tmp_path / "p" / "other.py").write_text("VALUE = 4\n")
        code = "from .other import VALUE\ndef fn():\n    return VALUE\n"
    path.write_text(code)
    done = cli(f"{name}:fn", "--workers-per-host", "2", cwd=tmp_path)
    assert done.stdout == "rank 0: 4\nrank 1: 4\n", done.stderr


SCRIPT = """
import argparse, os, sys

def parse(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1)
    return sys.argv[0], parser.parse_args(argv).steps, os.environ["RANK"]

def main():
    return parse()
"""


@pytest.mark.parametrize(
    ("target", "way"),
    [
        *[("job.py:main", way) for way in ("forked", "inline", "none", "help")],
        ("job.py:parse", "forked"),
        ("pack.job:main", "forked"),
    ],
)
def test_a_script_that_parses_its_own_arguments_runs_unchanged(tmp_path, target, way):
    """What stands after -- is in `sys.argv`, behind the file, as with torchrun."""
    (tmp_path / "pack").mkdir()
    for path in ("job.py", "pack/__init__.py", "pack/job.py"):
        (tmp_path / path).write_text(SCRIPT)
    file = "job.py" if target.startswith("job.py") else str(tmp_path / "pack" / "job.py")
    options = ["--start-method", "inline"] if way == "inline" else ["--workers-per-host", "2"]
    own = {"none": (), "help": ("--", "--help")}.get(way, ("--", "--steps", "2"))
    done = cli(target, *options, *own, cwd=tmp_path)
    if way == "help":
        assert "usage: job.py [-h] [--steps STEPS]" in done.stdout, done.stderr
        assert "phalanx launch" not in done.stdout
        return
    steps = 1 if way == "none" else 2
    ranks = range(1 if way == "inline" else 2)
    values = [f"rank {rank}: {(file, steps, str(rank))!r}\n" for rank in ranks]
    assert done.stdout == "".join(values), done.stderr


GREETS = """
from collections.abc import Callable

def greet(name: str):
    return name

def call(back: Callable[[int], int]):
    return back(1)

def unknown(x: "Nothing"):
    return x
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "greet.py:greet --workers-per-host 2 bob",
            "unexpected argument 'bob'. Put the function's",
        ),
        ("greet.py:greet --workers-per-host bob", "--workers-per-host bob: must be a whole number"),
        ("greet.py:greet --name bob", "--name before '--' is the app's name; put the function's"),
        (
            "greet.py:greet --extra-env-vars A=1",
            "name and value as two words: --extra-env-vars A 1",
        ),
        ("greet.py:greet --max-restarts", "--max-restarts needs a number. See"),
        ("greet.py:greet --heartbeat-timeout 1s", "1s: must be a number of seconds, such as 30."),
        ("greet.py greet", "'greet.py' names no function. Did you mean greet.py:greet?"),
        ("greet.py::greet", "'greet.py::greet' names no function. Did you mean greet.py:greet?"),
        (
            "greet.py:call -- --back x",
            "greet.py:call takes what cannot be typed on a command line: ",
        ),
        ("greet.py:unknown -- --x 1", "greet.py:unknown: annotations: name 'Nothing' is not"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_what_is_named(tmp_path, words, said):
    """And what to write instead."""
    (tmp_path / "greet.py").write_text(GREETS)
    done = cli(*words.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_for_torchrun_is_not_a_file_with_a_function(tmp_path):
    """It reads its rank when it is loaded, which happens here first."""
    (tmp_path / "ddp.py").write_text("import os\nrank = int(os.environ['RANK'])\n")
    done = cli("ddp.py:main", cwd=tmp_path)
    assert done.returncode == 1
    assert "KeyError: 'RANK'" in done.stderr
    assert "imports the file here first; to run a script: phalanx torchrun ddp.py" in done.stderr


def test_help_of_a_function_that_takes_nothing_runs_nothing(tmp_path):
    """Nothing in its file would hear of it."""
    (tmp_path / "job.py").write_text("def f():\n    open('ran', 'w').close()\n")
    done = cli("job.py:f", "--", "--help", cwd=tmp_path)
    assert done.returncode == 0 and "f takes no arguments" in done.stdout
    assert not (tmp_path / "ran").exists() and not (tmp_path / "logs").exists()


def test_arguments_that_a_script_refuses_are_its_own_mistake(tmp_path):
    """The parser's sentence, and its exit code."""
    (tmp_path / "job.py").write_text(SCRIPT)
    done = cli("job.py:main", "--", "--stepz", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert "job.py: error: unrecognized arguments: --stepz 2" in done.stderr


@pytest.mark.parametrize(
    "code", ["import os\n1 / 0\n", "def broken(:\n", "import no_such_module_q\n"]
)
def test_a_file_that_does_not_load_shows_the_users_frames_only(tmp_path, code):
    """Soon, although agents were warming already."""
    (tmp_path / "bad.py").write_text(code)
    done = cli("bad.py:f", cwd=tmp_path)
    assert done.returncode == 1
    assert "bad.py" in done.stderr
    assert "phalanx/" not in done.stderr
    assert "importlib" not in done.stderr


def test_values_and_functions_of_odd_kinds_on_the_command_line(tmp_path):
    """A repr that raises, a coroutine."""
    (tmp_path / "odd.py").write_text(
        "class Bad:\n    def __repr__(self):\n        raise ValueError\n"
        "def bad():\n    return Bad()\nasync def co():\n    pass\n"
    )
    done = cli("odd.py:bad", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "rank 0: <Bad whose repr raises ValueError>\n")
    done = cli("odd.py:co", cwd=tmp_path)
    assert done.returncode == 2
    assert "is async" in done.stderr


def test_ctrl_c_while_the_file_loads(tmp_path):
    """Nothing of the function runs afterwards."""
    (tmp_path / "slow.py").write_text(
        "import os, time\nopen('loading', 'w').close()\ntime.sleep(300)\n"
        "def fn():\n    open('ran', 'w').close()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "launch", "slow.py:fn"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    wait_until((tmp_path / "loading").exists)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    wait_until(lambda: not phalanx_processes())
    assert not (tmp_path / "ran").exists()


def test_a_missing_bash_is_a_clear_error(tmp_path, monkeypatch):
    """It is needed for env_file only."""
    (tmp_path / "env.sh").write_text("true\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="cannot start .*bash"):
        phalanx.launch(print, workers_per_host=1, env_file="env.sh")
