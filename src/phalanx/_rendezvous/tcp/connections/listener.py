"""Where a host takes connections: those of its peers, and, on a shared port, those for the store.

With a fixed port for everything, as torch's static rendezvous has it, workers find the round's
store at the same port as hosts find each other: what does not begin as a peer is passed on to it.

Whoever connects is a stranger until it takes part. Strangers cost a bounded number of descriptors
and a bounded time: when there are too many, one of those goes that come from where most come from,
and first of all those that have said nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import os
import resource
import socket
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any

from phalanx._channel import trust
from phalanx._channel.channel import SocketChannel
from phalanx._core.rounds import Endpoint
from phalanx._logs import logger
from phalanx._rendezvous.tcp.connections import torch_store
from phalanx._rendezvous.tcp.connections.crowd import Crowd, Standing
from phalanx._rendezvous.tcp.connections.link import Link
from phalanx._rendezvous.tcp.connections.newcomer import Newcomer
from phalanx._rendezvous.tcp.connections.store_gate import StoreGate
from phalanx._system import socket_owner
from phalanx._system.local_users import LocalUsers

_FIRST_WORD = 10.0
"""Seconds in which one that connects to a shared port must say something."""
_MOST_STRANGERS = 256
_QUEUE = 4096
"""How many may have connected and not been taken yet."""
_AT_ONCE = 16
"""How many are taken in a row before those are served that have come before."""
_SILENT = 5
"""Seconds in which the kernel keeps those that have said nothing yet."""

Take = Callable[[Link], Awaitable[None]]
Do = Callable[[Coroutine[None, None, Any]], Any]


class Listener:
    """A port of this host."""

    def __init__(self, port: int, key: bytes, *, anywhere: bool, is_endpoint: bool) -> None:
        """Take a port (0: any), of every address or of loopback. Raises `OSError`.

        `is_endpoint`: those that look for the endpoint are right here.
        """
        self._socket = _bind(port, anywhere=anywhere)
        _take_speakers_first(self._socket)
        self.port: int = self._socket.getsockname()[1]
        here = trust.key_at(key, self.port)
        self._keys = (key, here) if is_endpoint else (here,)
        self._gate = StoreGate()
        self._said = self._said_mixed = False
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = max(8, min(_MOST_STRANGERS, descriptors // 8))
        self._crowd: Crowd[socket.socket | Link] = Crowd(most, most)
        """Those that do not take part yet."""
        self._ends: dict[socket.socket | Link, Callable[[], object]] = {}
        """What ends each of them."""
        self._origins: weakref.WeakKeyDictionary[Link, Hashable] = weakref.WeakKeyDictionary()
        self._proven: set[Hashable] = set()
        """From where hosts that take part have come."""
        self._users = LocalUsers(os.getpid())

    def serve(self, take: Take | None, do: Do) -> None:
        """Begin to take connections, run by `do`; each peer's goes to `take`.

        Without it no peer can come, and the port is the store's alone.
        """
        self._socket.setblocking(False)
        do(self._accept(take, do))

    def share_with(self, store: Endpoint | None) -> None:
        """Pass on to this store what is no peer's; None: to nobody."""
        self._gate.store = store

    def know(self, link: Link) -> None:
        """One that has connected takes part: it is no stranger any more."""
        self._forget(link)
        if (origin := self._origins.get(link)) is not None:
            self._proven.add(origin)
        link.trust()

    def close(self) -> None:
        """Take no more; idempotent."""
        self._socket.close()
        for one, end in list(self._ends.items()):
            self._forget(one)
            end()

    async def _accept(self, take: Take | None, do: Do) -> None:
        loop = asyncio.get_running_loop()
        taken = 0
        while self._socket.fileno() >= 0:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError:
                if self._socket.fileno() < 0:
                    return
                await asyncio.sleep(0.05)  # no descriptors left: some will be
                continue
            connection.setblocking(False)
            taken += 1
            if self._is_refused(connection, take):
                connection.close()
            elif self._enter(connection, origin := _origin_of(connection)):
                if take is None or self._gate.store is not None:
                    self._ends[connection] = do(self._tell(connection, origin, take, do)).cancel
                else:
                    self._meet(connection, origin, take, do)
            else:
                connection.close()
            if taken % _AT_ONCE == 0:
                # Whoever comes in a flood must not keep us from those that have come before.
                await asyncio.sleep(0)

    def _is_refused(self, connection: socket.socket, take: Take | None) -> bool:
        """It has gone already, or speaks what nobody here understands: known at once, and cheap.

        The longer each of a flood takes, the longer others wait behind it.
        """
        try:
            first = connection.recv(torch_store.LONGEST, socket.MSG_PEEK)
        except BlockingIOError:
            return False  # it has said nothing yet
        except OSError:
            return True
        if take is None or self._gate.store is not None or trust.begins_as_greeting(first):
            return not first
        self._say_mixed_once(first)
        with contextlib.suppress(OSError):
            connection.recv(1 << 12)  # what is not read would have the end come as a reset
        return True

    def _enter(self, one: socket.socket | Link, origin: Hashable) -> bool:
        """Have one be among those that wait, if need be in place of another."""
        # By origin alone: hosts that will join are strangers as well.
        victim = self._crowd.enter(one, origin, Standing.STRANGER)
        if victim is not None and victim is not one:
            self._ends.pop(victim)()
        return victim is not one

    def _forget(self, one: socket.socket | Link) -> None:
        self._crowd.leave(one)
        self._ends.pop(one, None)

    def _standing(self, origin: Hashable) -> Standing:
        if isinstance(origin, int):  # others of this machine are not let in
            return Standing.OWN
        return Standing.PROVEN if origin in self._proven else Standing.STRANGER

    async def _tell(
        self, connection: socket.socket, origin: Hashable, take: Take | None, do: Do
    ) -> None:
        """Find out whether it is a peer, or means the store."""
        is_peer = False
        try:
            async with asyncio.timeout(_FIRST_WORD):
                first = await _peek(connection)
            is_peer = take is not None and trust.begins_as_greeting(first)
            if not is_peer:
                self._forget(connection)
                if self._users.admit(connection):
                    await self._gate.pass_on(connection, origin, self._standing(origin))
        except (trust.NotTrusted, TimeoutError, OSError):
            pass  # strangers come and go, and nobody waits for them
        finally:
            if not is_peer:
                self._forget(connection)
                connection.close()
        if is_peer:
            assert take is not None
            self._ends.pop(connection, None)  # what ends it is another from now on
            self._meet(connection, origin, take, do)

    def _meet(self, connection: socket.socket, origin: Hashable, take: Take, do: Do) -> None:
        """Have it prove itself. Whatever goes wrong costs this connection alone."""

        def proved(seal: trust.ConnectionSeal) -> None:
            self._ends[connection] = do(self._take_in(connection, seal, origin, take)).cancel

        def refused(why: trust.NotTrusted | OSError) -> None:
            self._forget(connection)
            if isinstance(why, trust.NotTrusted):
                self._say_once(why, connection)
                self._say_mixed_once(why.heard)

        newcomer = Newcomer(
            connection,
            trust.Admission(*self._keys),
            greeted=functools.partial(self._crowd.advance, connection),
            proved=proved,
            refused=refused,
        )
        if connection in self._crowd:
            self._ends.setdefault(connection, newcomer.end)

    async def _take_in(
        self, connection: socket.socket, seal: trust.ConnectionSeal, origin: Hashable, take: Take
    ) -> None:
        link: Link | None = None
        try:
            link = Link(await SocketChannel.over(connection, seal))
        except OSError:
            return  # it has left
        finally:
            self._forget(connection)
            if link is None:
                connection.close()
        await self._hand_over(link, origin, take)

    async def _hand_over(self, link: Link, origin: Hashable, take: Take) -> None:
        if not self._enter(link, origin):
            link.close()
            return
        self._crowd.advance(link)
        self._ends[link] = link.close
        self._origins[link] = origin
        try:
            await take(link)
        except Exception:  # noqa: BLE001 said, and it costs this connection alone
            logger.exception("phalanx: a connection to the rendezvous failed")
            link.close()
        finally:
            if link.is_over:
                self._forget(link)

    def _say_once(self, error: trust.NotTrusted, connection: socket.socket) -> None:
        """A host that was given another token waits in vain: it should be seen here as well."""
        if error.is_wrong and not self._said:
            self._said = True
            peer = ""
            with contextlib.suppress(OSError):  # it may have gone
                peer = f" from {connection.getpeername()[0]}"
            logger.warning("phalanx: refused a connection%s with a wrong token, or none", peer)

    def _say_mixed_once(self, heard: bytes) -> None:
        """It cannot be told so itself: all that its client knows is to come again."""
        if torch_store.is_from_torch(heard) and not self._said_mixed:
            self._said_mixed = True
            logger.warning(
                "phalanx: refused a host that was started with torch's own launcher: %s",
                torch_store.MIXED,
            )


