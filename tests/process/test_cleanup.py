"""Cleaning up: whatever dies, nothing of ours stays. The autouse fixture looks for the rest."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import phalanx
from phalanx import AgentLost, WorkerFailed
from tests.conftest import is_alive, phalanx_processes, wait_until

SLEEPING = """
    import os, subprocess, sys, time, phalanx

    def f():
        sleeper = [sys.executable, "-c", "import time; time.sleep(300)"]
        children = [subprocess.Popen(sleeper),
                    subprocess.Popen(sleeper, start_new_session=True)]
        daemon = os.fork()
        if daemon == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            time.sleep(300)
        os.waitpid(daemon, 0)
        name = "up-" + os.environ["RANK"]
        with open(name + ".tmp", "w") as file:
            file.write(" ".join(str(c.pid) for c in children))
        os.rename(name + ".tmp", name)
        time.sleep(300)

    if __name__ == "__main__":
        phalanx.launch(f, workers_per_host=2)
"""


def wait_up(tmp_path, count=2):
    """Both ranks run, and their children."""
    wait_until(lambda: len([p for p in tmp_path.glob("up-*") if p.suffix != ".tmp"]) == count)
    return [int(pid) for p in tmp_path.glob("up-*") for pid in p.read_text().split()]


def find(title):
    """Pids of processes of ours whose title ends so."""
    found = []
    for pid in phalanx_processes():
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                if file.read().replace("\0", " ").strip().endswith(title):
                    found.append(pid)
        except OSError:
            pass
    return found


def agents():
    found = []
    for pid in phalanx_processes():
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                if " agent" in file.read().rstrip("\0"):
                    found.append(pid)
        except OSError:
            pass
    return found


def sleepers_gone(pids):
    wait_until(lambda: not any(map(is_alive, pids)), message="grandchildren are left")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_signal_to_the_launcher_leaves_nothing(script, tmp_path, number):
    """Not the workers, not their children, not the ones that made sessions of their own."""
    process = script.start(SLEEPING)
    pids = wait_up(tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -number
    sleepers_gone(pids)
    wait_until(lambda: not phalanx_processes())
    assert "Traceback" not in errors


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.1, 0.2, 0.4, 0.8])
def test_ctrl_c_while_starting(script, tmp_path, delay):
    """At any moment of the start."""
    process = script.start("""
        import phalanx
        phalanx.launch
        print("go", flush=True)

        def f():
            import torch, time
            time.sleep(300)

        phalanx.launch(f, workers_per_host=2)
    """)
    process.stdout.readline()
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "phalanx/" not in errors or "Traceback" not in errors, errors
    wait_until(lambda: not phalanx_processes())


def test_ctrl_c_while_stopping_cuts_the_grace_short(script, tmp_path):
    """The first Ctrl-C waits for the grace, the second does not."""
    process = script.start("""
        import signal, time, phalanx

        def f():
            signal.signal(signal.SIGTERM, lambda *_: open("terminated", "w").close())
            open("up-0", "w").close()
            while True:
                time.sleep(1)

        phalanx.launch(f, workers_per_host=1, stop_grace=100)
    """)
    wait_up(tmp_path, 1)
    process.send_signal(signal.SIGINT)
    wait_until((tmp_path / "terminated").exists)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in errors


def test_the_program_may_catch_the_interrupt(script, tmp_path):
    """It is a KeyboardInterrupt, raised when all is stopped."""
    process = script.start("""
        import time, phalanx

        def f():
            open("up-0", "w").close()
            time.sleep(300)

        try:
            phalanx.launch(f, workers_per_host=1)
        except KeyboardInterrupt:
            print("caught")
    """)
    wait_up(tmp_path, 1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("caught\n", 0)


def test_a_killed_agent_takes_its_workers_along_and_the_launcher_raises(script, tmp_path):
    """Nothing of either is left."""
    process = script.start(SLEEPING)
    pids = wait_up(tmp_path)
    (agent,) = agents()
    os.kill(agent, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "AgentLost: lost the agent on localhost: it was killed by SIGKILL" in errors
    assert "may be missing" not in errors
    assert "Ranks 0-1 on localhost were lost with it." in errors and "Also failed" not in errors
    sleepers_gone(pids)


PRINTING = """
    import os, sys, time, phalanx

    def f():
        for i in range(40):
            os.write(1, b"".join(b"line %d of rank %s\\n" % (i * 5000 + k, os.environb[b"RANK"])
                                 for k in range(5000)))
        with open("up-" + os.environ["RANK"], "w"):
            pass
        time.sleep(300)

    if __name__ == "__main__":
        phalanx.launch(f, hostnames=[sys.argv[1]], workers_per_host=2, log_spec=phalanx.DefaultLogSpec())
