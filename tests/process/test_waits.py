"""Every wait has an end, and what is said to be gone was seen to be gone."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import phalanx
from tests.conftest import is_alive, phalanx_processes, wait_until
from tests.process.test_cleanup import SLEEPING, agents, find, sleepers_gone, wait_up

SLACK = 9.0
"""Seconds for a busy machine; what is given up after one wait for each process takes longer."""
STOPPED_AT_BIRTH = "kill -STOP $$\n"
"""An env_file: the shell that becomes the agent stops."""


def phalanx_launch(*arguments, **options):
    command = [sys.executable, "-m", "phalanx", "launch", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, **options)


def the_zygote():
    return wait_until(lambda: find("zygote"))[0]


def the_agent():
    return wait_until(agents)[0]


class Stopper:
    """Keeps a process stopped, whoever continues it: as good as one that hangs."""

    def __init__(self, pid):
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._done.is_set() and is_alive(self._pid):
            os.kill(self._pid, signal.SIGSTOP)
            time.sleep(0.001)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()


def test_an_agent_that_is_stopped_before_its_first_word(script, tmp_path):
    """It is ended, and the message says that nothing was heard of it."""
    (tmp_path / "env.sh").write_text(STOPPED_AT_BIRTH)
    done = script(
        """
        import phalanx
        phalanx.launch(print, workers_per_host=1, env_file="env.sh", start_timeout=1)
        """
    )
    assert "StartTimeout: timed out after 1 s" in done.stderr
    assert "localhost: no response from its agent" in done.stderr
    assert "may be left" not in done.stderr


@pytest.mark.parametrize("who", ["zygote", "agent"])
def test_one_that_is_stopped_while_packages_load(script, tmp_path, who):
    """The package is named that it was in the middle of."""
    site = tmp_path / "lib"
    site.mkdir()
    pid = "os.getpid()" if who == "zygote" else "os.getppid()"
    (site / "slow.py").write_text(
        f"import os, signal, time\ntime.sleep(0.5)\nos.kill({pid}, signal.SIGSTOP)\n"
        "time.sleep(300)\n"
    )
    done = script("""
        import sys, phalanx
        sys.path.append("lib")
        phalanx.launch(print, workers_per_host=1, preload=["slow"], start_timeout=8)
    """)
    assert "localhost: still importing slow" in done.stderr
    assert "may be left" not in done.stderr


@pytest.mark.parametrize("find_it", [the_zygote, the_agent])
def test_one_that_is_stopped_between_the_order_and_the_start(tmp_path, find_it):
    """After its first word, with everything loaded."""
    (tmp_path / "late.py").write_text(
        "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
        "def f():\n    pass\n"
    )
    started = phalanx_launch("late.py:f", "--workers-per-host", "2", "--start-timeout", "4")
    log = tmp_path / "logs"
    wait_until(lambda: any("packages loaded" in p.read_text() for p in log.glob("*localhost.log")))
    os.kill(find_it(), signal.SIGSTOP)
    (tmp_path / "go").touch()
    _, errors = started.communicate(timeout=30)
    assert started.returncode == 1
    assert "StartTimeout: timed out after 4 s" in errors
    assert "localhost: its zygote has not started the workers" in errors


def test_a_function_that_is_still_being_loaded_is_named(tmp_path, own_state):
    """It is this process that is waited for."""
    (tmp_path / "late.py").write_text(
        "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
        "def f():\n    pass\n"
    )
    before = set(own_state.glob("*")) if own_state.exists() else set()
    started = phalanx_launch("late.py:f", "--workers-per-host", "1", "--start-timeout", "6")

    def has_failed():
        statuses = {path for path in own_state.glob("*/status.json") if path.parent not in before}
        return any("FAILED" in path.read_text() for path in statuses)

    wait_until(has_failed, timeout=30)
    (tmp_path / "go").touch()
    _, errors = started.communicate(timeout=30)
    assert "localhost: the launcher is still loading the function" in errors


@pytest.mark.parametrize("find_it", [the_zygote, the_agent])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_one_is_stopped(script, tmp_path, find_it, number):
    """It is continued, so that workers are stopped in order; nothing is left."""
    code = SLEEPING.replace(
        "time.sleep(300)\n\n    if", "time.sleep(300)\n\n    import signal\n    if"
    ).replace(
        'name = "up-"',
        'signal.signal(15, lambda *_: (open("told-" + os.environ["RANK"], "w"), os._exit(0)))\n'
        '        name = "up-"',
    )
    code = code.replace("import os, sub", "import signal, os, sub")
    process = script.start(code.replace("per_host=2", "per_host=2, stop_grace=30"))
    pids = wait_up(tmp_path)
    os.kill(find_it(), signal.SIGSTOP)
    process.send_signal(number)
    _, errors = process.communicate(timeout=25)
    assert process.returncode == -number, errors
    assert {p.name for p in tmp_path.glob("told-*")} == {"told-0", "told-1"}
    sleepers_gone(pids)
    assert not phalanx_processes()
    if number == signal.SIGINT:
        assert "phalanx: interrupted; nothing is left running" in errors


@pytest.mark.parametrize("find_it", [the_zygote, the_agent])
def test_a_signal_while_one_hangs(script, tmp_path, find_it):
    """What cannot be continued is killed, soon after the grace."""
    process = script.start(SLEEPING.replace("per_host=2", "per_host=2, stop_grace=0.5"))
    pids = wait_up(tmp_path)
    with Stopper(find_it()):
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        took = time.monotonic() - began
    assert process.returncode == -signal.SIGINT
    assert took < 0.5 + 1 + SLACK
    assert "phalanx: interrupted; nothing is left running" in errors
    assert not any(map(is_alive, pids))  # it was seen, so it is so by now
    assert not phalanx_processes()


def test_after_ctrl_c_it_is_said_how_to_see_where_workers_hang(tmp_path):
    """While that can be seen."""
    (tmp_path / "stuck.py").write_text(
        "import pathlib, signal, time\n"
        "def f():\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    pathlib.Path('ready').touch()\n"
        "    while True:\n"
        "        time.sleep(0.1)\n"
    )
    process = phalanx_launch("stuck.py:f", "--stop-grace", "100", cwd=tmp_path)
    wait_until((tmp_path / "ready").exists)
    process.send_signal(signal.SIGINT)
    said = process.stderr.readline()
    assert ": stopping 1 worker: 'phalanx stacks f-" in said
    words = said.split("'")[1].split()
    shown = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, timeout=60
    )
    assert "in stuck.py:6 in f" in shown.stdout, shown
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1].endswith("nothing is left running\n")


@pytest.mark.parametrize("find_it", [the_zygote, the_agent])
def test_cancel_while_one_hangs(script, tmp_path, find_it, monkeypatch):
    """As from another terminal."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # no other app runs there
    process = script.start(SLEEPING.replace("per_host=2", "per_host=2, stop_grace=0.5"))
    pids = wait_up(tmp_path)
    with Stopper(find_it()):
        done = subprocess.run(
            [sys.executable, "-m", "phalanx", "cancel"], capture_output=True, text=True, timeout=30
        )
        _, errors = process.communicate(timeout=30)
    assert "CANCELLED" in done.stdout, done.stderr
    assert "Cancelled: the app was cancelled" in errors
    sleepers_gone(pids)


