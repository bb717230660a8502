"""Many hosts that are started by one command, and connect to the launcher."""

import contextlib
import functools
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from phalanx._launcher.transport import certificate, dial
from phalanx._remote import dial_home
from phalanx._schedulers.scheduler import BUILT_IN
from tests.conftest import phalanx_processes, wait_until
from tests.process.strangers import room_for_descriptors


@pytest.fixture(autouse=True)
def three_are_many(monkeypatch):
    monkeypatch.setattr(dial, "GROUP_SIZE", 3)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The directory of a scheduler that lends hosts at once, and is known as `pipe`."""
    monkeypatch.setitem(BUILT_IN, "pipe", "tests.pipe_scheduler")
    found = tmp_path / "pipe"
    found.mkdir()
    (found / "granted").touch()
    return found


def launcher(place, **options):
    given = {"scheduler": "pipe", "num_hosts": 3, "workers_per_host": 1, "workspace": None}
    own = {"place": str(place), "together": True}
    return phalanx.Launcher(scheduler_options=own, **{**given, **options})


def log(place):
    return (place / "log").read_text().splitlines()


def listening():
    """The ports at which this process listens."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith("socket:"):
                one = socket.socket(fileno=os.dup(int(link.name)))
                with one:
                    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and one.family in (
                        socket.AF_INET,
                        socket.AF_INET6,
                    ):
                        found.add(one.getsockname()[1])
    return found


def test_hosts_come_by_one_command(place):
    """And are what they are otherwise; large values go there and back whole."""
    data = os.urandom(3 << 20)

    def work(data):
        names = ("PIPE_HOST", "ALONE", "PIPE_GROUP")
        return tuple(os.environ.get(name) for name in names), data[::-1]

    values = list(launcher(place).run(work, {"data": data}))
    assert [found for found, _ in values] == [(f"n{i}", f"n{i}", None) for i in (1, 2, 3)]
    assert {reversed_data for _, reversed_data in values} == {data[::-1]}
    assert log(place) == ["lend 3 work", "together n1 n2 n3", "give back"]


def test_few_hosts_are_reached_each_by_its_own_command(place):
    """For them nothing has to listen here."""
    assert list(launcher(place, num_hosts=2).run(lambda: 7)) == [7, 7]
    assert log(place) == ["lend 2 function", "give back"]


def test_the_port_is_closed_once_all_have_come(place, tmp_path):
    """It was open until then."""
    before, go = listening(), tmp_path / "go"
    app = launcher(place).start(waiting(go))
    wait_until(lambda: app.status().state.value == "RUNNING")
    assert listening() == before
    go.touch()
    assert list(app.result(60)) == [None] * 3


def waiting(go):
    """Work that takes until a file is there; made here, since hosts do not have this module."""

    def wait(go):
        import os
        import time

        print("here", flush=True)
        while not os.path.exists(go):
            time.sleep(0.01)

    return functools.partial(wait, str(go))


def test_one_that_cannot_connect_is_reached_by_its_own_command(place):
    """The others come as they would."""
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        pytest.skip("this kernel lets nobody have a network of its own")
    (place / "cut-off-n2").touch()
    assert list(launcher(place).run(lambda: os.environ["PIPE_HOST"])) == ["n1", "n2", "n3"]


def test_without_openssl_each_is_reached_by_its_own_command(place, monkeypatch):
    """There would be no certificate."""
    monkeypatch.setattr(certificate, "_COMMAND", ("openssl-is-not-here",))
    assert list(launcher(place).run(lambda: os.environ["PIPE_HOST"])) == ["n1", "n2", "n3"]
    assert "together n1 n2 n3" not in log(place)


def test_a_host_without_the_interpreter_says_so(place):
    """As otherwise."""
    with pytest.raises(phalanx.StartFailed, match="no /nowhere/python found"):
        launcher(place, python="/nowhere/python").run(lambda: 7)


def test_a_host_is_lost_by_itself(place):
    """When its agent is killed; the others go on, and it comes back by its own command."""

    def work():
        import os
        import signal

        count = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if (os.environ["PIPE_HOST"], count) == ("n2", "0"):
            stat = open(f"/proc/{os.getppid()}/stat").read()
            os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
            signal.pause()
        return os.environ["PIPE_HOST"], count

    found = list(launcher(place, max_restarts=1).run(work))
    assert found == [("n1", "1"), ("n2", "1"), ("n3", "1")]
    assert log(place) == ["lend 3 work", "together n1 n2 n3", "give back"]


def test_cancelling_ends_what_runs_there(place, tmp_path):
    """In order: nothing is left, and the command has ended."""
    app = launcher(place).start(waiting(tmp_path / "never"))
    assert next(app.logs(follow=True)).text == "here"
    app.cancel()
    with pytest.raises(phalanx.Cancelled):
        app.result(60)
    assert log(place)[-1] == "give back"


def test_cancelling_before_all_have_come_leaves_nothing(place):
    """The command is ended; the port is closed."""
    before = listening()
    launch = Listening(place)
    launch.app.cancel()
    with pytest.raises(phalanx.Cancelled):
        launch.app.result(60)
    wait_until(lambda: listening() == before)


