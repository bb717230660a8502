"""The command line, from outside."""

import dataclasses
import signal
import subprocess
import sys
import textwrap

import pytest

import phalanx
from phalanx._cli import launch_help
from tests.conftest import phalanx_processes, wait_until


@pytest.fixture
def cli(tmp_path):
    (tmp_path / "job.py").write_text(
        textwrap.dedent('''
        import os
        import time

        def add(a: int, b: int = 10) -> int:
            """Add two numbers.

            Args:
                a: the first number
            """
            print("adding", a)
            return a + b + int(os.environ["RANK"])

        def fail():
            raise LookupError("told you")

        def leave():
            os._exit(7)

        def sleep():
            open("up", "w").close()
            time.sleep(300)

        class Group:
            @staticmethod
            def nested():
                print("nested")

        NOT_A_FUNCTION = 3
    ''')
    )

    def run(*args, **kwargs):
        return subprocess.run(
            [sys.executable, "-m", "phalanx", *args],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
            **kwargs,
        )

    return run


def test_version_and_help(cli):
    """The overview lists every verb; no arguments at all is a mistake."""
    assert cli("version").stdout == f"phalanx {phalanx.__version__}\n"
    assert cli("--version").stdout == f"phalanx {phalanx.__version__}\n"
    assert "launch" in cli("--help").stdout
    assert cli().returncode == 2
    done = cli("lanch")
    assert (done.returncode, done.stderr) == (
        2,
        "phalanx: unknown command 'lanch'. Did you mean 'launch'?\n",
    )


def test_the_help_of_launch_has_every_option_under_a_heading():
    """Once each: a new field of a launcher wants a place there."""
    known = [field.name for field in dataclasses.fields(phalanx.Launcher)]
    shown = [name for group in launch_help.GROUPS.values() for name in group]
    of_command = {"detach", "log_dir", "show", "quiet", "verbose"}
    assert sorted(shown) == sorted({*known, *of_command} - {"log_spec"})


@pytest.mark.parametrize("target", ["job.py:add", "./job.py:add", "job:add"])
def test_a_function_of_a_file_or_module_with_its_own_arguments(cli, target):
    """Options before `--`, the function's own behind it."""
    done = cli("launch", target, "--workers-per-host", "2", "--", "--a", "5")
    assert done.stdout == "adding 5\nrank 0: 15\nrank 1: 16\n", done.stderr
    assert done.returncode == 0


def test_a_nested_function(cli):
    """By its qualified name."""
    assert cli("launch", "job.py:Group.nested").stdout == "nested\n"


def test_help_of_the_options_and_of_the_function(cli):
    """Both come from docstrings."""
    shown = cli("launch", "--help").stdout
    assert "Seconds between SIGTERM and SIGKILL" in shown
    assert shown.count("usage:") == 1
    assert cli("launch", "job.py:add", "--help").stdout == shown
    done = cli("launch", "job.py:add", "--", "--help")
    assert "the first number" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the function first"),
        (["--workers-per-host", "2", "job.py:add"], "name the function first"),
        (["job.py:add", "--a", "5"], "arguments after '--'"),
        (["job.py"], "expected FILE.py:FUNCTION"),
        (["nope.py:f"], "no such file: nope.py."),
        (["jib.py:add"], "no such file: jib.py. Did you mean job.py?"),
        (["no_such_module:f"], "no module named 'no_such_module'"),
        (["job.py:ad"], "Did you mean 'add'"),
        (["job.py:NOT_A_FUNCTION"], "has no function 'NOT_A_FUNCTION'"),
        (["job.py:add", "--workers-per-host", "0", "--", "--a", "1"], "must be 1 or more"),
        (["job.py:add", "--nonsense", "1"], "nonsense"),
        (["job.py:add", "--backend", "glo"], "glo: must be auto, gloo, mpi, nccl, ucc or None."),
        (["job.py:add", "--", "--a", "x"], "--a x: must be a whole number."),
        (["job.py:add", "--"], "missing required --a."),
        (["job.py:add", "--", "--aa", "1"], "unknown option --aa. Did you mean --a?"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(cli, arguments, message):
    """Never a traceback."""
    done = cli("launch", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failure_prints_one_report_and_exits_with_1(cli):
    """The worker's traceback, none of ours."""
    done = cli("launch", "job.py:fail", "--workers-per-host", "2")
    assert done.returncode == 1
    assert done.stderr.count("LookupError: told you") >= 1
    assert 'job.py", line' in done.stderr
    assert "phalanx/" not in done.stderr


def test_a_workers_exit_code_is_passed_on(cli):
    """As a script's would be."""
    done = cli("launch", "job.py:leave")
    assert done.returncode == 7
    assert "exited with code 7" in done.stderr


def test_ctrl_c(tmp_path, cli):
    """130, and nothing left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "launch", "job.py:sleep"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    wait_until((tmp_path / "up").exists)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    wait_until(lambda: not phalanx_processes())


def test_a_file_that_raises_when_loaded_shows_the_users_error(tmp_path, cli):
    """The agents that were warming are stopped."""
    (tmp_path / "broken.py").write_text("import os\n1 / 0\ndef f(): pass\n")
    done = cli("launch", "broken.py:f")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
