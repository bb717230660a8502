"""What every command that leads to a host must do for a launch, whatever the command is.

Subclass `HostSuite` and give the fixture `way`. A command may be slow, noisy or refused; it is
killed, it hangs, or either side ends it.
"""

import contextlib
import dataclasses
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

import phalanx
from phalanx._launcher.launch_options import LaunchOptions
from phalanx._launcher.launcher import _pack
from phalanx._launcher.planning.listed_hosts import ListedHost
from phalanx._launcher.start import prepare_app
from phalanx._launcher.transport.targets import Target
from tests.conftest import wait_until


@dataclass
class Way:
    """How a host is reached; `refused` is a command that does not lead anywhere."""

    target: Target
    refused: Target
    says: str
    """What it says then."""

    def through(self, shell):
        """The same, with some shell that runs there before what is given."""
        if self.target.through_shell:
            more = (f"{shell};",)
        else:
            more = ("sh", "-c", f'{shell}; exec "$@"', "sh")
        return dataclasses.replace(self.target, transport=(*self.target.transport, *more))


def start(target, func, kwargs=None, **options):
    """A launch of one worker on a host."""
    settings = LaunchOptions(workers_per_host=1, **options)
    hosts = [ListedHost(target.name, target)]
    return prepare_app(settings, _pack(func, (), kwargs), hosts=hosts).start()


@contextlib.contextmanager
def running(target, **options):
    """An app whose worker has begun, and the processes here that lead there."""
    before = set(_children())

    def work():
        print("here", flush=True)
        threading.Event().wait(120)

    app = start(target, work, **options)
    try:
        lines = app.logs(follow=True)
        assert next(lines).text == "here"
        yield app, [pid for pid in _children() if pid not in before]
    finally:
        app.cancel(0.0)
        app.wait(60)


def _children():
    tasks = Path("/proc/self/task")
    return [int(c) for task in tasks.iterdir() for c in (task / "children").read_text().split()]


class HostSuite:
    """Subclass it, with a fixture `way`."""

    def test_a_function_runs_there(self, way):
        """Large values go there and back whole."""
        data = os.urandom(3 << 20)
        assert list(start(way.target, lambda data: data[::-1], {"data": data}).result(60)) == [
            data[::-1]
        ]

    def test_what_a_login_prints_first_does_no_harm(self, way, capfd):
        """Whatever it is."""
        noisy = way.through("echo welcome; seq 20000; echo careful >&2")
        assert list(start(noisy, lambda: 7).result(60)) == [7]

    def test_a_login_that_takes_a_while_is_waited_for(self, way):
        """For as long as `start_timeout` has it."""
        assert list(start(way.through("sleep 1"), lambda: 7).result(60)) == [7]

    def test_a_login_that_takes_too_long_is_given_up(self, way):
        """And nothing is left of it: what hangs there sees the end of its input."""
        app = start(way.through("cat >/dev/null"), lambda: 7, start_timeout=1.0)
        with pytest.raises((phalanx.StartTimeout, phalanx.StartFailed), match=way.target.name):
            app.result(60)

    def test_a_refusal_is_told_in_the_commands_own_words(self, way):
        """With the host's name."""
        with pytest.raises(phalanx.StartFailed, match=way.says) as caught:
            start(way.refused, lambda: 7).result(60)
        assert way.refused.name in str(caught.value)

    def test_a_host_without_the_interpreter_says_so(self, way):
        """Rather than that it was lost."""
        target = dataclasses.replace(way.target, pythons=("/nowhere/python",))
        with pytest.raises(phalanx.StartFailed, match="no /nowhere/python found"):
            start(target, lambda: 7).result(60)

    def test_a_command_that_is_killed_is_a_lost_host(self, way):
        """At once."""
        with running(way.target) as (app, pids):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with pytest.raises(phalanx.AgentLost) as caught:
                app.result(60)
            assert caught.value.hostname == way.target.name

    def test_a_command_that_hangs_is_a_lost_host(self, way):
        """After `host_timeout`, as if the network were cut."""
        with running(way.target, host_timeout=2.0) as (app, pids):
            try:
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                with pytest.raises(phalanx.AgentLost, match="no heartbeat for 2 s"):
                    app.result(60)
            finally:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)

    def test_an_agent_that_dies_there_is_a_lost_host(self, way):
        """The command ends with it."""

        def kill_agent():
            stat = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
            threading.Event().wait(120)

        with pytest.raises(phalanx.AgentLost) as caught:
            start(way.target, kill_agent).result(60)
        assert caught.value.hostname == way.target.name

    def test_cancelling_ends_what_runs_there(self, way):
        """In order: the worker is told first."""
        with running(way.target) as (app, pids):
            app.cancel()
            with pytest.raises(phalanx.Cancelled):
                app.result(60)
            wait_until(lambda: not {*pids} & {*_children()})
