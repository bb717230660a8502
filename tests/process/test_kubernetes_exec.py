"""The program that leads into a pod, against a server whose every word the test chooses."""

import base64
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from phalanx._schedulers.kubernetes.api.credentials import Credentials, SharedCredentials
from phalanx._schedulers.kubernetes.api.exec_stream import GONE, exec_command

SUCCESS = b"\x03" + json.dumps({"status": "Success"}).encode()
NEW, OLD = (1, 31), (1, 20)


class Server:
    """An API server that has one pod, and does to whoever comes what it was told."""

    def __init__(self, answer):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests = []
        self._thread = threading.Thread(target=self._serve, args=(answer,))
        self._thread.start()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self, answer):
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(ConnectionError):
                    answer(Peer(connection, self.requests))


class Peer:
    """One that has come."""

    def __init__(self, connection, requests):
        self._connection = connection
        self._stream = connection.makefile("rb")
        head = [line.decode().strip() for line in iter(self._stream.readline, b"\r\n")]
        self._headers = dict(line.split(": ", 1) for line in head[1:])
        requests.append(head[0])

    def refuse(self, status, message):
        body = json.dumps({"message": message}).encode()
        head = f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\n\r\n"
        self._connection.sendall(head.encode() + body)

    def welcome(self, protocol):
        key = self._headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self._connection.sendall(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n".encode()
        )

    def read(self):
        """The kind of a frame, and what is in it."""
        first, second = self._stream.read(2)
        size = second & 127
        if size >= 126:
            size = int.from_bytes(self._stream.read(2 if size == 126 else 8), "big")
        mask = self._stream.read(4)
        data = self._stream.read(size)
        return first & 15, bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))

    def write(self, data, kind=2, *, last=True):
        size = bytes([len(data)]) if len(data) < 126 else b"\x7f" + len(data).to_bytes(8, "big")
        self._connection.sendall(bytes([kind | (128 if last else 0)]) + size + data)


@pytest.fixture
def run():
    """Run a command in the pod of such a server, with some input."""
    with contextlib.ExitStack() as closing:

        def run(answer, data=b"", version=NEW):
            server = Server(answer)
            closing.callback(server.close)
            shared = SharedCredentials(Credentials(server.address, {"authorization": "Bearer x"}))
            closing.callback(shared.close)
            command = [*exec_command(shared.path, "", "space", "pod", version), "cat", "-n"]
            env = {**os.environ, "KUBECONFIG": "/nowhere"}
            given = {"input": data} if isinstance(data, bytes) else {"stdin": data}
            done = subprocess.run(
                command, **given, capture_output=True, check=False, timeout=60, env=env
            )
            return done, server.requests

        yield run


def test_the_end_of_stdin_is_told_to_servers_that_understand_it(run):
    """And what comes behind it is heard: output in parts, a ping, the exit code."""
    heard = []

    def answer(peer):
        peer.welcome("v5.channel.k8s.io")
        while (message := peer.read()[1]) != b"\xff\x00":
            heard.append(message)
        peer.write(b"\x01par", last=False)
        peer.write(b"hello", 9)
        peer.write(b"ts", 0)
        heard.append(peer.read())
        peer.write(b"\x02" + b"e" * 70_000)
        cause = {"reason": "ExitCode", "message": "7"}
        peer.write(
            b"\x03" + json.dumps({"status": "Failure", "details": {"causes": [cause]}}).encode()
        )
        peer.write(b"", 8)

    done, requests = run(answer, b"input")
    assert heard == [b"\x00input", (10, b"hello")]
    assert (done.stdout, done.stderr, done.returncode) == (b"parts", b"e" * 70_000, 7)
    assert requests[0].startswith("GET /api/v1/namespaces/space/pods/pod/exec?container=main&")
    assert requests[0].endswith("command=cat&command=-n HTTP/1.1")


def test_for_older_servers_stdin_comes_in_pieces(run):
    """The last of which is empty."""
    heard = []

    def answer(peer):
        peer.welcome("v4.channel.k8s.io")
        while (message := peer.read()[1]) != b"\x00" + bytes(4):
            heard.append(message)
        peer.write(SUCCESS)

    done, requests = run(answer, b"input", OLD)
    assert heard == [b"\x00\x00\x00\x00\x05input"]
    assert done.returncode == 0, done.stderr
    assert "command=%2Fbin%2Fsh" in requests[0]


def test_a_stream_that_breaks_before_anything_is_heard_is_opened_again(run):
    """With the input from its beginning: a command that ends at once may not be heard otherwise."""
    heard = []

    def answer(peer):
        peer.welcome("v5.channel.k8s.io")
        heard.append(peer.read()[1])
        if len(heard) > 1:
            peer.write(b"\x02no such program")
            peer.write(SUCCESS)

    with subprocess.Popen(["sh", "-c", "printf input; sleep 3"], stdout=subprocess.PIPE) as source:
        done, _ = run(answer, source.stdout)
    assert heard == [b"\x00input", b"\x00input"]
    assert (done.stderr, done.returncode) == (b"no such program", 0)


def test_an_end_without_a_word_is_not_a_good_one(run):
    """A server that dies closes the connection, and so does one in between."""

    def answer(peer):
        peer.welcome("v5.channel.k8s.io")
        peer.write(b"\x01half")

    done, _ = run(answer)
    assert done.stdout == b"half"
    assert done.returncode == 1
    assert b"the connection to the API server broke" in done.stderr


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (404, 'pods "pod" not found', GONE),
        (400, "cannot exec into a container in a completed pod; current phase is Failed", GONE),
        (403, 'cannot get resource "pods/exec"', 1),
        (500, "error dialing backend", 1),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(run, status, message, code):
    """That there is no such pod has an exit code of its own."""
    done, _ = run(lambda peer: peer.refuse(status, message))
    assert (done.returncode, done.stderr.decode()) == (code, f"kubernetes: {message}\n")


def test_credentials_that_have_expired_are_looked_for_anew(run):
    """In the kubeconfig."""
    done, _ = run(lambda peer: peer.refuse(401, "Unauthorized"))
    assert done.returncode == 1
    assert b"no kubeconfig /nowhere" in done.stderr


def test_there_is_no_secret_in_the_arguments():
    """They are in memory of this process, which others of this user can read."""
    shared = SharedCredentials(Credentials("https://there", {"authorization": "Bearer xyzzy"}))
    try:
        command = exec_command(shared.path, "", "space", "pod", NEW)
        assert "xyzzy" not in " ".join(command)
        read = [sys.executable, "-c", f"print(open({shared.path!r}).read())"]
        assert b"xyzzy" in subprocess.run(read, capture_output=True, check=True).stdout
    finally:
        shared.close()