_PROGRAM = """
import os, sys, time
from phalanx._launcher.transport import dial
from phalanx._schedulers.scheduler import BUILT_IN
import phalanx

dial.GROUP_SIZE = 3
BUILT_IN["pipe"] = "tests.pipe_scheduler"

def work():
    import time
    print("here", flush=True)
    time.sleep(120)

if __name__ == "__main__":
    options = {"place": sys.argv[1], "together": True}
    launcher = phalanx.Launcher(
        scheduler="pipe", num_hosts=3, workers_per_host=1, workspace=None, scheduler_options=options
    )
    app = launcher.start(work)
    next(app.logs(follow=True))
    if sys.argv[2] == "fork" and not os.fork():
        os.close(1)
        time.sleep(120)
    print("running", flush=True)
    time.sleep(120)
"""


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_launcher_that_is_killed_leaves_nothing(place, tmp_path, how):
    """A process that the program has forked does not keep hosts alive."""
    file = tmp_path / "program.py"
    file.write_text(_PROGRAM)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(file), str(place), how]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, process_group=0) as program:
        try:
            wait_until(lambda: b"running" in program.stdout.readline())
            group = phalanx_processes()
            assert group
            program.kill()
            program.wait()
            wait_until(lambda: not set(phalanx_processes()) & set(group))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)


# ── whoever else connects ─────────────────────────────────────────────────────


def connect(port):
    """As somebody who does not care whose certificate it is."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 30))


def is_refused(link):
    try:
        return link.recv(1) == b""
    except OSError:
        return True


@pytest.mark.parametrize(
    "said",
    [
        {"host": "n1", "token": "0" * 64},
        {"host": "n1"},
        {"host": ["n1"], "token": 7},
        {"host": "n9", "token": "0" * 64},
        [],
        "n1",
        "x" * 100_000,
    ],
    ids=["another token", "no token", "no texts", "no host", "a list", "a text", "too much"],
)
def test_a_stranger_is_refused(place, said):
    """Whatever it says; the hosts come all the same."""
    launch = Listening(place)
    with connect(launch.port) as link:
        with contextlib.suppress(OSError):
            link.sendall(json.dumps(said).encode() + b"\n")
        assert is_refused(link)
    assert launch.result() == ["n1", "n2", "n3"]


def test_strangers_that_say_nothing_keep_nobody_out(place):
    """However many there are, with and without TLS."""
    launch = Listening(place)
    with room_for_descriptors(700), contextlib.ExitStack() as stack:
        for number in range(600):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", launch.port), 30))
            if number % 7 == 0:
                one.sendall(b"\x16\x03\x01\x02")
        assert launch.result() == ["n1", "n2", "n3"]


def test_the_name_of_a_host_that_has_come_is_taken(place):
    """Whoever knows the token can be no host a second time."""
    launch = Listening(place)
    said = {"host": "n1", "token": launch.token}
    with connect(launch.port) as first, connect(launch.port) as second:
        first.sendall(json.dumps(said).encode() + b"\n")
        (kind, size) = dial_home.PIECE.unpack(first.recv(dial_home.PIECE.size))
        assert kind == dial_home.RUN
        assert size
        second.sendall(json.dumps(said).encode() + b"\n")
        assert is_refused(second)
        launch.cancel()


@pytest.mark.parametrize(
    "lie",
    [
        dial_home.PIECE.pack(dial_home.STREAM, 1 << 31) + b"x" * 1000,
        dial_home.PIECE.pack(dial_home.EXIT, 3) + b"abc",
        dial_home.PIECE.pack(77, 0),
        dial_home.PIECE.pack(dial_home.STREAM, 5),
        b"\0",
    ],
    ids=["too large", "no code", "no kind", "no end", "no piece"],
)
def test_a_host_that_lies_is_one_that_did_not_start(place, lie):
    """It is named, with what it was to do; nobody waits for it."""
    launch = Listening(place)
    with connect(launch.port) as link:
        link.sendall(json.dumps({"host": "n1", "token": launch.token}).encode() + b"\n")
        link.recv(dial_home.PIECE.size)
        link.sendall(lie)
    launch.go()
    with pytest.raises(phalanx.StartFailed, match="n1"):
        launch.app.result(60)


class Listening:
    """A launch whose hosts wait for `go` before they connect."""

    def __init__(self, place):
        before = listening()
        self._go = place / "go"
        (place / "wait").touch()
        self.app = launcher(place, start_timeout=60).start(lambda: os.environ["PIPE_HOST"])
        self.port = wait_until(lambda: listening() - before).pop()
        self._sent = place / "sent"
        self._place = place

    @property
    def token(self):
        """What hosts were sent."""
        text = wait_until(lambda: self._sent.exists() and self._sent.read_bytes())
        return json.loads(text.splitlines()[-1])["token"]

    def go(self):
        self._go.touch()

    def result(self):
        self.go()
        return list(self.app.result(60))

    def cancel(self):
        self.go()
        self.app.cancel(0.0)
        self.app.wait(60)