def _origin_of(connection: socket.socket) -> Hashable:
    """Where a connection is from: a user of this machine, by number, or a network's address."""
    try:
        address, here = connection.getpeername()[0], connection.getsockname()[0]
    except OSError:
        return ""  # it has gone already
    is_near, network = _place_of(address)
    uid = socket_owner.peer_uid(connection) if is_near or address == here else None
    return network if uid is None else uid


@functools.lru_cache(maxsize=1024)
def _place_of(address: str) -> tuple[bool, Hashable]:
    """Whether an address is of this machine; the network that it is of, or itself.

    Kept, as most of a flood come from few: the longer each takes, the longer others wait behind it.
    """
    plain = socket_owner.plain_address(address)
    packed = ipaddress.ip_address(plain).packed
    # Of version 6 a host has as many addresses as it likes.
    return socket_owner.is_of_this_machine(plain), plain if len(packed) == 4 else packed[:8]


def _bind(port: int, *, anywhere: bool) -> socket.socket:
    """Take a port and listen. Raises `OSError`."""
    if anywhere:
        with contextlib.suppress(OSError):
            both = socket.socket(socket.AF_INET6)
            try:
                both.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                both.bind(("::", port))
                both.listen(_QUEUE)  # only now is it certain that nobody else has the port
                return both
            except OSError:
                both.close()
                raise
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("0.0.0.0" if anywhere else "127.0.0.1", port))  # noqa: S104
        bound.listen(_QUEUE)
    except OSError:
        bound.close()
        raise
    return bound


def _take_speakers_first(listening: socket.socket) -> None:
    """Have the kernel hand over those that have said something, and others only after a while.

    A peer speaks first: it does not wait behind thousands that are idle. Those are many half-open
    connections to the kernel, which it can bear with SYN cookies, and not without.
    """
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/tcp_syncookies") as file:
        if file.read().strip() != "0":
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _SILENT)


async def _peek(connection: socket.socket) -> bytes:
    """The first bytes that come, which stay to be read. Raises `NotTrusted` if none do."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    while True:
        with contextlib.suppress(BlockingIOError):
            first = connection.recv(len(trust.GREETING), socket.MSG_PEEK)
            break
        loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(connection)
    if not first:
        raise trust.NotTrusted("it left")
    return first
