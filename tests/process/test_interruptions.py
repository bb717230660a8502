"""Ends at odd moments: kills, signals and Ctrl-C while something else goes on."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import phalanx
from phalanx import AgentLost, ConfigError, LaunchError, WorkerFailed
from tests.conftest import is_alive, phalanx_processes, wait_until
from tests.process.test_cleanup import agents, find


def test_ranks_that_had_returned_explain_a_missed_peer(script):
    """Rank 0 has gone home while the others still talk to it."""
    done = script("""
        import torch, torch.distributed as dist, phalanx

        def f():
            if dist.get_rank() == 0:
                return
            import time
            time.sleep(1)
            dist.all_reduce(torch.ones(1))

        phalanx.launch(f, workers_per_host=3)
    """)
    assert "Rank 0 had already returned, so it cannot join the collective." in done.stderr


def test_a_grace_beyond_all_bounds_is_still_only_a_grace():
    """No overflow anywhere."""

    def f():
        if os.environ["RANK"] == "1":
            raise ValueError("x")
        time.sleep(300)

    with pytest.raises(ValueError):
        phalanx.launch(f, workers_per_host=2, stop_grace=1e9)


@pytest.mark.parametrize("grace", [-1, float("nan"), float("inf"), "x"])
def test_cancel_refuses_what_is_no_grace(grace):
    """And the app goes on."""
    app = phalanx.Launcher(workers_per_host=1).start(time.sleep, args=(300,))
    with pytest.raises(ConfigError, match="grace"):
        app.cancel(grace)
    app.cancel(0)
    app.wait()


def test_a_dead_zygote_is_not_waited_for(script):
    """Not for the grace of workers that are gone."""

    def f():
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(300)

    with pytest.raises(AgentLost, match="the zygote died"):
        phalanx.launch(f, workers_per_host=1, stop_grace=100)


def test_a_killed_store_ends_the_app(script, tmp_path):
    """Workers would otherwise wait for it."""
    process = script.start("""
        import os, time, phalanx

        def f():
            import torch.distributed as dist
            open("up-" + os.environ["RANK"], "w").close()
            time.sleep(300)

        phalanx.launch(f, workers_per_host=2)
    """)
    wait_until(lambda: len(list(tmp_path.glob("up-*"))) == 2)
    (store,) = find("store")
    os.kill(store, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert "the process that hosts the store ended" in errors


def test_agent_and_zygote_killed_at_once_leave_nothing(script, tmp_path):
    """The launcher sweeps up: what workers had started carries the app's id."""
    process = script.start("""
        import os, subprocess, time, phalanx

        def f():
            child = subprocess.Popen(["sleep", "300"], start_new_session=True)
            with open("child.tmp", "w") as file:
                file.write(str(child.pid))
            os.rename("child.tmp", "child")
            time.sleep(300)

        phalanx.launch(f, workers_per_host=1)
    """)
    wait_until((tmp_path / "child").exists)
    pids = [*agents(), *find("zygote")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert "AgentLost" in errors
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not is_alive(child))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR2])
def test_signals_to_an_agent_that_is_still_warming(script, tmp_path, number):
    """SIGUSR2 ends nothing; SIGKILL leaves nothing, not even its directory."""
    site = tmp_path / "lib"
    site.mkdir()
    (site / "slow.py").write_text(
        "import time, os\nopen('warming', 'w').close()\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
    )
    process = script.start("""
        import sys, phalanx
        sys.path.append("lib")
        print(phalanx.launch(lambda: 5, workers_per_host=1, preload=["slow"]).rank(0))
    """)
    wait_until((tmp_path / "warming").exists)
    (agent,) = agents()
    os.kill(agent, number)
    time.sleep(0.2)
    (tmp_path / "go").touch()
    out, errors = process.communicate(timeout=60)
    if number == signal.SIGUSR2:
        assert out == "5\n", errors
    else:
        assert "StartFailed" in errors or "AgentLost" in errors


