"""`phalanx log`: the last lines of each rank, and progress bars as the launch itself shows them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx._logs.lines import read_back, read_lines
from tests.conftest import wait_until
from tests.process.terminal import phalanx as at_terminal

JOB = """
import os, sys, time
RANK = os.environ.get("RANK")

def count(lines: int = 5):
    for i in range(lines):
        print(f"{RANK}: {i}")
    sys.stdout.write(f"{RANK}: end")

def bars():
    for i in range(10_000):
        sys.stderr.write(f"\\r{i}% of {RANK}")
        sys.stderr.flush()
        if os.path.exists("enough"):
            break
        time.sleep(0.05)
    sys.stderr.write("\\n")
    print("done", RANK)
"""


@pytest.fixture(autouse=True)
def job(tmp_path):
    (tmp_path / "job.py").write_text(JOB)


def command(*arguments):
    words = [sys.executable, "-m", "phalanx", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_last_lines_of_each_rank():
    """Three of every one, in the order of time, an unfinished one among them."""
    command("launch", "job.py:count", "--workers-per-host", "3", "--quiet")
    lines = command("log", "-n", "3").splitlines()
    for rank in range(3):
        own = [
            line.partition("] ")[2] for line in lines if line.startswith(f"[localhost rank {rank}")
        ]
        assert own == [f"{rank}: 3", f"{rank}: 4", f"{rank}: end"]
    assert len(lines) == 9
    assert command("log", "-n", "2", "-r", "1").splitlines() == ["1: 4", "1: end"]
    assert command("log", "-n", "0") == ""
    assert command("log", "-n", "1", "-r", "0", "-e", "[23]$").splitlines() == ["0: 3"]
    assert len(command("log", "-n", "99").splitlines()) == 18
    found = [json.loads(line) for line in command("log", "-n", "1", "--json").splitlines()]
    assert sorted(line["text"] for line in found) == ["0: end", "1: end", "2: end"]
    assert command("log", "-n", "1", "--since", "2099-01-01T00:00") == ""


def test_a_long_log_is_read_from_its_end(tmp_path):
    """No more of it than is asked for."""
    path = tmp_path / "log"
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # a terabyte of nothing
        file.seek(0, os.SEEK_END)
        file.write(b"\none\ntwo\n")
    back = read_back(path)
    assert [text for _, text in (next(back), next(back))] == ["two", "one"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("data", [b"", b"\n", b"a", b"a\n", b"\n\n", b"a\n\nbc\r\rd\n\xff\nlast"])
def test_backwards_is_the_reverse_of_forwards(tmp_path, data, size):
    """Offsets too, wherever the pieces that are read begin."""
    path = tmp_path / "log"
    path.write_bytes(data)
    forwards, _ = read_lines(path, 0, final=True)
    assert list(read_back(path, size))[::-1] == forwards


@pytest.mark.parametrize("ranks", [1, 2])
def test_progress_bars_are_followed(ranks):
    """Before their line has ended; several ranks' with the prefix that the launch has."""
    words = ["launch", "job.py:bars", "--workers-per-host", str(ranks), "--quiet"]
    with subprocess.Popen([sys.executable, "-m", "phalanx", *words]) as launch:
        wait_until(lambda: list(Path("logs").glob("*[[]0].log")))
        terminal = at_terminal("log", "--follow")
        terminal.wait_for("[rank 0] 5" if ranks > 1 else "\r5", timeout=60)
        Path("enough").touch()
        assert terminal.finish() == 0
        launch.wait(60)
    assert any("done 0" in line for line in terminal.lines)
    assert any("% of 0" in line for line in terminal.lines)
    if ranks > 1:
        assert any(line.startswith("[localhost rank 1] done 1") for line in terminal.lines)


@pytest.mark.parametrize("replicas", [1, 2])
def test_progress_bars_of_a_scheduler_s_app_are_followed(replicas):
    """Below the lines, before their own has ended; then their last state is a line as any other."""
    Path("bars.py").write_text(f"{JOB}\nprint('begun')\nbars()\n")
    words = ["utils.python", "--num_replicas", str(replicas), "--script", "bars.py"]
    handle = command("run", "-s", "local_cwd", *words).strip()
    try:
        terminal = at_terminal("log", "--follow", handle)
        terminal.wait_for("python/0 5", timeout=60)
        Path("enough").touch()
        assert terminal.finish() == 0
    finally:
        command("cancel", handle)
    for i in range(replicas):
        own = [line for line in terminal.lines if line.startswith(f"python/{i} ")]
        assert sorted(line.split()[1][-1] for line in own) == ["%", "e", "n"], terminal.raw
    assert len(terminal.lines) == 3 * replicas
    assert "\\r0% of None\\r1%" in command("log", handle, "--json")  # as it was printed


def test_without_a_terminal_the_lines_are_as_they_are():
    """A file gets what was printed."""
    command("launch", "job.py:count", "--workers-per-host", "1", "--quiet")
    expected = "".join(f"0: {i}\n" for i in range(5)) + "0: end\n"
    assert command("log", "--follow") == expected


def test_the_last_lines_and_then_those_that_come(tmp_path):
    """Of a launch that has ended and of an app that runs."""
    command("launch", "job.py:count", "--workers-per-host", "2", "--quiet")
    assert sorted(command("log", "-f", "-n", "1").splitlines()) == [
        "[localhost rank 0] 0: end",
        "[localhost rank 1] 1: end",
    ]
    shell = "seq 5; while [ ! -e go ]; do sleep 0.05; done; echo 6"
    handle = command("run", "utils.sh", "--num_replicas", "2", shell).strip()
    wait_until(lambda: command("log", handle).count(" 5") == 2)
    words = [sys.executable, "-m", "phalanx", "log", "-f", "-n", "2", handle]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        begun = [process.stdout.readline() for _ in range(4)]
        (tmp_path / "go").touch()
        assert sorted(begun) == [f"sh/{i} {n}\n" for i in range(2) for n in (4, 5)]
        assert sorted(process.stdout.read().splitlines()) == ["sh/0 6", "sh/1 6"]