"""


@pytest.mark.parametrize(
    ("where", "victim", "number"),
    [
        ("localhost", "agent", signal.SIGKILL),
        ("localhost", "agent", signal.SIGTERM),
        ("localhost", "zygote", signal.SIGKILL),
        ("other", "agent", signal.SIGTERM),
        ("other", "zygote", signal.SIGKILL),
    ],
)
def test_what_was_printed_before_a_process_of_ours_is_killed_is_not_lost(
    script, tmp_path, monkeypatch, where, victim, number
):
    """An agent that ends hands on the rest first; of one that was killed the launcher reads it."""
    ssh = tmp_path / "bin" / "ssh"  # an agent as another host's
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec /bin/sh -c "$last"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    process = script.start(PRINTING, where)
    wait_up(tmp_path)
    (pid,) = agents() if victim == "agent" else find("zygote")
    os.kill(pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "AgentLost" in errors, errors
    assert "may be missing" not in errors
    for rank in range(2):
        (log,) = tmp_path.glob(f"logs/*[[]{rank}].log")
        assert log.read_text() == "".join(f"line {i} of rank {rank}\n" for i in range(200_000))


def test_a_killed_zygote_takes_its_workers_along_and_the_launcher_raises(script, tmp_path):
    """The agent is a subreaper for this."""
    process = script.start(SLEEPING)
    pids = wait_up(tmp_path)
    (zygote,) = find("zygote")
    os.kill(zygote, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert "AgentLost: lost the agent on localhost: the zygote died (killed by SIGKILL)" in errors
    sleepers_gone(pids)


def test_a_terminated_agent_stops_its_workers_in_order(script, tmp_path):
    """SIGTERM to an agent is forwarded with the grace."""
    process = script.start(SLEEPING)
    pids = wait_up(tmp_path)
    (agent,) = agents()
    os.kill(agent, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert "AgentLost" in errors
    sleepers_gone(pids)


def test_grandchildren_die_with_their_worker_while_others_go_on(script, tmp_path):
    """Not only at the end of the launch."""
    process = script.start("""
        import os, subprocess, sys, time, phalanx

        def f():
            if os.environ["RANK"] == "0":
                child = subprocess.Popen(["sleep", "300"])
                with open("child", "w") as file:
                    file.write(str(child.pid))
                return child.pid
            while not os.path.exists("go"):
                time.sleep(0.01)

        phalanx.launch(f, workers_per_host=2)
    """)
    wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
    sleepers_gone([int((tmp_path / "child").read_text())])
    assert process.poll() is None
    (tmp_path / "go").touch()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_dataloaders_workers_die_with_theirs(script, tmp_path):
    """With the real thing."""
    process = script.start("""
        import os, torch, phalanx
        from torch.utils.data import DataLoader

        def f():
            loader = DataLoader(list(range(1000)), num_workers=2, persistent_workers=True)
            next(iter(loader))
            with open("up-0", "w") as file:
                file.write(" ".join(open(f"/proc/self/task/{os.getpid()}/children").read().split()))
            os.kill(os.getpid(), 9)

        phalanx.launch(f, workers_per_host=1)
    """)
    _, errors = process.communicate(timeout=60)
    assert "WorkerFailed" in errors and "SIGKILL" in errors
    sleepers_gone([int(p) for p in (tmp_path / "up-0").read_text().split()])


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace():
    """The others' failure is raised all the same."""

    def f():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if int(os.environ["RANK"]) == 0:
            time.sleep(0.3)
            raise ValueError("x")
        time.sleep(300)

    began = time.monotonic()
    with pytest.raises(ValueError):
        phalanx.launch(f, workers_per_host=2, stop_grace=0.5)
    assert time.monotonic() - began > 0.5


