"""Where a launcher comes back that has lost its stream to this agent.

A command on this host (`bootstrap.attach`) brings it to a socket in the agent's spool, which only
the user may enter. Both prove that they have the app's key, say how many frames they have, and the
stream goes on over the descriptors that the command hands over. If nobody comes, the channel ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import secrets
import socket
import threading
from typing import IO, Any

from phalanx import _wire as wire
from phalanx._agent.warm_wait import peer
from phalanx._channel.ledger import FrameLedger
from phalanx._channel.resumable import ChannelState, ResumableChannel
from phalanx._channel.trust import resume_proof
from phalanx._core.json_text import parse_json
from phalanx._remote.bootstrap import RECONNECT
from phalanx.errors import WireError

_PATIENCE = 20.0
"""Seconds for the way from a first word to a stream."""
_LINE = 4096


class _Refused(Exception):
    """Why one that has come is not let in."""


class ReconnectListener:
    """Keeps an agent's channel going, over one stream after another."""

    def __init__(self, spool: str, prepare: wire.Prepare) -> None:
        """Raises `OSError` if the socket cannot be made."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        directory = os.open(spool, os.O_PATH | os.O_DIRECTORY)
        try:
            # By descriptor: the path of a socket may have only 107 bytes.
            self._socket.bind(f"/proc/self/fd/{directory}/{RECONNECT}")
        finally:
            os.close(directory)
        self._socket.listen(8)
        self._errors = _ErrorStream()
        self._bridge: socket.socket | None = None
        """To the command that holds the present stream; it ends when this is closed."""
        self._deadline: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.take_up(prepare)

    def take_up(self, prepare: wire.Prepare) -> None:
        """Begin with an app: its launcher alone may come back."""
        self._key, self._timeout = prepare.reconnect_key, prepare.reconnect_timeout

    async def open(
        self,
        read: IO[bytes],
        write: IO[bytes],
        decoder: wire.Decoder,
        held: list[wire.Frame],
    ) -> ResumableChannel:
        """The channel over its first stream; the frames `held` have come already."""
        state = ChannelState(FrameLedger(len(held)), decoder)
        self._channel = await ResumableChannel.over(read, write, state, self._wait_for_return, held)
        self._spawn(self._accept())
        return self._channel

    async def finish(self) -> None:
        """Have the launcher get everything, if it is there or comes back in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout + 1.0):
                await self._channel.finish()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wait_for_return(self, channel: ResumableChannel) -> None:
        self._leave_bridge()
        self._errors.turn_to(None)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._timeout, channel.give_up)

    def _leave_bridge(self) -> None:
        if self._bridge is not None:
            self._bridge.close()
            self._bridge = None

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._socket)
            if peer(connection)[1] == os.geteuid():
                self._spawn(self._let_in(connection))
            else:
                connection.close()

    async def _let_in(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            async with asyncio.timeout(_PATIENCE):
                count, numbers = await self._prove(connection)
                # Nothing of the old stream is heard any more: how much has come is final.
                own = self._channel.detach()
                answer = resume_proof(self._key, "agent", numbers, own)
                await _write(connection, state="attached", received=own, proof=answer)
                read, write, errors = await _receive_streams(connection)
        except (_Refused, WireError, OSError, TimeoutError, ValueError) as error:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await _write(connection, state="refused", message=str(error))
            connection.close()
            if not self._channel.is_connected and self._deadline is None:
                self._wait_for_return(self._channel)
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._leave_bridge()
        self._bridge = connection
        self._errors.turn_to(errors)
        await self._channel.resume(read, write, count)

    async def _prove(self, connection: socket.socket) -> tuple[int, tuple[str, str]]:
        """Have one that has come prove that it is our launcher; gives how many frames it has.

        And the random numbers of both sides. Raises `_Refused` and `WireError`.
        """
        first = await _read(connection)
        match first:
            case {"number": str(number), "received": int(received)}:
                numbers = (number, secrets.token_hex(32))
            case _:
                raise _Refused("it did not greet")
        await _write(connection, number=numbers[1])
        answer = await _read(connection)
        wanted = resume_proof(self._key, "launcher", numbers, received)
        if not hmac.compare_digest(str(answer.get("proof")).encode(), wanted.encode()):
            raise _Refused("it could not prove that it is the launcher of this app")
        if self._channel.has_ended:
            raise _Refused("the agent is ending")
        self._channel.state.ledger.check(received)
        return received, numbers


class _ErrorStream:
    """Our standard output and error, for as long as streams come and go.

    Whoever writes there, ourselves and the zygote, gets a pipe that never breaks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._to: int | None = os.dup(2)
        read, write = os.pipe()
        for number in (1, 2):
            os.dup2(write, number)
        os.close(write)
        threading.Thread(target=self._pass_on, args=(read,), daemon=True).start()

    def turn_to(self, number: int | None) -> None:
        """Go on with another descriptor, which is ours from now on; with None, with nothing."""
        with self._lock:
            if self._to is not None:
                os.close(self._to)
            self._to = number

    def _pass_on(self, read: int) -> None:
        while data := os.read(read, 1 << 16):
            with self._lock:
                target = None if self._to is None else os.dup(self._to)
            if target is not None:
                # Outside of the lock: one that does not read must not hold up who turns away.
                with contextlib.suppress(OSError), open(target, "wb", 0) as file:
                    file.write(data)


async def _read(connection: socket.socket) -> dict[str, Any]:
    """One line of JSON, and nothing behind it."""
    loop = asyncio.get_running_loop()
    line = b""
    while not line.endswith(b"\n"):
        # A byte at a time: what follows the last line comes with descriptors.
        byte = await loop.sock_recv(connection, 1)
        line += byte
        if not byte or len(line) > _LINE:
            raise _Refused("it left" if not byte else "it sends too much")
    message = parse_json(line)
    if not isinstance(message, dict):
        raise _Refused("it did not greet")
    return message


async def _write(connection: socket.socket, **message: Any) -> None:
    data = json.dumps(message).encode() + b"\n"
    await asyncio.get_running_loop().sock_sendall(connection, data)


async def _receive_streams(connection: socket.socket) -> tuple[IO[bytes], IO[bytes], int]:
    """The descriptors to read from, to write to, and for errors."""
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_reader(connection, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(connection)
    _, numbers, _, _ = socket.recv_fds(connection, 1, 3)
    for number in numbers:
        os.set_inheritable(number, False)
    if len(numbers) != 3:
        for number in numbers:
            os.close(number)
        raise _Refused("it brought no stream")
    return open(numbers[0], "rb", 0), open(numbers[1], "wb", 0), numbers[2]  # noqa: ASYNC230
