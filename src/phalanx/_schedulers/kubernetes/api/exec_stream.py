"""`kubectl exec -i` without kubectl: our streams are those of a command in a pod, and its exit code
is ours.

Light to start, since every stream is a process: the official client is loaded only where what the
lease knows of the API server cannot be read, or is refused. One loop, since a TLS connection must
not be used by two threads at once.

An end is good only if the server says how the command has ended; any other is an error. Closing
stdin alone is said to servers that understand it; for others a program in the pod takes stdin in
pieces, the last of which is empty.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import ssl
import stat
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from phalanx._core.json_text import parse_json
from phalanx._schedulers.kubernetes.api.credentials import (
    Credentials,
    credentials_of,
    read_credentials,
)
from phalanx.errors import PhalanxError

_FAILED = 1
GONE = 69
"""The exit code where there is no such pod any more."""
_HANDSHAKE = 15.0
"""Seconds for the API server to answer."""
_PAUSES = (0.1, 0.5)
"""Seconds before it is tried again."""
_PIECE = 1 << 16
_WINDOW = 1 << 20
"""How much is taken from one side before the other takes it."""
_CLOSES_STDIN, _PLAIN = "v5.channel.k8s.io", "v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = 0, 1, 2, 3, 255
_BINARY, _CLOSED, _PING, _PONG = 0x2, 0x8, 0x9, 0xA
_CAN_CLOSE_STDIN = (1, 31)
"""The first version of Kubernetes that can be told so by default, with certainty."""
_LENGTH = struct.Struct("!I")
_ENDED = re.compile("completed pod|container not found")
"""What is said of pods that have ended, and are not deleted."""

# Arguments: the command. Passes on what the pieces have, and SIGTERM, and ends as it does.
_UNWRAP = """
import os, signal, struct, subprocess, sys, threading
try:
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
except OSError as error:
    sys.exit("%s: %s" % (sys.argv[1], error.strerror))
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
def pump():
    left = 0
    try:
        while True:
            if not left:
                head = sys.stdin.buffer.read(4)
                left = struct.unpack("!I", head)[0] if len(head) == 4 else 0
                if not left:
                    break
            data = sys.stdin.buffer.read1(min(left, 65536))
            if not data:
                break
            left -= len(data)
            while data:
                data = data[os.write(child.stdin.fileno(), data):]
    except OSError:
        pass
    child.stdin.close()
threading.Thread(target=pump, daemon=True).start()
code = child.wait()
os._exit(code if code >= 0 else 128 - code)
"""
_WRAPPED = (
    "for python in python3 python; do "
    'if command -v "$python" >/dev/null 2>&1; then exec "$python" -c "$0" "$@"; fi; done; '
    'echo "the image has no python3" >&2; exit 127'
)


def main() -> None:
    """Run a command in a pod. Arguments: credentials, context, namespace, pod, stdin, command."""
    path, context, namespace, pod, mode, *command = sys.argv[1:]
    try:
        sys.exit(_run(path, context, namespace, pod, pieces=mode == PIECES, command=command))
    except (_Refused, PhalanxError) as error:
        print(f"kubernetes: {error}", file=sys.stderr)
        sys.exit(GONE if isinstance(error, _NoPod) else _FAILED)


PLAIN, PIECES = "plain", "pieces"
"""How stdin travels: as it is, or in pieces, for servers that cannot be told of its end."""


def exec_command(
    path: str, context: str, namespace: str, pod: str, version: tuple[int, int]
) -> tuple[str, ...]:
    """What runs another command in a pod. Credentials are at the path."""
    mode = PLAIN if version >= _CAN_CLOSE_STDIN else PIECES
    module = "phalanx._schedulers.kubernetes.api.exec_stream"
    return (sys.executable, "-m", module, path, context, namespace, pod, mode)


class _Refused(Exception):
    """Why the command does not run, or is not heard any more."""


def _run(
    path: str, context: str, namespace: str, pod: str, *, pieces: bool, command: list[str]
) -> int:
    if pieces:
        command = ["/bin/sh", "-c", _WRAPPED, _UNWRAP, *command]
    known = read_credentials(path)
    if known is not None:
        with contextlib.suppress(_Unauthorized):
            return _run_heard(known, namespace, pod, command, pieces=pieces)
    # Where the launcher's have expired, the user's configuration has newer ones.
    from phalanx._schedulers.kubernetes.api.connection import find_access

    known = credentials_of(find_access(context or None))
    return _run_heard(known, namespace, pod, command, pieces=pieces)


def _run_heard(
    known: Credentials, namespace: str, pod: str, command: list[str], *, pieces: bool
) -> int:
    """Run it; once more where the stream broke before anything was heard of the command.

    A server that closes a connection to which we still write loses what it said last.
    """
    stdin = b""
    for pause in (*_PAUSES, None):
        stream = _Stream(_connect(known, namespace, pod, command), pieces=pieces, stdin=stdin)
        try:
            return stream.run(pod)
        except _Broken:
            if stream.unheard is None or pause is None:
                raise
            stdin = stream.unheard
        time.sleep(pause)
    raise AssertionError  # the last one raises


class _Broken(_Refused):
    """The connection ended, and nothing was said of the command's end."""


