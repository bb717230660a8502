"""What a worker prints comes out where it was printed to, and its exception once."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import phalanx
from phalanx._system.network import free_port
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
    # One may be stopped before it has printed its own, or while it does.
    began = done.stderr.count("Traceback (most recent call last)")
    assert 1 <= done.stderr.count("raise ValueError('rank ' + ") <= began <= 2, done.stderr


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


# ── several hosts, or what counts as such ─────────────────────────────────────

MEETS = """
import os, pathlib, signal, time

RANK, TRY = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]

def together():
    pathlib.Path(f"here-{RANK}-{TRY}").touch()
    while len(list(pathlib.Path().glob(f"here-*-{TRY}"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
"""


def ddp(shape, code):
    """`run --wait --log` of a script on several local replicas."""
    Path("train.py").write_text(MEETS + code)
    script = ("--script", "train.py")
    return command("run", "--wait", "--log", "dist.ddp", "-j", shape, *script)


def times_told(text, error):
    """How often the traceback's last line is there as a line, whoever's it is."""
    return len(re.findall(rf"^(?:\w+/\d )?(?:\[\w+\]:)?\s*{re.escape(error)}$", text, re.MULTILINE))


def test_several_replicas_tell_a_failure_once():
    """The one that it happened in; the other names it, and the last words point there."""
    code = "together()\nif RANK == 3:\n    raise ValueError('boom')\ntime.sleep(600)\n"
    done = ddp("2x2", code)
    assert done.returncode == 1
    shown = done.stderr
    assert times_told(done.stdout + shown, "ValueError: boom") == 1, shown
    assert shown.count("Traceback (most recent call last)") == 1
    (teller,) = re.findall(r"^train/(\d)   ValueError: boom$", shown, re.MULTILINE)
    (host,) = re.findall(r"torchrun: rank 3 on (\S+) \(pid", shown)
    stopped = f"phalanx torchrun: stopped: rank 3 on {host} raised ValueError: boom"
    assert shown.count(stopped) == 1
    assert f"train/{1 - int(teller)} {stopped}" in shown
    assert f"  train/{teller} exited with code 1: ValueError: boom (rank 3 on {host})\n" in shown
    assert f"/train/{teller}/stderr.log\n" in shown


def test_two_that_fail_by_themselves():
    """The first is named everywhere, the other counted; each has its traceback once."""
    done = ddp("2x1", "together()\nraise ValueError(f'boom of {RANK}')\n")
    told = [times_told(done.stderr, f"ValueError: boom of {rank}") for rank in (0, 1)]
    (first,) = re.findall(r"torchrun: stopped: rank (\d)", done.stderr)
    assert told[int(first)] == 1, done.stderr
    if "1 other rank failed as well" in done.stderr:  # both were seen in time
        assert told == [1, 1]
        assert "Also failed later:" in done.stderr


def test_each_attempt_is_told_once():
    """Its traceback when it goes on, the last one's at the end."""
    code = "together()\nif RANK == 1:\n    raise ValueError('try ' + TRY)\ntime.sleep(600)\n"
    Path("train.py").write_text(MEETS + code)
    where = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint")
    words = ("torchrun", *where, f"localhost:{free_port()}", "--max-restarts", "1", "train.py")
    with ThreadPoolExecutor() as pool:
        shown = "".join(done.stderr for done in pool.map(lambda _: command(*words), range(2)))
    told = [times_told(shown, f"ValueError: try {number}") for number in (0, 1)]
    assert told == [1, 1], shown
    assert shown.count("Restarted once, after:") == 1
    assert shown.count("torchrun: stopped: rank 1 on ") == 1


@pytest.mark.parametrize("how", ["torchrun", "launch"])
def test_a_traceback_that_was_shown_is_not_in_the_report(how):
    """Another worker took its time to stop."""
    call = "if __name__ == '__main__':\n    fail(0, True)\n"
    Path("stubborn.py").write_text(JOB.partition("if __name__")[0] + call)
    words = {
        "torchrun": "torchrun --nproc-per-node 2 --shutdown-timeout 4 stubborn.py",
        "launch": "launch job.py:fail --workers-per-host 2 --stop-grace 4 -- --stubborn",
    }[how]
    done = command(*words.split())
    assert done.returncode == 1
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "rank 0 on " in done.stderr
    assert "(traceback above)" in done.stderr


REPORTS = """
import json, os, pathlib, signal, sys, time

READY = pathlib.Path("ready")

def report(message, elsewhere):
    extra = {"py_callstack": "in full\\nE: x", "rank": 1, "hostname": "far"}
    said = {"message": message, "extraInfo": {**extra, "is_remote": elsewhere}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": said}, file)
    sys.exit(1)

if os.environ["PHALANX_REPLICA_ID"] == "0":
    while not READY.exists():
        time.sleep(0.01)
    report("stopped: rank 1 on far raised E: x", True)
signal.signal(signal.SIGTERM, lambda *_: report("E: x", False))
READY.touch()
time.sleep(600)
"""


def test_the_replica_that_had_it_is_blamed_though_another_ended_first():
    """And what nobody has printed is in the last words, in full."""
    Path("reports.py").write_text(REPORTS)
    done = command("run", "--log", "utils.python", "--num_replicas", "2", "--script", "reports.py")
    lines = done.stderr.splitlines()
    assert lines[1] == "  python/1 exited with code 1: E: x (rank 1 on far)", done.stderr
    assert lines[2:6] == ["", "    in full", "    E: x", ""]
    assert lines[6].startswith("  phalanx status ")  # its log is empty, and not named
    status = command("status").stdout
    assert "python/1  FAILED  localhost  exit code 1  E: x" in status
    assert "python/0  FAILED  localhost  exit code 1  stopped: rank 1 on far raised E: x" in status
