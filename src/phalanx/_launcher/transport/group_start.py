"""Many hosts by one command: what it starts on each connects to a port of ours, and carries the
streams of what is run there.

The port is open until all hosts have come. Whoever connects has to say the token of this start,
which only those hosts were sent, and the name of one that has not come yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import inspect
import json
import os
import secrets
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future

from phalanx._core.sanitize import sanitize
from phalanx._launcher.transport.agent_process import AgentProcess, RemoteInfo
from phalanx._launcher.transport.certificate import make_certificate
from phalanx._launcher.transport.targets import Target
from phalanx._remote import dial_home
from phalanx._remote.dial_home import ERRORS, EXIT, KILL, LARGEST, PIECE, RUN, STREAM
from phalanx._schedulers.leases import GroupCommand
from phalanx._system import network

_STRANGERS = 256
"""Connections that have not said who they are; of more, the one that has waited longest goes."""
_SAYING = 10.0
"""Seconds to agree on a key, and to say who is there."""
_INTRODUCTION = 4096
_ADDRESSES = 16
_SAID = 64 << 10
_ERRORS_WAITING = 4 << 20
"""How much of what is said beside the channel may wait for a reader: it must not hold up the
channel, which comes by the same connection."""
_LOST = 255
"""The exit code of what was lost with its connection, as ssh has it."""
# Arguments: the variable that has the host's name, a command. Says so where it fails, whatever the
# reason: otherwise the host would be waited for.
_OR_SAY_SO = """
variable=$1; shift
"$@" && exit
code=$?
eval "host=\\$$variable"
printf '{"host": "%s", "problem": "it exited with code %s"}\\n' "$host" $code
"""
_LAST_WORDS = 1.0
"""Seconds for the command to say why a host was lost."""
_ENDING = 2.0
"""Seconds for the command to end once nobody needs it."""


class NotConnected(Exception):
    """A host has not come by this way; it may by another."""


class GroupStart:
    """One command that was started, and the hosts that it leads to."""

    def __init__(self, command: GroupCommand, targets: Sequence[Target]) -> None:
        """Start it; does not wait. Raises `OSError`.

        The targets are ways to hosts that have it in common.
        """
        first = targets[0]
        self._hosts: dict[str, Future[Connection]] = {t.name: Future() for t in targets}
        self._lock = threading.Lock()
        self._token = secrets.token_hex(32)
        self._context, certificate = make_certificate()
        self._listener = network.listen(0)
        words = ["/bin/sh", "-c", _OR_SAY_SO, "phalanx", command.host_variable]
        words = [*command.words([*self._hosts]), *words, *first.words("phalanx", "dial_home")]
        try:
            self._command = AgentProcess.remote(words, first.name, without=first.without)
        except BaseException:
            self._listener.close()
            raise
        self.tool, self.pid = command.command[0], self._command.process.pid
        self._errors = bytearray()
        """What the command has said of itself; of much, the end."""
        self.errors_said = 0
        """How many bytes that were in all."""
        self._connections: set[Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        source = inspect.getsource(dial_home).encode()
        wanted = {
            "addresses": _addresses(),
            "port": self._listener.getsockname()[1],
            "certificate": certificate,
            "token": self._token,
            "host_variable": command.host_variable,
            "variables": command.variables,
        }
        self._command.say(b"%d\n%b%b\n" % (len(source), source, json.dumps(wanted).encode()))
        _OPEN.add(self)
        threading.Thread(target=self._run, name="phalanx-group-start", daemon=True).start()

    def connection(self, host: str) -> Future[Connection]:
        """A host's connection, once it has come; `NotConnected` if it will not."""
        return self._hosts[host]

    def give_up(self, host: str) -> None:
        """Nobody waits for a host any more. Idempotent; from any thread."""
        self._miss(host, "it was given up")
        self.call(self._changed.set)

    def call(self, function: object, *arguments: object) -> None:
        """Have something done on the loop's thread; nothing once that has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)  # type: ignore[arg-type]

    def _miss(self, host: str, why: str) -> None:
        with self._lock:
            if host in self._hosts and not self._hosts[host].done():
                self._hosts[host].set_exception(NotConnected(why))

    @property
    def _is_complete(self) -> bool:
        return all(future.done() for future in self._hosts.values())

    # ── on the loop's thread ──────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        finally:
            for host in self._hosts:
                self._miss(host, "what waits for it has failed")
            for connection in self._connections:
                connection.lose()
            self._listener.close()
            self._command.end(0.0)

    async def _serve(self) -> None:
        accepting = asyncio.create_task(self._accept())
        following = asyncio.create_task(self._follow())
        while not self._is_complete:
            await self._changed.wait()
            self._changed.clear()
        accepting.cancel()
        await asyncio.wait([accepting])
        self._listener.close()
        while self._connections:
            await self._changed.wait()
            self._changed.clear()
        await asyncio.wait([following], timeout=_ENDING)
        following.cancel()
        await asyncio.wait([following])  # what it has open is closed

    async def _follow(self) -> None:
        """What the command says: hosts' problems, a line of JSON each, and its own words."""
        loop = asyncio.get_running_loop()
        read, write, errors, unsaid = self._command.streams()
        write.close()
        assert not unsaid  # a pipe takes more than what hosts are sent

        async def follow_output(output: asyncio.StreamReader) -> None:
            while line := await output.readline():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    told = json.loads(line)
                    self._miss(told["host"], sanitize(str(told["problem"])))
                    self._changed.set()

        async def follow_errors(said: asyncio.StreamReader) -> None:
            while data := await said.read(1 << 16):
                self._errors += data
                self.errors_said += len(data)
                del self._errors[:-_SAID]

        transports = []
        try:
            following = []
            for file, follow in ((read, follow_output), (errors, follow_errors)):
                reader = asyncio.StreamReader()
                protocol = asyncio.StreamReaderProtocol(reader)
                transport, _ = await loop.connect_read_pipe(lambda p=protocol: p, file)  # type: ignore[misc]
                transports.append(transport)
                following.append(follow(reader))
            await asyncio.gather(*following)
        except ValueError:
            pass  # a line without an end: the command is none that does what it should
        finally:
            for transport in transports:
                transport.close()
        said = self._errors.decode("utf-8", "replace").strip()
        for host in self._hosts:
            self._miss(host, sanitize(said) or f"{self.tool} ended")
        self._changed.set()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        strangers: dict[asyncio.Task[None], None] = {}
        try:
            while True:
                try:
                    plain, _ = await loop.sock_accept(self._listener)
                except OSError:
                    await asyncio.sleep(0.05)  # no descriptors left: some will be
                    continue
                if len(strangers) >= _STRANGERS:
                    next(iter(strangers)).cancel()
                task = asyncio.create_task(self._meet(plain))
                strangers[task] = None
                task.add_done_callback(lambda done: strangers.pop(done, None))
        finally:
            for task in list(strangers):
                task.cancel()

    async def _meet(self, plain: socket.socket) -> None:
        """Find out who has connected."""
        loop = asyncio.get_running_loop()
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        reader = asyncio.StreamReader(limit=_INTRODUCTION)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport: asyncio.Transport | None = None
        is_known = False
        try:
            async with asyncio.timeout(_SAYING):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, plain, ssl=self._context
                )
                host = self._known(await reader.readline())
            if host is not None:
                writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                is_known = self._take(Connection(self, host, reader, writer), self._hosts[host])
        except (OSError, ValueError, TimeoutError):  # errors of ssl and of JSON are among them
            pass
        finally:
            if transport is None:
                plain.close()
            elif not is_known:
                transport.abort()

    def _take(self, connection: Connection, future: Future[Connection]) -> bool:
        """Whoever waits for the host has it; False if nobody does any more."""
        with self._lock:
            if future.done():
                return False
            self._connections.add(connection)
            future.set_result(connection)
        self._changed.set()
        return True

    def _known(self, line: bytes) -> str | None:
        """The host that has said its name and our token; None for anybody else."""
        said = json.loads(line)
        if not isinstance(said, dict):
            return None
        host, token = said.get("host"), said.get("token")
        if not isinstance(host, str) or not isinstance(token, str) or host not in self._hosts:
            return None
        is_known = hmac.compare_digest(token.encode(), self._token.encode())
        return host if is_known else None

    def errors_since(self, said: int) -> bytes:
        """What the command has said of itself after so many bytes."""
        return bytes(self._errors[max(0, len(self._errors) - (self.errors_said - said)) :])

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._changed.set()

    def close_in_fork(self) -> None:
        """Let go of what would keep hosts alive, in a process that the program forks."""
        null = os.open(os.devnull, os.O_RDWR)
        for one in (self._listener.fileno(), *(s for c in self._connections for s in c.sockets())):
            if one >= 0:
                os.dup2(null, one, inheritable=False)
        os.close(null)