class _Unauthorized(_Refused):
    """The API server does not know us (any more)."""


class _NoPod(_Refused):
    """There is no such pod (any more), or it has ended."""


def _connect(known: Credentials, namespace: str, pod: str, command: list[str]) -> Any:
    import websocket  # here: who only names this command does not need it

    words = [("command", word) for word in command]
    flags = [(name, "true") for name in ("stdin", "stdout", "stderr")]
    query = urlencode([("container", "main"), *flags, *words])
    url = urlsplit(known.server)
    scheme = {"https": "wss", "http": "ws"}[url.scheme]
    base = f"{scheme}://{url.netloc}{url.path.rstrip('/')}"
    try:
        return websocket.create_connection(
            f"{base}/api/v1/namespaces/{namespace}/pods/{pod}/exec?{query}",
            timeout=_HANDSHAKE,
            header=[f"{name}: {value}" for name, value in known.headers.items()],
            subprotocols=[_CLOSES_STDIN, _PLAIN],
            suppress_origin=True,
            **known.websocket_options(),
        )
    except websocket.WebSocketBadStatusException as error:
        said = _said(error)
        kind = {401: _Unauthorized, 404: _NoPod}.get(error.status_code, _Refused)
        raise (_NoPod if _ENDED.search(said) else kind)(said) from None
    except (websocket.WebSocketException, OSError) as error:
        raise _Refused(f"{known.server}: {error}") from None


