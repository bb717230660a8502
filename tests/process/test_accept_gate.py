"""Who is accepted by a server that asks nobody is chosen by us."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from phalanx._system import accept_gate
from phalanx._system.local_users import LocalUsers
from phalanx._system.processes import is_stopped
from tests.conftest import wait_until

SERVER = """
import selectors, socket, sys, threading
from phalanx._system import accept_gate

listening = socket.create_server(("127.0.0.1", 0), backlog=1000)
listening.setblocking(False)

def is_word(connection):
    connection.setblocking(True)
    return connection.recv(4, socket.MSG_PEEK) == b"word"

if sys.argv[1] == "guarded":
    assert accept_gate.guard(listening.fileno(), is_word)

def serve():
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listening:
                try:
                    connection, _ = listening.accept()
                except BlockingIOError:
                    continue
                selector.register(connection, selectors.EVENT_READ)
            elif data := key.fileobj.recv(100):
                key.fileobj.sendall(data)
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()

threading.Thread(target=serve, daemon=True).start()
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server():
    """Starts a server that echoes on a thread of its own; gives the process and its port."""
    started = []

    def start(how):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "-c", SERVER, how], **pipes)
        started.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        process.communicate("", timeout=60)


def connect(port, word):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(word)
    return connection


def answer(connection):
    with connection:
        try:
            return connection.recv(100)
        except ConnectionError:
            return b""


def test_one_that_is_not_let_in_is_closed_and_the_others_are_served(server):
    """In whatever order they come; without the gate all of them are."""
    words = [b"word", b"none", b"none", b"word", b"none"] * 20
    for how, served in (("open", {b"word", b"none"}), ("guarded", {b"word"})):
        process, port = server(how)
        found = [answer(connection) for connection in [connect(port, word) for word in words]]
        assert found == [word if word in served else b"" for word in words]
        assert process.poll() is None


def test_nobody_is_lost_when_signals_cut_the_server_off(server):
    """Stopped and continued at any moment, as by a debugger: each call is made anew."""
    process, port = server("guarded")
    for _ in range(30):
        connections = [connect(port, b"word") for _ in range(10)]
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid))
        connections += [connect(port, b"word") for _ in range(3)]
        process.send_signal(signal.SIGCONT)
        assert [answer(connection) for connection in connections] == [b"word"] * 13


FAILS = """
import socket
from phalanx._system import accept_gate

listening = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listening.getsockname())
accept_gate.guard(listening.fileno(), lambda _: 1 / 0)
listening.accept()
"""


def test_the_process_ends_when_nobody_can_choose_any_more():
    """Rather than to have everybody wait."""
    done = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, timeout=60)
    assert done.returncode == 1
    assert b"ZeroDivisionError" in done.stderr


def test_a_machine_that_cannot_do_it_is_left_as_it_was(monkeypatch):
    """Of another kind, or with a kernel that does not know the call."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number = next(iter(accept_gate._ARCHITECTURES.values()))._replace(seccomp=100_000)
        for known in ({}, dict.fromkeys(accept_gate._ARCHITECTURES, number)):
            monkeypatch.setattr(accept_gate, "_ARCHITECTURES", known)
            assert accept_gate.guard(listening.fileno(), lambda _: False) is False
        with socket.create_connection(listening.getsockname()):
            listening.accept()[0].close()


CONNECT = """
import encodings.idna, os, socket, sys
os.setresuid(*[int(sys.argv[1])] * 3)
connection = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
print("connected", flush=True)
if sys.argv[3] == "stays":
    sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize(
    ("user", "stays", "is_ours", "admitted"),
    [
        (0, "stays", False, True),
        (65534, "stays", False, False),
        (65534, "stays", True, True),
        (65534, "leaves", False, False),
    ],
)
def test_users_of_this_machine_that_may_connect(user, stays, is_ours, admitted):
    """One's own, and another that a process of ours runs as; not one that has left."""
    users = LocalUsers(os.getpid() if is_ours else 2**22 + 1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        words = [sys.executable, "-c", CONNECT, user, listening.getsockname()[1], stays]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(list(map(str, words)), **pipes)
        connection, _ = listening.accept()
        with connection:
            assert process.stdout.readline() == "connected\n"
            if stays == "leaves":
                process.wait(60)
                assert connection.recv(1) == b""
            assert [users.admit(connection) for _ in range(2)] == [admitted] * 2
        process.communicate("", timeout=60)