class Connection:
    """A host that has come: it runs one command, whose streams are carried."""

    def __init__(
        self,
        start: GroupStart,
        host: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Made on the loop's thread."""
        self._start, self._host = start, host
        self._reader, self._writer = reader, writer
        self._inner: list[socket.socket] = []
        self._code: int | None = None
        self._over = threading.Event()
        self._relaying: asyncio.Task[None] | None = None
        self._said_before = start.errors_said
        self.pid = start.pid

    def run(self, words: Sequence[str]) -> AgentProcess:
        """Run a command there, once; its streams are those of what this gives. Raises `OSError`."""
        outer: list[socket.socket] = []
        for _ in range(3):
            ours, theirs = socket.socketpair()
            outer.append(ours)
            self._inner.append(theirs)
        read, write, errors = (one.detach() for one in outer)
        self._start.call(self._begin, list(words))
        info = RemoteInfo(self._host, self._start.tool)
        return AgentProcess.carried(self, (read, write, errors), info)

    # ── as a process ──────────────────────────────────────────────────────────

    def poll(self) -> int | None:
        """Its exit code, once it has ended, or is lost."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if not self._over.wait(timeout):
            raise subprocess.TimeoutExpired(self._host, timeout or 0.0)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        """Have it ended by force, without waiting for word of that."""
        self._start.call(self._kill)

    def close(self) -> None:
        """It is not needed: nothing was run there."""
        self._start.call(self._end, _LOST)

    def lose(self) -> None:
        """Nobody carries it any more."""
        if self._code is None:
            self._code = _LOST
            self._over.set()

    # ── on the loop's thread ──────────────────────────────────────────────────

    def sockets(self) -> list[int]:
        """The descriptors of all that it has open."""
        ours: list[socket.socket] = [self._writer.get_extra_info("socket"), *self._inner]
        return [one.fileno() for one in ours]

    def _begin(self, words: list[str]) -> None:
        self._relaying = asyncio.create_task(self._relay(words))

    async def _relay(self, words: list[str]) -> None:
        code = _LOST
        writers: list[asyncio.StreamWriter] = []
        try:
            readers = []
            for one in self._inner:
                reader, writer = await asyncio.open_connection(sock=one)
                readers.append(reader)
                writers.append(writer)
            output, _, errors = writers
            self._send(RUN, json.dumps(words).encode())
            taking = asyncio.create_task(self._take(readers[1]))
            try:
                code = await self._give(output, errors)
            finally:
                taking.cancel()
            if code == _LOST:
                await asyncio.sleep(_LAST_WORDS)
                errors.write(self._start.errors_since(self._said_before))
            self._end(code)
            for writer in (output, errors):
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        finally:
            self._end(code)
            for writer in writers:
                writer.transport.abort()

    async def _take(self, stdin: asyncio.StreamReader) -> None:
        """What the launcher writes goes there."""
        with contextlib.suppress(OSError):
            while data := await stdin.read(LARGEST):
                self._send(STREAM, data)
                await self._writer.drain()
            self._send(STREAM, b"")

    async def _give(self, output: asyncio.StreamWriter, errors: asyncio.StreamWriter) -> int:
        """What comes from there goes to the launcher; gives the exit code."""
        try:
            while True:
                kind, size = PIECE.unpack(await self._reader.readexactly(PIECE.size))
                if size > LARGEST:
                    return _LOST
                data = await self._reader.readexactly(size)
                if kind == EXIT:
                    return int(data)
                if kind == ERRORS and errors.transport.get_write_buffer_size() < _ERRORS_WAITING:
                    errors.write(data)
                elif kind == STREAM:
                    output.write(data)
                    await output.drain()
        except (OSError, EOFError, ValueError):
            return _LOST

    def _send(self, kind: int, data: bytes) -> None:
        self._writer.write(PIECE.pack(kind, len(data)) + data)

    def _kill(self) -> None:
        if self._code is None:
            self._send(KILL, b"")
            self._end(-signal.SIGKILL)
        if self._relaying is not None:
            self._relaying.cancel()

    def _end(self, code: int) -> None:
        if self._code is not None:
            return
        self._code = code
        self._over.set()
        self._writer.close()
        self._start.forget(self)


def _addresses() -> list[str]:
    """Where others may reach this machine, the likeliest first."""
    every = [address for _, address in network.interfaces() if not address.startswith("fe80:")]
    every.sort(key=network.is_loopback)
    first = network.own_address()
    return list(dict.fromkeys([*([first] if first else []), *every]))[:_ADDRESSES]


_OPEN: weakref.WeakSet[GroupStart] = weakref.WeakSet()


def _close_all_in_fork() -> None:
    for start in list(_OPEN):
        start.close_in_fork()
    _OPEN.clear()


os.register_at_fork(after_in_child=_close_all_in_fork)
