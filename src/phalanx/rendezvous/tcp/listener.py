"""Where a host takes connections: those of its peers, and, on a shared port, those for the store.

With a fixed port for everything, as torch's static rendezvous has it, workers find the round's
store at the same port as hosts find each other: what does not begin as a peer is passed on to it.

Whoever connects is a stranger until it takes part. Strangers cost a bounded number of descriptors
and a bounded time: when there are too many, the one that has waited longest goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from phalanx import trust
from phalanx.channel import SocketChannel
from phalanx.logs import logger
from phalanx.rendezvous.tcp.link import Link
from phalanx.rounds import Endpoint

_PROVING = 5.0
"""Seconds in which one that connects must have proved itself."""
_FIRST_WORD = 10.0
"""Seconds in which one that connects to a shared port must say something."""
_MOST_STRANGERS = 256
_OWN_DESCRIPTORS = 256
"""Descriptors of this process that connections passed on to the store never take."""

Take = Callable[[Link], Awaitable[None]]
Do = Callable[[Coroutine[None, None, Any]], Any]


class Listener:
    """A port of this host."""

    def __init__(self, port: int, key: bytes, *, anywhere: bool) -> None:
        """Take a port (0: any), of every address or of loopback. Raises `OSError`."""
        self.store: Endpoint | None = None
        """Where to pass on what is no peer's; None: nowhere."""
        self._key = key
        self._socket = _bind(port, anywhere=anywhere)
        self.port: int = self._socket.getsockname()[1]
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_strangers = max(8, min(_MOST_STRANGERS, descriptors // 8))
        self._most_passed_on = max(8, (descriptors - _OWN_DESCRIPTORS) // 2)
        self._passed_on = 0
        self._strangers: dict[socket.socket | Link, Callable[[], object]] = {}
        """Those that have connected and do not take part, as they came, and what ends each."""

    def serve(self, take: Take | None, do: Do) -> None:
        """Begin to take connections, run by `do`; each peer's goes to `take`.

        Without it no peer can come, and the port is the store's alone.
        """
        self._socket.listen(1024)
        self._socket.setblocking(False)
        do(self._accept(take, do))

    def know(self, link: Link) -> None:
        """One that has connected takes part: it is no stranger any more."""
        self._strangers.pop(link, None)
        link.trust()

    def close(self) -> None:
        """Take no more; idempotent."""
        self._socket.close()
        for end in self._strangers.values():
            end()
        self._strangers.clear()

    async def _accept(self, take: Take | None, do: Do) -> None:
        loop = asyncio.get_running_loop()
        while self._socket.fileno() >= 0:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError:
                if self._socket.fileno() < 0:
                    return
                await asyncio.sleep(0.05)  # no descriptors left: some will be
                continue
            connection.setblocking(False)
            do(self._receive(connection, take))

    async def _receive(self, connection: socket.socket, take: Take | None) -> None:
        """Find out whose it is. Whatever goes wrong costs this connection alone."""
        task = asyncio.current_task()
        assert task is not None
        link: Link | None = None
        self._make_room()
        self._strangers[connection] = task.cancel
        try:
            if take is None or self.store is not None:
                async with asyncio.timeout(_FIRST_WORD):
                    first = await _peek(connection)
                if take is None or not first.startswith(trust.GREETING[: len(first)]):
                    del self._strangers[connection]
                    await self._pass_on(connection)
                    return
            async with asyncio.timeout(_PROVING):
                session = await trust.admit(connection, self._key)
            link = Link(await SocketChannel.over(connection, session))
        except (trust.NotTrusted, TimeoutError, OSError):
            return  # strangers come and go, and nobody waits for them
        finally:
            self._strangers.pop(connection, None)
            if link is None:
                connection.close()
        self._strangers[link] = link.close
        try:
            await take(link)
        except Exception:  # noqa: BLE001 said, and it costs this connection alone
            logger.exception("phalanx: a connection to the rendezvous was given up")
            link.close()

    def _make_room(self) -> None:
        while len(self._strangers) >= self._most_strangers:
            self._strangers.pop(next(iter(self._strangers)))()

    async def _pass_on(self, connection: socket.socket) -> None:
        if self.store is None or self._passed_on >= self._most_passed_on:
            return
        self._passed_on += 1
        try:
            await _splice(connection, self.store)
        finally:
            self._passed_on -= 1


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


async def _peek(connection: socket.socket) -> bytes:
    """The first bytes that come, which stay to be read. Raises `NotTrusted` if none do."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
        first = connection.recv(len(trust.GREETING), socket.MSG_PEEK)
    finally:
        loop.remove_reader(connection)
    if not first:
        raise trust.NotTrusted("it left")
    return first


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
