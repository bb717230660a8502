"""A host's way home, where one command has started this on many hosts at once.

Its text travels down that command's stdin, which every host gets whole, and is run by whatever
Python is there, so it stands alone. It connects to the launcher by TLS, knowing the launcher by its
certificate and known to it by a token; it is told there what to run, and carries the streams of
that, until it has ended.

Over the connection: a line of JSON that says who is there, then pieces both ways, of a kind and a
length. The first that comes is the command.
"""

import errno
import json
import os
import select
import signal
import socket
import ssl
import struct
import subprocess
import time
from typing import IO, Any, Iterator  # noqa: UP035 for older Pythons too

PIECE = struct.Struct(">BI")
STREAM, ERRORS, EXIT, KILL, RUN = 0, 1, 2, 3, 4
"""Stdin one way and stdout the other; stderr; the exit code, as text; end it by force; the command,
as JSON. A piece of a stream that is empty is its end."""

LARGEST = 1 << 18
"""The most that one piece has."""

_CONNECTING = 5.0
"""Seconds to reach the launcher at any of its addresses, and to agree on a key."""
_WINDOW = 1 << 20
"""How much may wait to be written before no more is read."""
_LAST_WORDS = 1.0
"""Seconds for what an ended program's children still hold open."""
_ALONE = 30.0
"""Seconds for a program to end once the launcher is gone; it sees the end of its input."""


