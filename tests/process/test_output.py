"""Output of odd kinds arrives whole: long lines, streams that raise, nobody who reads."""

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


def test_opening_dev_stdout_anew_loses_nothing_that_follows(capfd):
    """It empties the file that is the rank's stdout."""

    def f():
        for i in range(100):
            print("line", i)
        time.sleep(0.3)
        subprocess.run("echo x > /dev/stdout", shell=True)
        print("after")

    phalanx.launch(f, workers_per_host=1)
    assert capfd.readouterr().out.endswith("x\nafter\n")


def test_a_stream_of_the_programs_own_that_raises_disturbs_nobody(script, tmp_path):
    """The log file has everything."""
    done = script("""
        import sys, phalanx

        class Tee:
            def write(self, text):
                return len(text)

        sys.stdout = Tee()

        def f():
            for i in range(30_000):
                print("x" * 1000)

        phalanx.launch(f, workers_per_host=1)
        sys.stdout = sys.__stdout__
    """)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot show worker output any more") == 1
    (log,) = (tmp_path / "logs").glob("*].log")
    assert log.stat().st_size == 30_000 * 1001


def test_a_non_blocking_stdout_gets_every_line(script, tmp_path):
    """As a program that shares it with an event loop leaves it."""
    path = script.write("""
        import os, phalanx
        os.set_blocking(1, False)

        def f():
            for i in range(100_000):
                print("line", i)

        phalanx.launch(f, workers_per_host=1)
    """)
    command = f"{sys.executable} {path} | (sleep 1; cat)"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.stdout.splitlines() == [f"line {i}" for i in range(100_000)], done.stderr


def test_lines_longer_than_any_buffer_stay_whole(tmp_path):
    """Two streams of one rank, in one file."""

    def f():
        for _ in range(20):
            sys.stdout.write("A" * 700_000 + "\n")
            sys.stderr.write("B" * 700_000 + "\n")

    phalanx.launch(f, workers_per_host=1)
    (log,) = (tmp_path / "logs").glob("*].log")
    lines = log.read_text().splitlines()
    assert sorted(set(lines)) == ["A" * 700_000, "B" * 700_000]
    assert len(lines) == 40


def test_a_log_spec_gets_whole_lines():
    """Of any length, in any characters."""
    import logging

    got = []

    class Take(logging.Handler):
        def emit(self, record):
            got.append(record.getMessage())

    class Spec(phalanx.LogSpec):
        def get_map(self):
            return {"localhost[0]": [Take()]}

    def f():
        print("x" + "é" * 300_000)
        print("a\x0bb\u2028c")
        print("no end", end="")

    phalanx.launch(f, workers_per_host=1, log_spec=Spec())
    assert got == ["x" + "é" * 300_000, "a\x0bb\u2028c", "no end"]


def test_a_text_stream_gets_whole_characters(script):
    """However the bytes are cut."""
    done = script("""
        import io, sys, phalanx
        real, sys.stdout = sys.stdout, io.StringIO()
        phalanx.launch(lambda: print("x" + "é" * 300_000), workers_per_host=1)
        print(sys.stdout.getvalue() == "x" + "é" * 300_000 + "\\n", file=real)
    """)
    assert done.stdout.strip() == "True", done.stderr


def test_a_line_that_is_not_ended_shows_after_a_while(script, tmp_path):
    """Dots and prompts."""
    process = script.start("""
        import os, time, phalanx

        def f():
            print("...", end="", flush=True)
            while not os.path.exists("go"):
                time.sleep(0.01)

        phalanx.launch(f, workers_per_host=1)
    """)
    assert process.stdout.read(3) == "..."
    (tmp_path / "go").touch()
    process.communicate(timeout=60)


def test_what_is_printed_while_packages_load_is_in_every_rank_s_log(script, tmp_path):
    """As if each had imported them; and the package sees the program's own arguments."""
    site = tmp_path / "lib"
    site.mkdir()
    (site / "noisy.py").write_text(
        "import sys\nprint('imported', sys.argv[1:])\nprint('warned', file=sys.stderr)\n"
    )
    done = script(
        """
        import sys, phalanx
        sys.path.append("lib")
        phalanx.launch(lambda: print("ran"), workers_per_host=2, preload=["noisy"])
    """,
        "one",
    )
    assert done.returncode == 0, done.stderr
    for log in (tmp_path / "logs").glob("*].log"):
        assert sorted(log.read_text().splitlines()) == ["imported ['one']", "ran", "warned"]


def test_a_small_disk_carries_much_output(script, tmp_path):
    """What was handed on is freed."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    path = script.write("""
        import time, phalanx

        def f():
            for i in range(60):
                print("x" * 100_000)
                time.sleep(0.02)

        phalanx.launch(f, workers_per_host=1)
    """)
    small = tmp_path / "small"
    small.mkdir()
    command = f"mount -t tmpfs -o size=3m small {small} && TMPDIR={small} {sys.executable} {path}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command], capture_output=True, cwd=tmp_path, timeout=60
    )
    if b"unshare" in done.stderr:
        pytest.skip(f"no mount namespaces here: {done.stderr!r}")
    assert len(done.stdout) == 60 * 100_001, done.stderr
