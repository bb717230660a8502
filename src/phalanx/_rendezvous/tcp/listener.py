"""Where a host takes connections: those of its peers, and, on a shared port, those for the store.

With a fixed port for everything, as torch's static rendezvous has it, workers find the round's
store at the same port as hosts find each other: what does not begin as a peer is passed on to it.

Whoever connects is a stranger until it takes part. Strangers cost a bounded number of descriptors
and a bounded time: when there are too many, the one that has waited longest goes, and first of all
those that have said nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from phalanx._channel import trust
from phalanx._channel.channel import SocketChannel
from phalanx._core.rounds import Endpoint
from phalanx._logs import logger
from phalanx._rendezvous.tcp.link import Link

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
        self._store: Endpoint | None = None
        """Where to pass on what is no peer's; None: nowhere."""
        self._key = key
        self._socket = _bind(port, anywhere=anywhere)
        self.port: int = self._socket.getsockname()[1]
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_strangers = max(8, min(_MOST_STRANGERS, descriptors // 8))
        self._most_passed_on = max(8, (descriptors - _OWN_DESCRIPTORS) // 2)
        self._said = False
        self._passed_on = 0
        self._unanswered: dict[socket.socket, Callable[[], object]] = {}
        """Those that were passed on to the store, which has not said anything to them."""
        self._silent: dict[socket.socket, Callable[[], object]] = {}
        """Those that have connected and said nothing, as they came, and what ends each."""
        self._strangers: dict[socket.socket | Link, Callable[[], object]] = {}
        """The same for those that have greeted, and do not take part."""

    def serve(self, take: Take | None, do: Do) -> None:
        """Begin to take connections, run by `do`; each peer's goes to `take`.

        Without it no peer can come, and the port is the store's alone.
        """
        self._socket.listen(4096)
        self._socket.setblocking(False)
        do(self._accept(take, do))

    def share_with(self, store: Endpoint | None) -> None:
        """Pass on to this store what is no peer's; None: to nobody."""
        self._store = store

    def know(self, link: Link) -> None:
        """One that has connected takes part: it is no stranger any more."""
        self._strangers.pop(link, None)
        link.trust()

    def close(self) -> None:
        """Take no more; idempotent."""
        self._socket.close()
        for end in (*self._silent.values(), *self._strangers.values()):
            end()
        self._silent.clear()
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
            self._make_room()
            task = do(self._receive(connection, take))
            self._silent[connection] = task.cancel
            # Whoever comes in a flood must not keep us from those that have come before.
            await asyncio.sleep(0)

    async def _receive(self, connection: socket.socket, take: Take | None) -> None:
        """Find out whose it is. Whatever goes wrong costs this connection alone."""
        link: Link | None = None
        try:
            if take is None or self._store is not None:
                async with asyncio.timeout(_FIRST_WORD):
                    first = await _peek(connection)
                if take is None or not first.startswith(trust.GREETING[: len(first)]):
                    self._silent.pop(connection, None)
                    await self._pass_on(connection)
                    return
            async with asyncio.timeout(_PROVING):
                greeting = await trust.hear_greeting(connection)
                if (end := self._silent.pop(connection, None)) is None:
                    return  # others came, and it had said nothing for longest
                self._strangers[connection] = end
                session = await trust.admit(connection, self._key, greeting)
            link = Link(await SocketChannel.over(connection, session))
        except trust.NotTrusted as error:
            self._say_once(error)
            return
        except (TimeoutError, OSError):
            return  # strangers come and go, and nobody waits for them
        finally:
            self._silent.pop(connection, None)
            self._strangers.pop(connection, None)
            if link is None:
                connection.close()
        assert take is not None
        self._strangers[link] = link.close
        try:
            await take(link)
        except Exception:  # noqa: BLE001 said, and it costs this connection alone
            logger.exception("phalanx: a connection to the rendezvous failed")
            link.close()

    def _say_once(self, error: trust.NotTrusted) -> None:
        """A host that was given another token waits in vain: it should be seen here as well."""
        if error.is_wrong and not self._said:
            self._said = True
            logger.warning("phalanx: refused a connection with a wrong token, or none")

    def _make_room(self) -> None:
        while len(self._silent) + len(self._strangers) >= self._most_strangers:
            group: dict[Any, Callable[[], object]] = self._silent or self._strangers
            group.pop(next(iter(group)))()

    async def _pass_on(self, connection: socket.socket) -> None:
        """To the store. When there are too many, the oldest that it has not answered goes."""
        if self._store is None:
            return
        if self._passed_on >= self._most_passed_on:
            if not self._unanswered:
                return
            self._unanswered.pop(next(iter(self._unanswered)))()
        task = asyncio.current_task()
        assert task is not None
        self._unanswered[connection] = task.cancel
        self._passed_on += 1
        try:
            await _splice(connection, self._store, lambda: self._unanswered.pop(connection, None))
        finally:
            self._unanswered.pop(connection, None)
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


async def _splice(
    connection: socket.socket, place: Endpoint, answered: Callable[[], object]
) -> None:
    """Join two connections until one of them ends; `answered` when the other says something."""
    writers: list[asyncio.StreamWriter] = []
    try:
        ours = await asyncio.open_connection(sock=connection)
        writers.append(ours[1])
        theirs = await asyncio.open_connection(place.address, place.port)
        writers.append(theirs[1])
        await asyncio.gather(
            _pump(ours[0], theirs[1], lambda: None), _pump(theirs[0], ours[1], answered)
        )
    except OSError:
        return
    finally:
        for writer in writers:
            writer.close()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: Callable[[], object]
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            first()
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
