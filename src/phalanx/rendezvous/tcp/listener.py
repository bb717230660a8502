"""Where a host takes connections: those of its peers, and, on a shared port, those for the store.

With a fixed port for everything, as torch's static rendezvous has it, workers find the round's
store at the same port as hosts find each other: what does not begin as a frame is passed on to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from phalanx.channel import SocketChannel
from phalanx.rendezvous.tcp.link import Link
from phalanx.rounds import Endpoint

_FIRST_WORD = 10.0
"""Seconds in which one that connects must say something."""
_MAGIC = b"PHX"

Take = Callable[[Link], Awaitable[None]]
Do = Callable[[Coroutine[None, None, Any]], Any]


class Listener:
    """A port of this host."""

    def __init__(self, port: int, *, anywhere: bool) -> None:
        """Take a port (0: any), of every address or of loopback. Raises `OSError`."""
        self.store: Endpoint | None = None
        """Where to pass on what is no peer's; None: nowhere."""
        self._socket = _bind(port, anywhere=anywhere)
        self.port: int = self._socket.getsockname()[1]

    def serve(self, take: Take, do: Do) -> None:
        """Begin to take connections; each goes to `take`, run by `do`."""
        self._socket.listen(1024)
        self._socket.setblocking(False)
        do(self._accept(take, do))

    def close(self) -> None:
        """Take no more; idempotent."""
        self._socket.close()

    async def _accept(self, take: Take, do: Do) -> None:
        loop = asyncio.get_running_loop()
        while self._socket.fileno() >= 0:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError:
                if self._socket.fileno() < 0:
                    return
                await asyncio.sleep(0.05)  # no descriptors left: some will be
                continue
            do(self._sort(connection, take))

    async def _sort(self, connection: socket.socket, take: Take) -> None:
        """Find out whose it is by its first bytes."""
        if self.store is not None and not await _begins_as_frame(connection):
            await _splice(connection, self.store)
            return
        await take(Link(await SocketChannel.over(connection)))


def _bind(port: int, *, anywhere: bool) -> socket.socket:
    if anywhere:
        with contextlib.suppress(OSError):
            both = socket.socket(socket.AF_INET6)
            try:
                both.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                both.bind(("::", port))
                return both
            except OSError:
                both.close()
                raise
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("0.0.0.0" if anywhere else "127.0.0.1", port))  # noqa: S104
    except OSError:
        bound.close()
        raise
    return bound


async def _begins_as_frame(connection: socket.socket) -> bool:
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await asyncio.wait_for(readable.wait(), _FIRST_WORD)
        first = connection.recv(len(_MAGIC), socket.MSG_PEEK)
    except (TimeoutError, OSError):
        first = b""
    finally:
        loop.remove_reader(connection)
    return first == _MAGIC[: len(first)] and bool(first)


async def _splice(connection: socket.socket, place: Endpoint) -> None:
    """Join two connections until one of them ends."""
    try:
        ours = await asyncio.open_connection(sock=connection)
        theirs = await asyncio.open_connection(place.address, place.port)
    except OSError:
        connection.close()
        return
    await asyncio.gather(_pump(ours[0], theirs[1]), _pump(theirs[0], ours[1]))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