def dial_home(incoming: "IO[bytes]") -> None:
    """Connect, run what is asked for, and end when that has ended."""
    wanted = json.loads(incoming.readline().decode())
    # Slurm signals every process of a step: what runs there deals with it. No `SIG_IGN`, which
    # programs inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)
    host = os.environ.get(wanted["host_variable"], "")
    try:
        link = _connect(wanted["addresses"], wanted["port"], wanted["certificate"])
    except (OSError, ValueError) as error:  # errors of ssl are among them
        _say(host=host, problem=str(error))
        return
    try:
        introduction = {"host": host, "token": wanted["token"]}
        link.sendall(json.dumps(introduction).encode() + b"\n")
        _, size = PIECE.unpack(_exactly(link, PIECE.size))
        command = json.loads(_exactly(link, size).decode())
    except OSError as error:
        _say(host=host, problem=str(error))
        return
    try:
        child = subprocess.Popen(
            command,
            env=_environment(host, wanted["variables"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        _say(host=host, problem=str(error))
        return
    _Relay(link, child).run()


def _environment(host: str, variables: "list[list[str]]") -> "dict[str, str]":
    """The one that a program finds here: as if this host had been started by itself."""
    environ = dict(os.environ)
    for name, value in variables:
        environ.pop(name, None)
        if value is not None:
            environ[name] = value.replace("{host}", host)
    return environ


def _connect(addresses: "list[str]", port: int, certificate: str) -> "ssl.SSLSocket":
    """Reach the launcher at whichever address answers first. Raises `OSError`."""
    context = ssl.create_default_context(cadata=certificate)
    context.check_hostname = False  # it is this very certificate, or nothing
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    limit = time.monotonic() + _CONNECTING
    problems = {}  # type: dict[str, str]
    for address, plain in _reached(addresses, port, limit, problems):
        try:
            plain.settimeout(max(0.1, limit - time.monotonic()))
            link = context.wrap_socket(plain)
        except OSError as error:
            problems[address] = str(error)
            continue
        link.settimeout(None)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return link
    said = ", ".join(f"{address}: {problems.get(address, 'no answer')}" for address in addresses)
    raise OSError(f"cannot connect to the launcher at port {port} ({said})")


def _reached(
    addresses: "list[str]", port: int, limit: float, problems: "dict[str, str]"
) -> "Iterator[tuple[str, socket.socket]]":
    """Connections, as they are made; what is not taken is closed."""
    trying = {}
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        plain = socket.socket(family)
        plain.setblocking(False)
        code = plain.connect_ex((address, port))
        if code in (0, errno.EINPROGRESS):
            trying[plain] = address
        else:
            problems[address] = os.strerror(code)
            plain.close()
    try:
        while trying and time.monotonic() < limit:
            left = max(0.0, limit - time.monotonic())
            for plain in select.select([], list(trying), [], left)[1]:
                address = trying.pop(plain)
                code = plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    problems[address] = os.strerror(code)
                    plain.close()
                else:
                    yield address, plain
    finally:
        for plain in trying:
            plain.close()


def _exactly(link: "ssl.SSLSocket", size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            raise OSError("the launcher has closed the connection")
        data += more
    return data


def _say(**message: "Any") -> None:
    """Tell whoever reads the command's output, which all hosts share: a line at once."""
    os.write(4, json.dumps(message).encode() + b"\n")


class _Relay:
    """Carries a program's streams over a connection, on one thread, as TLS wants it."""

    def __init__(self, link: "ssl.SSLSocket", child: "subprocess.Popen[bytes]") -> None:
        assert child.stdin is not None and child.stdout is not None  # noqa: PT018 they are pipes
        assert child.stderr is not None
        self._link, self._child = link, child
        self._stdin = child.stdin.fileno()
        self._sources = {child.stdout.fileno(): STREAM, child.stderr.fileno(): ERRORS}
        for number in (self._stdin, *self._sources):
            os.set_blocking(number, False)
        link.setblocking(False)
        self._received = bytearray()
        self._to_child = bytearray()
        self._to_link = bytearray()
        self._is_lost = self._stdin_ends = self._stdin_ended = False

    def run(self) -> None:
        """Until the program has ended, and all of it has been said."""
        exited = lost = None
        while True:
            if self._is_lost:
                lost = lost or time.monotonic()
                if time.monotonic() > lost + _ALONE:
                    self._child.kill()
            if exited is None and self._child.poll() is not None:
                exited = time.monotonic()
            if exited is not None:
                said = not self._sources or time.monotonic() > exited + _LAST_WORDS
                if said or self._is_lost:
                    break
            self._wait(0.02 if exited is not None or not self._sources else 0.5)
            self._turn()
        self._piece(EXIT, str(self._child.returncode).encode())
        limit = time.monotonic() + _CONNECTING
        while self._to_link and not self._is_lost and time.monotonic() < limit:
            self._send()
            if self._to_link:
                select.select([], [self._link], [], 0.5)

    def _wait(self, seconds: float) -> None:
        reads, writes = [], []
        if not self._is_lost and len(self._to_child) < _WINDOW:
            if self._link.pending():
                return
            reads.append(self._link.fileno())
        if self._is_lost or len(self._to_link) < _WINDOW:
            reads += self._sources
        if not self._is_lost and self._to_link:
            writes.append(self._link.fileno())
        if self._to_child and not self._stdin_ended:
            writes.append(self._stdin)
        select.select(reads, writes, [], seconds)

    def _turn(self) -> None:
        if not self._is_lost and len(self._to_child) < _WINDOW:
            self._receive()
        self._feed()
        for number, kind in list(self._sources.items()):
            if self._is_lost or len(self._to_link) < _WINDOW:
                self._take(number, kind)
        self._send()

    def _receive(self) -> None:
        try:
            data = self._link.recv(LARGEST)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        self._received += data
        while len(self._received) >= PIECE.size:
            kind, size = PIECE.unpack_from(self._received)
            if len(self._received) < PIECE.size + size:
                return
            piece = self._received[PIECE.size : PIECE.size + size]
            del self._received[: PIECE.size + size]
            if kind == KILL:
                self._child.kill()
            elif piece:
                self._to_child += piece
            else:
                self._stdin_ends = True

    def _lose(self) -> None:
        """The launcher is gone, or wants no more: what runs here sees the end of its input."""
        self._is_lost = self._stdin_ends = True
        self._to_link.clear()

    def _feed(self) -> None:
        try:
            while self._to_child and not self._stdin_ended:
                del self._to_child[: os.write(self._stdin, self._to_child[:LARGEST])]
        except BlockingIOError:
            return
        except OSError:
            self._stdin_ends = True
            self._to_child.clear()
        if self._stdin_ends and not self._stdin_ended and not self._to_child:
            self._stdin_ended = True
            self._child.stdin.close()  # type: ignore[union-attr]

    def _take(self, number: int, kind: int) -> None:
        try:
            data = os.read(number, LARGEST)
        except BlockingIOError:
            return
        if not data:
            del self._sources[number]
        self._piece(kind, data)

    def _piece(self, kind: int, data: bytes) -> None:
        if not self._is_lost:
            self._to_link += PIECE.pack(kind, len(data)) + data

    def _send(self) -> None:
        try:
            while self._to_link and not self._is_lost:
                del self._to_link[: self._link.send(self._to_link[:LARGEST])]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            self._lose()