def test_ctrl_c_while_nobody_reads_the_output(script, tmp_path):
    """While stopping: a stuck reader does not keep us."""
    process = script.start("""
        import phalanx

        def f():
            for i in range(30_000):
                print("x" * 1000)
            open("printed", "w").close()

        phalanx.launch(f, workers_per_host=1)
    """)
    wait_until((tmp_path / "printed").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == -signal.SIGINT
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("to_file", [True, False])
def test_what_was_printed_before_a_signal_is_all_there(tmp_path, number, to_file):
    """In the log file and on a stdout that is a file or a pipe with a reader, be they ever so far
    behind; also when the terminal is closed.
    """
    (tmp_path / "f.py").write_text(
        textwrap.dedent("""
            import pathlib, time

            def main():
                for i in range(200_000):
                    print("line", i)
                print("", end="", flush=True)
                pathlib.Path("printed").touch()
                time.sleep(300)
        """)
    )
    command = [sys.executable, "-m", "phalanx", "launch", "f.py:main", "--workers-per-host", "1"]
    with open("out", "wb") as file:
        process = subprocess.Popen(
            [*command, "--log-dir", "logs"],
            stdout=file if to_file else subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    if not to_file:
        reader = threading.Thread(target=_copy_slowly, args=(process.stdout, tmp_path / "out"))
        reader.start()
    wait_until((tmp_path / "printed").exists)
    process.send_signal(number)
    errors = process.stderr.read().decode()
    assert process.wait(timeout=60) == (130 if number == signal.SIGINT else -number), errors
    if not to_file:
        reader.join()
        process.stdout.close()
    process.stderr.close()
    assert "not shown" not in errors and "nothing is left running" in errors
    (log,) = (tmp_path / "logs").glob("*[[]0].log")
    for text in (log.read_text(), (tmp_path / "out").read_text()):
        assert text.count("line ") == 200_000


@pytest.mark.parametrize("command", [["launch", "f.py:main"], ["torchrun", "f.py"]])
def test_what_a_worker_prints_while_it_stops_is_all_there(tmp_path, command):
    """However long it takes, within the grace."""
    (tmp_path / "f.py").write_text(
        textwrap.dedent("""
            import os, pathlib, signal, time

            def save(*_):
                time.sleep(3.5)
                print("saved", flush=True)
                os._exit(0)

            def main():
                signal.signal(signal.SIGTERM, save)
                pathlib.Path("up").touch()
                time.sleep(300)

            if __name__ == "__main__":
                main()
        """)
    )
    with open("out", "wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "phalanx", *command], stdout=file)
    wait_until((tmp_path / "up").exists)
    process.terminate()
    process.wait(timeout=60)
    assert "saved" in (tmp_path / "out").read_text()


def _copy_slowly(pipe, path):
    """As a program behind the pipe that has other things to do, too."""
    with open(path, "wb") as file:
        while data := os.read(pipe.fileno(), 1 << 14):
            file.write(data)
            time.sleep(0.005)


def test_ctrl_c_in_an_asyncio_program(script, tmp_path):
    """Its own handler would cancel a task that cannot run."""
    process = script.start("""
        import asyncio, time, phalanx

        def f():
            open("up-0", "w").close()
            time.sleep(300)

        async def main():
            phalanx.launch(f, workers_per_host=1)

        asyncio.run(main())
    """)
    wait_until((tmp_path / "up-0").exists)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT


def test_a_child_that_the_program_forks_ends_at_once(script):
    """It has the handle and none of the threads."""
    done = script("""
        import os, sys, time, phalanx
        app = phalanx.Launcher(workers_per_host=1).start(time.sleep, args=(300,))
        began = time.monotonic()
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        print(time.monotonic() - began < 5)
    """)
    assert done.stdout.strip() == "True", done.stderr


def test_a_launcher_stopped_while_it_starts_goes_on(script, tmp_path):
    """The time does not count for `start_timeout` either."""
    process = script.start("""
        import time, phalanx
        print(phalanx.launch(lambda: time.sleep(1) or 1, workers_per_host=1, start_timeout=5).rank(0))
    """)
    wait_until(agents)
    process.send_signal(signal.SIGSTOP)
    time.sleep(5.5)
    process.send_signal(signal.SIGCONT)
    out, errors = process.communicate(timeout=60)
    assert out == "1\n", errors