def test_cancel_says_what_it_waits_for(script, tmp_path, monkeypatch):
    """A worker that ignores SIGTERM has its grace: its end is waited for, and what then follows."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    process = script.start("""
        import os, pathlib, signal, time, phalanx

        def f():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            pathlib.Path("pid.tmp").write_text(str(os.getpid()))
            os.rename("pid.tmp", "pid")
            time.sleep(300)

        if __name__ == "__main__":
            phalanx.launch(f, workers_per_host=1, stop_grace=600)
    """)
    wait_until((tmp_path / "pid").exists)
    command = [sys.executable, "-m", "phalanx", "cancel"]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **streams) as cancel:
        said = cancel.stderr.readline()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        cancel.communicate(timeout=30)
    process.communicate(timeout=30)
    assert said.startswith("phalanx cancel: waiting for ")
    assert said.rstrip().endswith(" to end; what still runs after 600 s is killed")


def test_a_warm_agent_that_hangs_is_replaced_and_ended():
    """With its zygote, which hangs as well."""
    with phalanx.Launcher(workers_per_host=1) as launcher:
        launcher.run(os.getpid)
        stopped = [the_agent(), the_zygote()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        assert len(launcher.run(os.getpid)) == 1
        assert not any(map(is_alive, stopped))


def test_a_zygote_that_is_stopped_while_its_workers_end_is_woken(script, tmp_path):
    """It alone hears of their end: nothing else would ever happen."""
    process = script.start("""
        import os, time, phalanx

        def f():
            open(f"up-{os.environ['RANK']}", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)
            return 1

        print(*phalanx.launch(f, workers_per_host=2).values)
    """)
    wait_until(lambda: len(list(tmp_path.glob("up-*"))) == 2)
    os.kill(the_zygote(), signal.SIGSTOP)
    (tmp_path / "go").touch()
    out, errors = process.communicate(timeout=60)
    assert out == "1 1\n", errors


def test_an_agent_and_its_zygote_that_hang_are_ended_after_host_timeout(script, tmp_path):
    """Both: nobody of them sees the other's end."""
    process = script.start(
        SLEEPING.replace("per_host=2", "per_host=2, host_timeout=1, stop_grace=0.5")
    )
    pids = wait_up(tmp_path)
    for pid in (the_zygote(), the_agent()):
        os.kill(pid, signal.SIGSTOP)
    _, errors = process.communicate(timeout=20)
    assert "AgentLost: lost the agent on localhost: no heartbeat for 1 s" in errors
    assert "may be left" not in errors
    sleepers_gone(pids)


def test_an_interrupt_that_was_caught_leaves_the_programs_hook_as_it_was(script):
    """Also after several, and under a hook that the program puts over ours meanwhile."""
    done = script("""
        import gc, os, signal, sys, phalanx

        def mine(kind, error, trace):
            print("mine:", error, file=sys.stderr)

        def interrupted():
            try:
                phalanx.launch(os.kill, args=(os.getpid(), signal.SIGINT), workers_per_host=1)
            except KeyboardInterrupt as error:
                return error

        sys.excepthook = mine
        kept = [interrupted(), interrupted()]
        assert None not in kept and sys.excepthook is not mine
        ours, sys.excepthook = sys.excepthook, lambda *error: ours(*error)
        kept.append(interrupted())
        sys.excepthook = ours
        kept.clear()
        gc.collect()
        print(sys.excepthook is mine)
        raise ValueError("last")
    """)
    assert done.stdout == "True\n", done.stderr
    assert done.stderr.endswith("mine: last\n")
