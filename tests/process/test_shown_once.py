"""What a worker prints comes out where it was printed to, and its exception once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from tests.process.terminal import phalanx as at_terminal

JOB = """
import os, sys, time

RANK = int(os.environ.get("RANK", -1))

def fail(failing: int = 0, stubborn: bool = False):
    print("to stdout")
    print("to stderr", file=sys.stderr)
    if RANK == failing:
        time.sleep(0.3)
        raise ValueError("boom")
    if stubborn:
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)

def again():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("the first time")
    print("went well")

def partly():
    sys.stderr.write("x" * 600_000 + "\\nhalf a line")
    raise ValueError("boom")

if __name__ == "__main__":
    fail()
"""


@pytest.fixture(autouse=True)
def job(tmp_path):
    (tmp_path / "job.py").write_text(JOB)


def command(*arguments):
    words = [sys.executable, "-m", "phalanx", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def launch(function, *arguments):
    return command("launch", f"job.py:{function}", "--workers-per-host", "2", *arguments)


@pytest.mark.parametrize("show", ["0", "all"])
def test_each_stream_goes_to_its_own(show):
    """Piped, stdout is what was printed to stdout."""
    done = launch("fail", "--show", show)
    assert "to stdout" in done.stdout
    assert "to stderr" not in done.stdout
    assert "Traceback" not in done.stdout
    assert "to stderr" in done.stderr
    assert "to stdout" not in done.stderr


@pytest.mark.parametrize("show", ["0", "all"])
def test_an_exception_of_a_shown_rank_is_shown_once(show):
    """In the report; the log file has it as well."""
    done = launch("fail", "--show", show)
    assert done.returncode == 1
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "raised by rank 0 on localhost" in done.stderr
    (log,) = Path("logs").glob("*[[]0].log")
    assert log.read_text().count("ValueError: boom") == 1


def test_at_a_terminal_and_in_a_program_too(tmp_path):
    """Whoever prints what is raised."""
    terminal = at_terminal("launch", "job.py:fail", "--workers-per-host", "2")
    assert terminal.finish() == 1
    assert terminal.raw.count(b"Traceback (most recent") == 1
    (tmp_path / "program.py").write_text(
        "import job, phalanx\nphalanx.launch(job.fail, workers_per_host=2)\n"
    )
    words = [sys.executable, "program.py"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    # Python's own for the program, and the worker's.
    assert done.stderr.count("Traceback (most recent call last)") == 2
    assert done.stderr.count("in fail") == 1


def test_torchrun_shows_the_cause_once_and_all_of_the_others():
    """Each rank's traceback is somewhere, one of them in the report."""
    done = command("torchrun", "--nproc-per-node", "1", "job.py")
    assert done.returncode == 1
    assert done.stderr.count("ValueError: boom\n") == 2, done.stderr  # its last line, the report's
    assert done.stderr.count("Traceback (most recent call last)") == 1
    Path("both.py").write_text("import os\nraise ValueError('rank ' + os.environ['RANK'])\n")
    done = command("torchrun", "--nproc-per-node", "2", "both.py")
    assert done.stderr.count("Traceback (most recent call last)") in (1, 2)  # one may be stopped
    assert done.stderr.count("raise ValueError('rank ' + ") == done.stderr.count("Traceback (")


def test_torchruns_files_have_it(tmp_path):
    """Redirected, the terminal has the report alone."""
    done = command(
        "torchrun", "--nproc-per-node", "1", "--redirects", "3", "--log-dir", "l", "job.py"
    )
    assert done.stderr.count("Traceback (most recent call last)") == 1
    (log,) = Path("l").glob("*/attempt_0/0/stderr.log")
    assert "ValueError: boom" in log.read_text()


def test_a_failure_that_is_not_the_last_is_shown_when_it_goes_on():
    """A restart follows: nobody raises it."""
    words = ("--max-restarts", "1")
    done = command("launch", "job.py:again", "--workers-per-host", "1", *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ValueError: the first time") >= 1
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "went well" in done.stdout


def test_what_was_printed_before_comes_before():
    """However much it is, ended or not."""
    done = command("launch", "job.py:partly", "--workers-per-host", "1")
    assert done.stderr.startswith("x" * 600_000 + "\nhalf a line")
    (log,) = Path("logs").glob("*[[]0].log")
    assert "x\nhalf a lineTraceback (most recent call last)" in log.read_text()


def test_a_started_app_shows_it_for_nobody_may_ask_for_its_result(capfd):
    """`start` and `wait` raise nothing."""

    def fail():
        raise ValueError("boom")

    phalanx.Launcher(workers_per_host=1).start(fail).wait(30)
    assert capfd.readouterr().err.count("ValueError: boom") == 1


def test_one_that_waits_for_others_is_shown_before_the_end():
    """Nobody looks at nothing while a worker has its grace."""
    words = (*("--workers-per-host", "2", "--stop-grace", "8"), "--", "--stubborn")
    with subprocess.Popen(
        [sys.executable, "-m", "phalanx", "launch", "job.py:fail", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    ) as process:
        for line in process.stderr:
            if "ValueError: boom" in line:
                break
        assert process.poll() is None
        process.communicate()
    assert process.returncode == 1
