"""What every command that leads to a host must do for a launch, whatever the command is.

Subclass `HostSuite` and give the fixture `way`. A command may be slow, noisy or refused; it is
killed, it hangs, or either side ends it.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import phalanx
from phalanx._launcher.launch_options import LaunchOptions
from phalanx._launcher.launcher import _pack
from phalanx._launcher.planning.listed_hosts import ListedHost
from phalanx._launcher.start import prepare_app
from phalanx._launcher.transport import dial
from phalanx._launcher.transport.login import LoginEnded
from phalanx._launcher.transport.targets import Target
from phalanx._launcher.warm.pool import Pool
from tests.conftest import wait_until


@dataclass
class Way:
    """How a host is reached; `refused` is a command that does not lead anywhere."""

    target: Target
    refused: Target
    says: str
    """What it says then."""

    def cut(self, pids, number):
        """Signal the commands that these processes here are, each with what it has started here."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def through(self, shell):
        """The same, with some shell that runs there before what is given."""
        if self.target.through_shell:
            more = (f"{shell};",)
        else:
            more = ("sh", "-c", f'{shell}; exec "$@"', "sh")
        return dataclasses.replace(self.target, transport=(*self.target.transport, *more))


def start(target, func, kwargs=None, **options):
    """A launch of one worker on a host; unless said otherwise, a broken stream is a lost host."""
    settings = LaunchOptions(**{"workers_per_host": 1, "reconnect_timeout": 0.0, **options})
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
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found += map(int, (task / "children").read_text().split())
    return found


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


class ReconnectSuite:
    """A stream that breaks is not a lost host. Subclass it, with a fixture `way` whose `cut` works.

    What was started there must outlive the command that led to it.
    """

    def test_an_app_does_not_notice_that_its_stream_breaks(self, way):
        """Every line comes once and in order, and so does a large value."""
        count, data = 30_000, os.urandom(12 << 20)

        def work(data):
            for number in range(count):
                print(number)
                if number % 1000 == 0:
                    sys.stdout.flush()
                    time.sleep(0.05)
            return data

        with cuttable(way, work, {"data": data}) as (app, cut):
            numbers = []
            for line in app.logs(follow=True):
                numbers.append(int(line.text))
                if len(numbers) in (1, 5000, 20_000):
                    cut()
            assert list(app.result(60)) == [data]
            assert numbers == list(range(count))

    def test_a_command_that_hangs_is_replaced(self, way):
        """After `host_timeout`; the app goes on meanwhile."""

        def work():
            print("here", flush=True)
            time.sleep(4)
            return 7

        with cuttable(way, work, host_timeout=1.0) as (app, cut):
            assert next(app.logs(follow=True)).text == "here"
            cut(signal.SIGSTOP)
            assert list(app.result(60)) == [7]

    def test_an_agent_that_dies_there_is_lost_at_once(self, way):
        """Nobody waits for one that will not come back."""

        def kill_agent():
            stat = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
            threading.Event().wait(120)

        app = start(way.target, kill_agent, reconnect_timeout=600.0)
        with pytest.raises(phalanx.AgentLost, match="the agent is gone"):
            app.result(60)

    def test_a_host_that_cannot_be_reached_again_is_lost(self, way, monkeypatch):
        """After `reconnect_timeout`, with the reason; its agent ends by itself."""
        with cuttable(way, waiting(), reconnect_timeout=1.0) as (app, cut):
            assert next(app.logs(follow=True)).text == "here"
            monkeypatch.setattr(dial, "reattach", functools.partial(_refuse, way))
            cut()
            with pytest.raises(phalanx.AgentLost, match="reconnecting failed: .*not now"):
                app.result(60)

    def test_cancelling_ends_what_runs_there_also_without_a_stream(self, way, monkeypatch):
        """The host is asked again, by another login."""
        with cuttable(way, waiting()) as (app, cut):
            assert next(app.logs(follow=True)).text == "here"
            monkeypatch.setattr(dial, "reattach", functools.partial(_refuse, way))
            cut()
            app.cancel(0.5)
            with pytest.raises(phalanx.Cancelled):
                app.result(60)

    def test_an_agent_that_was_kept_warm_outlives_a_stream(self, way):
        """Between two apps, and within the second."""
        options = LaunchOptions(workers_per_host=1, reconnect_timeout=30.0)
        hosts = [ListedHost(way.target.name, way.target)]
        before, agents = set(_children()), []
        with Pool() as pool:
            for _ in range(2):
                work = _pack(telling_agent(), (), None)
                app = prepare_app(options, work, hosts=hosts, pools=[pool]).start()
                assert next(app.logs(follow=True)).text == "here"
                way.cut([pid for pid in _children() if pid not in before], signal.SIGKILL)
                agents += list(app.result(60))
        assert agents[0] == agents[1]


def waiting():
    """Work that takes for ever: made here, since hosts do not have this module."""

    def wait():
        print("here", flush=True)
        threading.Event().wait(120)

    return wait


def telling_agent():
    """Work that gives the process of its agent, after a while."""

    def tell():
        print("here", flush=True)
        time.sleep(1)
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])

    return tell


def _refuse(way, *_):
    raise LoginEnded("not now", way.target)


@contextlib.contextmanager
def cuttable(way, func, kwargs=None, **options):
    """An app over a stream that may break, and what breaks the one it has now."""
    before = set(_children())
    stopped = []

    def cut(number=signal.SIGKILL):
        pids = wait_until(lambda: [pid for pid in _children() if pid not in {*before, *stopped}])
        if number == signal.SIGSTOP:
            stopped.extend(pids)
        way.cut(pids, number)

    app = start(way.target, func, kwargs, **{"reconnect_timeout": 30.0, **options})
    try:
        yield app, cut
    finally:
        way.cut(stopped, signal.SIGKILL)
        app.cancel(0.0)
        app.wait(60)
