"""A connection between two hosts of a rendezvous: frames, signs of life, the other's clock."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

from phalanx import _wire as wire
from phalanx._channel import trust
from phalanx._channel.channel import SocketChannel
from phalanx._core.clock import ClockOffset
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint
from phalanx._core.silence import Silence
from phalanx.errors import WireError

CONNECTING = 2.0
"""Seconds for a connection to another host to come about."""
_LONGEST = 8 << 20
"""Bytes of a record of one that takes part: a round of ten thousand hosts has one."""


class PeerUnreachable(Exception):
    """A host could not be reached; `closed`: nobody listens there, for certain.

    `stranger`: somebody does who is not of this run; `greeted`: but of another one of ours.
    """

    def __init__(
        self, reason: str, *, closed: bool, stranger: bool = False, greeted: bool = False
    ) -> None:
        super().__init__(reason)
        self.closed = closed
        self.stranger = stranger
        self.greeted = greeted


class Link:
    """What one host has of another."""

    def __init__(self, channel: SocketChannel, agent: AgentId | None = None) -> None:
        """`agent` is who is at the other end, once that is known."""
        self.agent = agent if agent is not None else AgentId(0)
        self.last_round = 0
        """The round that it was in when it came, under another that decided."""
        self.clock = ClockOffset()
        self.last_heard = time.monotonic()
        self.is_over = False
        """Nothing that is said here counts any more."""
        self._channel = channel
        channel.take_at_once = self._take_sign_of_life
        self._silence = Silence()

    @classmethod
    async def to(cls, endpoint: Endpoint, key: bytes, patience: float = CONNECTING) -> Link:
        """Connect, with a proof of the key both ways. Raises `PeerUnreachable`."""
        connection: socket.socket | None = None
        found: list[_Address] = []
        try:
            async with asyncio.timeout(patience):
                found = await _resolve(endpoint)
                connection = await _connect(found)
                session = await trust.prove(connection, key)
                link = cls(await SocketChannel.over(connection, session))
                link.trust()
                return link
        except TimeoutError:
            # One that takes connections and does not greet is as much a stranger as any.
            what = "no answer" if found else f"no answer from the resolver for {endpoint.address}"
            problem = PeerUnreachable(f"{what} within {patience:.0f} s", closed=False)
        except trust.NotTrusted as error:
            problem = PeerUnreachable(
                f"another program or run listens there: {error}",
                closed=False,
                stranger=True,
                greeted=error.greeted,
            )
        except OSError as error:
            gone = isinstance(error, ConnectionRefusedError | ConnectionResetError)
            closed = gone and connection is None
            problem = PeerUnreachable(error.strerror or str(error), closed=closed)
        if connection is not None:
            connection.close()
        raise problem from None

    def trust(self) -> None:
        """The other takes part: it may say as much as those do."""
        self._channel.session.limit = _LONGEST

    def join(self, agent: AgentId, last_round: int) -> None:
        """The other has said who it is, and which round it was last in."""
        self.agent, self.last_round = agent, last_round

    def forget_last_round(self) -> None:
        """The other is told of a round of ours."""
        self.last_round = 0

    async def send(self, frame: wire.Frame) -> None:
        """Say something; that the other is gone is heard where it is listened to."""
        with contextlib.suppress(ConnectionError):
            await self._channel.send(frame)

    def post_encoded(self, *frames: bytes) -> None:
        """Say something that is said to many, without waiting."""
        self._channel.post_encoded(*frames)

    async def frames(self) -> AsyncIterator[wire.Frame]:
        """What the other says, until it closes, but for signs of life."""
        try:
            async for frame in self._channel.frames():
                self.last_heard = time.monotonic()
                yield frame
        except WireError:
            self._channel.abort()

    def _take_sign_of_life(self, frame: wire.Frame) -> bool:
        """Answer a ping, learn from the answer to ours; False if it is something else."""
        if isinstance(frame, wire.Pong):
            self.last_heard = time.monotonic()
            self.clock.observe(frame.sent, frame.clock, self.last_heard)
            return True
        if isinstance(frame, wire.Ping):
            self.last_heard = time.monotonic()
            if not self._channel.congested:
                pong = wire.Pong(sent=frame.sent, clock=self.last_heard)
                self._channel.post_encoded(wire.encode(pong))
            return True
        return False

    def pass_time(self, seconds: float) -> None:
        """So much time was waited for: silence is counted in it."""
        self._silence.pass_time(seconds, self._channel.heard)

    @property
    def silent(self) -> float:
        """How long nothing was heard."""
        return self._silence.seconds

    def post_ping(self, ping: bytes) -> None:
        """A sign of life, which is answered: a `Ping`, written down for many."""
        if not self._channel.congested:
            self._channel.post_encoded(ping)

    async def flush(self, patience: float) -> None:
        """Wait so long until everything is sent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._channel.flush()

    def close(self) -> None:
        """End it; idempotent."""
        self.is_over = True
        self._channel.close()

    def abort(self) -> None:
        """End it without waiting for what was sent."""
        self.is_over = True
        self._channel.abort()


_Address = tuple[int, int, int, str, Any]


async def _resolve(endpoint: Endpoint) -> list[_Address]:
    """An endpoint's addresses. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    return list(await loop.getaddrinfo(endpoint.address, endpoint.port, type=socket.SOCK_STREAM))


async def _connect(found: list[_Address]) -> socket.socket:
    """A connection to the first of the addresses that takes one. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    problem: OSError | None = None
    for family, kind, protocol, _, address in found:
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, address)
            return connection
        except OSError as error:
            connection.close()
            problem = error
        except BaseException:
            connection.close()
            raise
    raise problem or OSError("no address")
