"""A command's streams over a connection: records whose first byte says what they are.

    client ──► server   a request, as JSON: argv, and for a replica what it needs besides
    client ──► server   IN data · IN (its end: an empty one) · SIGNAL number
    server ──► client   OUT data · ERR data · EXIT code, the last

Both sides have proved the token first (`_channel.trust`), and every record is sealed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from phalanx._channel import trust
from phalanx.errors import WireError

IN, OUT, ERR, EXIT, SIGNAL = (bytes([number]) for number in range(5))
PIECE = 1 << 16
_PROVING = 10.0
"""Seconds for the other side to prove itself."""
_PURPOSE = "commands on ray"


class RecordStream:
    """Records over one connection, after the proof."""

    def __init__(self, connection: socket.socket, seal: trust.ConnectionSeal) -> None:
        self._connection = connection
        self._seal = seal
        self._seal.limit = PIECE + 1024
        self._waiting: list[bytes] = []
        self._sending = asyncio.Lock()

    async def send(self, record: bytes) -> None:
        """Send one. Raises `OSError`."""
        async with self._sending:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(self._connection, self._seal.seal(record))

    async def receive(self) -> bytes | None:
        """The next; None when the other side has left, however. Raises nothing."""
        loop = asyncio.get_running_loop()
        try:
            while not self._waiting:
                data = await loop.sock_recv(self._connection, PIECE)
                if not data:
                    return None
                self._waiting = self._seal.open(data)
        except (OSError, WireError):
            return None
        return self._waiting.pop(0)

    async def records(self) -> AsyncIterator[bytes]:
        """All, until the other side leaves."""
        while (record := await self.receive()) is not None:
            yield record

    def close(self) -> None:
        """Leave. Idempotent."""
        self._connection.close()


def make_key(token: str) -> bytes:
    """What both sides prove that they have."""
    return trust.key_of(token, _PURPOSE)


async def connect(host: str, port: int, token: str, through: str = "") -> RecordStream:
    """Reach whoever listens there; `through` is said first, to a relay.

    Raises `OSError` and `NotTrusted`.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_PROVING):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    try:
        async with asyncio.timeout(_PROVING):
            await loop.sock_connect(connection, address)
            keep_alive(connection)
            if through:
                await loop.sock_sendall(connection, f"{through}\n".encode())
            seal = await trust.prove(connection, make_key(token))
    except BaseException:
        connection.close()
        raise
    return RecordStream(connection, seal)


async def admit(connection: socket.socket, token: str) -> RecordStream | None:
    """One that has connected, if it proves itself; otherwise the connection is closed."""
    keep_alive(connection)
    try:
        async with asyncio.timeout(_PROVING):
            seal = await trust.admit(connection, make_key(token))
    except (trust.NotTrusted, OSError, TimeoutError):
        connection.close()
        return None
    return RecordStream(connection, seal)


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice that the other side is gone, and send small records at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        with contextlib.suppress(AttributeError, OSError):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
