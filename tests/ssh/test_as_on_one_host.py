"""What holds on one machine holds over ssh: output, signals, many apps, odd functions."""

import functools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx
from tests.conftest import wait_until
from tests.process.terminal import Terminal


def test_many_lines_from_two_hosts_arrive_whole(launcher):
    """None lost, none broken, in order."""

    def talk(count):
        for i in range(count):
            print(f"{i} {'x' * 40}")

    count = 100_000
    launcher().run(talk, {"count": count})
    for host in ("box1", "box2"):
        (log,) = Path("logs").glob(f"*-{host}[[]0].log")
        lines = log.read_text().splitlines()
        assert len(lines) == count
        assert all(line == f"{i} {'x' * 40}" for i, line in enumerate(lines))


def test_bytes_of_any_kind_survive(launcher):
    """Not UTF-8, carriage returns, a last line without an end."""

    def write():
        os.write(1, b"\xff\xfe\0 bar 10%\r bar 20%\r\nlast")

    launcher(1).run(write)
    (log,) = Path("logs").glob("*-box1[[]0].log")
    assert log.read_bytes() == b"\xff\xfe\0 bar 10%\r bar 20%\r\nlast"


def test_a_signal_to_an_agent_reaches_the_workers(launcher, cluster):
    """Without ending the app."""

    def wait():
        seen = []
        signal.signal(signal.SIGUSR2, lambda *_: seen.append(1))
        print("ready")
        while not seen:
            time.sleep(0.01)
        return socket.gethostname()

    app = launcher(1).start(wait)
    wait_until(lambda: any("ready" in line.text for line in app.logs()))
    (agent,) = cluster.hosts[0].pids(" agent")
    cluster.hosts[0].enter("kill", "-USR2", str(agent))
    assert app.result(20).rank(0) == "box1"


def test_ten_apps_at_once_on_one_host(launcher):
    """No two stores on one port."""

    def reduce():
        import torch
        import torch.distributed as dist

        value = torch.ones(1)
        dist.all_reduce(value)
        return value.item()

    apps = [launcher(1, 2).start(reduce) for _ in range(10)]
    assert [list(app.result(90)) for app in apps] == [[2.0, 2.0]] * 10


def test_twenty_apps_at_once_on_one_host_have_a_port_each(launcher):
    """Bound before anybody needs it."""
    apps = [launcher(1).start(os.getenv, args=("MASTER_PORT",)) for _ in range(20)]
    assert len({app.result(90).rank(0) for app in apps}) == 20


def test_functions_of_every_kind(launcher):
    """A lambda, a closure, a partial, a bound method, an object that can be called."""

    class Callable:
        def __init__(self, value):
            self.value = value

        def __call__(self):
            return self.value

        def method(self):
            return self.value + 1

    captured = 3
    with launcher(1) as run:
        assert run.run(lambda: captured).rank(0) == 3
        assert run.run(functools.partial(pow, 2), args=(5,)).rank(0) == 32
        assert run.run(Callable(4)).rank(0) == 4
        assert run.run(Callable(4).method).rank(0) == 5


def test_a_script_from_stdin(cluster):
    """It has no file, here or there."""
    code = f"""
import phalanx

def name():
    import socket
    return socket.gethostname()

print(list(phalanx.launch(name, hostnames={cluster.names[:2]!r}, workers_per_host=1,
                          ssh_config_file={str(cluster.ssh_config)!r})))
"""
    done = subprocess.run(
        [sys.executable, "-"], input=code, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "['box1', 'box2']", done.stderr


def test_a_value_that_cannot_be_carried_names_rank_and_host(launcher):
    """And its type."""

    def lock():
        import threading

        return threading.Lock() if os.environ["RANK"] == "1" else None

    with pytest.raises(phalanx.ResultError, match=r"rank 1 on box2 returned a _thread.lock"):
        launcher().run(lock)


def test_an_error_while_a_module_is_imported_shows_its_traceback(remote_script):
    """The user's own."""
    Path("broken.py").write_text(
        "import os\nif 'RANK' in os.environ:\n    1 / 0\n\ndef f():\n    pass\n"
    )
    done = remote_script("import broken\nlauncher.run(broken.f)\n")
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert re.search(r'File ".*/broken\.py", line 3', done.stderr)


def test_progress_is_shown_while_a_project_is_sent(cluster):
    """When it takes longer than a moment."""
    Path("data.bin").write_bytes(os.urandom(1_500_000))
    Path("program.py").write_text("def f():\n    return 1\n")
    cluster.hosts[0].slow_down("4mbit")
    command = [sys.executable, "-m", "phalanx", "launch", "program.py:f", "--hostnames", "box1"]
    command += ["--workers-per-host", "1", "--ssh-config-file", str(cluster.ssh_config)]
    terminal = Terminal(*command)
    terminal.wait_for("sending the project to box1: ")
    assert terminal.finish() == 0
    assert "rank 0: 1" in "\n".join(terminal.lines)


def test_an_app_on_hosts_is_awaited_in_asyncio(launcher):
    """As on one machine."""
    import asyncio

    async def main():
        first, second = launcher(1).start(os.getpid), launcher(1).start(socket.gethostname)
        return (await second).rank(0), (await first).rank(0)

    assert asyncio.run(main())[0] == "box1"