def test_a_long_grace_is_honoured(tmp_path):
    """A worker that needs its time to stop gets it."""

    def f():
        import sys

        def stop(*_):
            time.sleep(1.5)
            open(f"saved-{os.environ['RANK']}", "w").close()
            sys.exit(0)

        signal.signal(signal.SIGTERM, stop)
        open(f"up-{os.environ['RANK']}", "w").close()
        if int(os.environ["RANK"]) == 0:
            while not os.path.exists("up-1"):
                time.sleep(0.01)
            raise ValueError("x")
        time.sleep(300)

    with pytest.raises(ValueError):
        phalanx.launch(f, workers_per_host=2, stop_grace=120)
    assert (tmp_path / "saved-1").exists()


def test_sigusr2_to_the_agent_reaches_the_workers_that_catch_it(script, tmp_path):
    """And ends nothing, not even those that do not catch it."""
    process = script.start("""
        import os, signal, time, phalanx

        def f():
            got = []
            rank = os.environ["RANK"]
            if rank == "0":
                signal.signal(signal.SIGUSR2, lambda *_: got.append(1))
            open("up-" + rank, "w").close()
            while not (got or os.path.exists("got")):
                time.sleep(0.01)
            open("got", "w").close()
            return len(got)

        print(list(phalanx.launch(f, workers_per_host=2)))
    """)
    wait_up(tmp_path)
    (agent,) = agents()
    os.kill(agent, signal.SIGUSR2)
    out, errors = process.communicate(timeout=60)
    assert out == "[1, 0]\n", errors


def test_the_callers_signal_handlers_are_as_they_were():
    """After success and after failure, default ones and the program's own."""

    def own(*_):
        pass

    before = signal.getsignal(signal.SIGTERM)
    previous = signal.signal(signal.SIGINT, own)
    try:
        phalanx.launch(time.time, workers_per_host=1)
        with pytest.raises(WorkerFailed):
            phalanx.launch(os._exit, args=(1,), workers_per_host=1)
        assert signal.getsignal(signal.SIGINT) is own
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGINT, previous)


def test_a_handler_of_the_programs_own_that_raises_leaves_nothing(script, tmp_path):
    """For programs that deal with signals themselves."""
    process = script.start("""
        import signal, sys, time, phalanx

        def f():
            open("up-0", "w").close()
            time.sleep(300)

        def handler(*_):
            raise RuntimeError("mine")

        signal.signal(signal.SIGTERM, handler)
        try:
            phalanx.launch(f, workers_per_host=1)
        except RuntimeError as error:
            print(error)
    """)
    wait_up(tmp_path, 1)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert out == "mine\n"


def test_a_silent_agent_is_noticed_within_host_timeout(script, tmp_path):
    """On one machine: the agent is stopped, so that nothing is heard of it."""
    process = script.start(
        SLEEPING.replace("workers_per_host=2", "workers_per_host=2, host_timeout=1, stop_grace=0.5")
    )
    pids = wait_up(tmp_path)
    (agent,) = agents()
    os.kill(agent, signal.SIGSTOP)
    _, errors = process.communicate(timeout=60)
    assert "AgentLost: lost the agent on localhost: no heartbeat for 1 s" in errors
    sleepers_gone(pids)


def test_an_agent_ends_by_itself_when_its_launcher_is_silent(script, tmp_path):
    """Its workers end with it, and the launcher says so once it goes on."""
    process = script.start(
        SLEEPING.replace(
            "workers_per_host=2", "workers_per_host=2, orphan_timeout=1, host_timeout=2"
        )
    )
    pids = wait_up(tmp_path)
    process.send_signal(signal.SIGSTOP)
    sleepers_gone(pids)
    wait_until(lambda: not [p for p in agents() if is_alive(p)])
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=60)
    assert "AgentLost" in errors