def _said(error: Any) -> str:
    try:
        return str(parse_json(error.resp_body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"the API server answers {error.status_code}"


@dataclass
class _Output:
    """What is still to be written to one of our own streams."""

    number: int
    pending: bytearray = field(default_factory=bytearray)
    is_broken: bool = False

    def write(self) -> None:
        try:
            while self.pending:
                del self.pending[: os.write(self.number, self.pending[:_PIECE])]
        except BlockingIOError:
            pass
        except OSError:
            self.is_broken = True
            self.pending.clear()


class _Stream:
    """The command's streams, and ours."""

    def __init__(self, connection: Any, *, pieces: bool, stdin: bytes = b"") -> None:
        """The connection is there. `stdin` is what was read before."""
        self._closes_stdin = connection.getsubprotocol() == _CLOSES_STDIN
        self._pieces = pieces
        self._socket = connection.sock
        self._socket.setblocking(False)
        self._received = bytearray()
        self._to_send = bytearray()
        self._wants_write = False
        self._stdin_open = True
        self._outputs = {_STDOUT: _Output(1), _STDERR: _Output(2)}
        self._message = bytearray()
        self._code: int | None = None
        self.unheard: bytes | None = b""
        """What was read from our stdin before anything was heard; None: it is too late for that."""
        for start in range(0, len(stdin), _PIECE):
            self._pass_on(stdin[start : start + _PIECE])
        for number in (0, 1, 2):
            if stat.S_ISFIFO(os.fstat(number).st_mode) or stat.S_ISSOCK(os.fstat(number).st_mode):
                os.set_blocking(number, False)

    def run(self, pod: str) -> int:
        """Until the command has ended; gives its exit code. Raises `_Refused`."""
        is_open = True
        while is_open and not (not self._stdin_open and self._outputs[_STDOUT].is_broken):
            events = self._wait()
            if 0 in events:
                self._take_stdin()
            self._send()
            is_open = self._receive()
            for output in self._outputs.values():
                output.write()
        for output in self._outputs.values():
            if not output.is_broken:
                os.set_blocking(output.number, True)
                output.write()
        if self._code is None:
            raise _Broken(f"the connection to the API server broke; {pod} may still run")
        return self._code

    def _wait(self) -> set[int]:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() and self._has_room():
            return set()
        poll = select.poll()
        number = self._socket.fileno()
        wanted = select.POLLIN if self._has_room() else 0
        if self._to_send or self._wants_write:
            wanted |= select.POLLOUT
        poll.register(number, wanted)
        if self._stdin_open and len(self._to_send) < _WINDOW:
            poll.register(0, select.POLLIN)
        for output in self._outputs.values():
            if not output.is_broken:
                # Without events: only that nobody reads there any more.
                poll.register(output.number, select.POLLOUT if output.pending else 0)
        found = poll.poll()
        for number, event in found:
            for output in self._outputs.values():
                if number == output.number and event & select.POLLERR:
                    output.is_broken = True
                    output.pending.clear()
        return {number for number, _ in found}

    def _has_room(self) -> bool:
        return all(len(output.pending) < _WINDOW for output in self._outputs.values())

    # ── there ─────────────────────────────────────────────────────────────────

    def _take_stdin(self) -> None:
        try:
            data = os.read(0, _PIECE)
        except BlockingIOError:
            return
        if data:
            self._pass_on(data)
            return
        self.unheard = None
        self._stdin_open = False
        if self._pieces:
            self._put(bytes([_STDIN]) + _LENGTH.pack(0))
        elif self._closes_stdin:
            self._put(bytes([_CLOSE, _STDIN]))

    def _pass_on(self, data: bytes) -> None:
        head = _LENGTH.pack(len(data)) if self._pieces else b""
        self._put(bytes([_STDIN]) + head + data)
        if self.unheard is not None:
            self.unheard += data
            if len(self.unheard) > _WINDOW:
                self.unheard = None

    def _put(self, data: bytes, kind: int = _BINARY) -> None:
        from websocket import ABNF

        self._to_send += ABNF.create_frame(data, kind).format()

    def _send(self) -> None:
        self._wants_write = False
        try:
            while self._to_send:
                del self._to_send[: self._socket.send(self._to_send[:_PIECE])]
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except ssl.SSLWantWriteError:
            self._wants_write = True
        except OSError:
            self._to_send.clear()  # what it has said before is still to be read

    # ── back ──────────────────────────────────────────────────────────────────

    def _receive(self) -> bool:
        """Take what has come; False if nothing follows."""
        while self._has_room():
            try:
                data = self._socket.recv(_PIECE)
            except (BlockingIOError, ssl.SSLWantReadError):
                return True
            except ssl.SSLWantWriteError:
                self._wants_write = True
                return True
            except OSError:
                return False
            if not data:
                return False
            self._received += data
            for kind, content in self._frames():
                if kind == _CLOSED:
                    return False
                if kind == _PING:
                    self._put(content, _PONG)
                elif kind < _CLOSED:
                    self._take(content)
        return True

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        """The messages that are whole."""
        while len(self._received) >= 2:
            first, second = self._received[:2]
            size, start = second & 127, 2
            if size >= 126:
                width = 2 if size == 126 else 8
                start += width
                if len(self._received) < start:
                    return
                size = int.from_bytes(self._received[2:start], "big")
            if len(self._received) < start + size:
                return
            content = bytes(self._received[start : start + size])
            del self._received[: start + size]
            kind = first & 15
            if kind >= _CLOSED:
                yield kind, content
                continue
            self._message += content
            if first & 128:
                whole, self._message = bytes(self._message), bytearray()
                yield kind, whole

    def _take(self, content: bytes) -> None:
        """A message: the first byte says of which stream."""
        if not content:
            return
        channel, data = content[0], content[1:]
        if channel in self._outputs:
            if channel == _STDOUT and data:
                self.unheard = None
            output = self._outputs[channel]
            if not output.is_broken:
                output.pending += data
        elif channel == _STATUS and data:
            self._code = _exit_code(data)


def _exit_code(status: bytes) -> int:
    """What the server says of the command's end. Raises `_Refused` where it did not run."""
    said = parse_json(status)
    if said.get("status") == "Success":
        return 0
    causes = (said.get("details") or {}).get("causes") or ()
    for cause in causes:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise _Refused(str(said.get("message") or said))


if __name__ == "__main__":
    main()
