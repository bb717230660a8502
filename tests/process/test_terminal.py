"""What someone sees who sits at a terminal."""

import re
import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import phalanx_processes, wait_until
from tests.process.terminal import Terminal, phalanx

JOB = """
import os, sys, time

RANK = os.environ.get("RANK")

def slow(seconds: float = 1.5):
    print("begins", flush=True)
    time.sleep(seconds)
    print("ends")

def same():
    for i in range(3):
        print("all alike", i)
    print("mine is", RANK)

def bars():
    for i in range(5):
        sys.stderr.write(f"\\r{i * 25}% of {RANK}")
        sys.stderr.flush()
        time.sleep(0.02)
    sys.stderr.write("\\n")
    print("done", RANK)

def fail():
    if RANK == "1":
        raise ValueError("no")
    time.sleep(60)

def unfinished():
    sys.stdout.write("no newline")

def stubborn():
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("up", flush=True)
    time.sleep(60)

def hang():
    print("up", flush=True)
    time.sleep(60)

def flood():
    for i in range(100_000):
        print(i)
"""


@pytest.fixture(autouse=True)
def job(tmp_path):
    (tmp_path / "job.py").write_text(JOB)


def launch(function, *arguments, **kwargs):
    return phalanx("launch", f"job.py:{function}", "--workers-per-host", *arguments, **kwargs)


def test_a_status_line_says_how_things_stand_and_goes_away():
    """Phase and seconds, below the output; nothing of it stays."""
    terminal = launch("slow", "2")
    assert terminal.finish() == 0
    assert re.search(rb"running 2 workers(, \d returned)? \(\d+ s\)", terminal.raw)
    assert [line for line in terminal.lines if "workers" in line] == [
        next(line for line in terminal.lines if line.startswith("2 workers returned"))
    ]
    assert terminal.lines[:2] == ["begins", "ends"]


def test_equal_lines_become_one_and_prefixes_have_colours():
    """The order of each rank stays."""
    terminal = launch("same", "3", "--show", "all")
    assert terminal.finish() == 0
    assert terminal.lines[:3] == [f"[localhost ranks 0–2] all alike {i}" for i in range(3)]
    assert sorted(terminal.lines[3:6]) == [f"[localhost rank {r}] mine is {r}" for r in range(3)]
    assert b"\x1b[36m[localhost rank 0]\x1b[0m" in terminal.raw


def test_no_color_and_dumb_terminals():
    """NO_COLOR keeps the rest; a dumb one gets plain lines."""
    plain = launch("same", "2", "--show", "all", NO_COLOR="1")
    assert plain.finish() == 0
    assert b"\x1b[3" not in plain.raw
    assert "[localhost ranks 0–1] all alike 0" in plain.lines
    dumb = launch("slow", "2", TERM="dumb")
    assert dumb.finish() == 0
    assert b"\x1b" not in dumb.raw
    assert b"running" not in dumb.raw


def test_progress_bars_stay_sane():
    """One rank's as it is; of several, each one's last state."""
    one = launch("bars", "1")
    assert one.finish() == 0
    assert sorted(one.lines[:2]) == ["100% of 0", "done 0"]
    several = launch("bars", "2", "--show", "all")
    assert several.finish() == 0
    shown = [line for line in several.lines if line.startswith("[")]
    assert sorted(shown) == sorted(
        f"[localhost rank {r}] {text} {r}" for r in range(2) for text in ("100% of", "done")
    )


def test_a_failure_is_set_apart():
    """Between rules, with the worker's traceback."""
    terminal = launch("fail", "2")
    assert terminal.finish() == 1
    rules = [i for i, line in enumerate(terminal.lines) if line.startswith("──")]
    assert len(rules) == 2
    between = terminal.lines[rules[0] : rules[1]]
    assert "ValueError: no" in between
    assert any("raised by rank 1 on localhost" in line for line in between)


def test_quiet_and_verbose():
    """Nothing but values and failures; or everything, and where the time went."""
    quiet = launch("slow", "2", "--quiet")
    assert quiet.finish() == 0
    assert quiet.lines == []
    verbose = launch("slow", "2", "--verbose", "--", "--seconds", "0")
    assert verbose.finish() == 0
    assert any("packages loaded" in line for line in verbose.lines)
    assert "[localhost ranks 0–1] begins" in verbose.lines
    both = subprocess.run(
        [sys.executable, "-m", "phalanx", "launch", "job.py:slow", "--quiet", "--verbose"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert both.returncode == 2
    assert "cannot be used with" in both.stderr


def test_what_comes_after_an_unfinished_line_begins_its_own():
    """At a terminal; a file gets the very bytes."""
    terminal = launch("unfinished", "1")
    assert terminal.finish() == 0
    assert terminal.lines[0] == "no newline"
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "launch", "job.py:unfinished", "--workers-per-host=1"],
        capture_output=True,
        timeout=30,
    )
    assert done.stdout == b"no newline"


def test_ctrl_c_typed_at_the_terminal():
    """One sentence, no traceback, nothing left."""
    terminal = launch("hang", "2")
    terminal.wait_for("up")
    terminal.type("\x03")
    assert terminal.finish() == 130
    assert b"Traceback" not in terminal.raw
    assert "phalanx launch: interrupted; nothing is left running" in terminal.lines
    wait_until(lambda: not phalanx_processes())


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_a_stopped_terminal_does_not_keep_an_app_from_ending(quiet):
    """Ctrl-S, then SIGTERM: workers are gone though nothing can be shown."""
    terminal = launch("hang", "2", *quiet)
    wait_until(lambda: len(phalanx_processes()) == 4)
    if not quiet:
        terminal.wait_for("running")
    terminal.type("\x13")
    os.kill(terminal.pid, signal.SIGTERM)
    wait_until(lambda: not phalanx_processes())
    terminal.type("\x11")
    assert terminal.finish() == -signal.SIGTERM


def test_a_flood_with_prefixes_is_whole():
    """Every line, in order."""
    terminal = launch("flood", "2", "--show", "all")
    assert terminal.finish() == 0
    counts = {0: [], 1: []}
    for line in terminal.lines:
        if line.startswith("[localhost rank"):
            who, _, number = line.partition("] ")
            for rank in [0, 1] if "0–1" in who else [int(who[-1])]:
                counts[rank].append(int(number))
    assert counts[0] == counts[1] == list(range(100_000))


def test_a_script_at_a_terminal_has_a_status_line_too(tmp_path):
    """`launch` in a program, and a handler of its own that prints."""
    (tmp_path / "script.py").write_text(
        "import logging, phalanx, time\n"
        "class Mine(phalanx.LogSpec):\n"
        "    def get_map(self): return {'localhost[0]': [logging.StreamHandler()]}\n"
        "def tick():\n"
        "    for i in range(3): time.sleep(0.5); print('tick', i, flush=True)\n"
        "phalanx.launch(tick, workers_per_host=1, log_spec=Mine())\n"
    )
    terminal = Terminal(sys.executable, "script.py", width=60)
    assert terminal.finish() == 0
    assert b"running 1 worker" in terminal.raw
    assert terminal.lines == ["tick 0", "tick 1", "tick 2"]