def test_a_launcher_that_was_stopped_for_longer_than_host_timeout_goes_on(script, tmp_path):
    """Ctrl-Z and back, a laptop that slept."""
    process = script.start(
        """
        import os, time, phalanx

        def f():
            open("up-" + os.environ["RANK"], "w").close()
            while not os.path.exists("go"):
                print("x" * 1000)
            return 1

        print(sum(phalanx.launch(f, workers_per_host=2, host_timeout=1)))
    """,
    )
    wait_up(tmp_path)
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    process.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    (tmp_path / "go").touch()
    out, errors = process.communicate(timeout=60)
    assert out.splitlines()[-1] == "2", errors


def test_an_app_that_nobody_waited_for_ends_with_the_program(script, tmp_path):
    """The handle is dropped, the program ends: so does the app."""
    done = script("""
        import time, os, phalanx

        def f():
            open("up-0", "w").close()
            time.sleep(300)

        app = phalanx.Launcher(workers_per_host=1).start(f)
        while not os.path.exists("up-0"):
            time.sleep(0.01)
        print("end")
    """)
    assert done.stdout == "end\n", done.stderr
    assert done.stderr == ""


def test_a_child_forked_during_a_launch_does_not_keep_it_alive(script, tmp_path):
    """The user's own fork inherits the pipes; the launcher's death must be seen all the same."""
    process = script.start("""
        import os, threading, time, phalanx

        def f():
            open("up-0", "w").close()
            time.sleep(300)

        app = phalanx.Launcher(workers_per_host=1).start(f)
        while not os.path.exists("up-0"):
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            while not os.path.exists("go"):
                time.sleep(0.01)
            os._exit(0)
        with open("child.tmp", "w") as file:
            file.write(str(child))
        os.rename("child.tmp", "child")
        app.wait()
    """)
    wait_until((tmp_path / "child").exists)
    process.kill()
    wait_until(lambda: not phalanx_processes())
    child = int((tmp_path / "child").read_text())
    assert is_alive(child)
    (tmp_path / "go").touch()
    process.communicate(timeout=60)
    wait_until(lambda: not is_alive(child))


def test_an_import_that_never_ends_does_not_outlive_the_launcher(script, tmp_path):
    """The zygote is deaf while it imports: the kernel ends it."""
    site = tmp_path / "lib"
    site.mkdir()
    (site / "endless.py").write_text("import time\nopen('up-0', 'w').close()\ntime.sleep(300)\n")
    process = script.start("""
        import sys, phalanx
        sys.path.append("lib")
        phalanx.launch(print, workers_per_host=1, preload=["endless"])
    """)
    wait_up(tmp_path, 1)
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not phalanx_processes())


def test_start_timeout_says_what_was_awaited(script, tmp_path):
    """Every wait has a deadline, and says so."""
    site = tmp_path / "lib"
    site.mkdir()
    (site / "endless.py").write_text("import time\ntime.sleep(300)\n")
    done = script("""
        import sys, phalanx
        sys.path.append("lib")
        phalanx.launch(print, workers_per_host=1, preload=["endless"], start_timeout=3)
    """)
    assert "StartTimeout: timed out after 3 s" in done.stderr
    assert "localhost: still importing endless" in done.stderr


def test_many_short_launches_leak_nothing():
    """Descriptors, threads and processes are counted by the fixture."""
    for i in range(5):
        assert list(phalanx.launch(lambda i=i: i, workers_per_host=2)) == [i, i]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM])
def test_a_signal_to_all_processes_ends_no_zygote(script, tmp_path, number):
    """As Slurm sends it to a step: what workers do with it is theirs."""
    process = script.start(
        """
        import os, signal, sys, time, phalanx

        def f(number):
            got = []
            signal.signal(number, lambda *_: got.append(1))
            assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
            open("up-0", "w").close()
            while not got:
                time.sleep(0.01)
            while not os.path.exists("go"):
                time.sleep(0.01)
            return "went on"

        print(*phalanx.launch(f, args=(int(sys.argv[1]),), workers_per_host=1))
    """,
        str(int(number)),
    )
    wait_until(lambda: (tmp_path / "up-0").exists())
    for pid in (*find("zygote"), *find("rank 0")):
        os.kill(pid, number)
    (tmp_path / "go").touch()
    out, errors = process.communicate(timeout=60)
    assert out == "went on\n", errors
