"""The way to the round's store at a shared port: who is let through, and how many.

torch's store asks nobody for a proof, and serves all on one thread. So those that are known come
first: processes of this machine, which are this user's (`local_users`), then whatever comes from
where a host has proved itself. Strangers are few, in turn by origin, and go when there is no room.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Callable, Hashable

from phalanx._core.rounds import Endpoint
from phalanx._rendezvous.tcp.connections.crowd import Crowd, Standing

_OWN_DESCRIPTORS = 256
"""Descriptors of this process that connections to the store never take."""
_MOST_STRANGERS = 64
_BUFFER = 1 << 14
"""Bytes that are kept of one that does not read, or sends faster than the store takes."""


class StoreGate:
    """Passes connections on to the store, while there is one."""

    def __init__(self) -> None:
        """There is none yet."""
        self.store: Endpoint | None = None
        """Where it is; None: nowhere."""
        self._crowd: Crowd[socket.socket] = Crowd(0, 0, keeps=True)
        self._ends: dict[socket.socket, Callable[[], object]] = {}

    async def pass_on(
        self, connection: socket.socket, origin: Hashable, standing: Standing
    ) -> None:
        """Join a connection with the store until one of them ends, or there is no room for it."""
        store, task = self.store, asyncio.current_task()
        assert task is not None
        if store is None:
            return
        # Each takes two. Looked at each time: the limit may have been raised meanwhile.
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._crowd.room = max(8, (descriptors - _OWN_DESCRIPTORS) // 2)
        self._crowd.strangers = max(4, min(_MOST_STRANGERS, self._crowd.room // 4))
        victim = self._crowd.enter(connection, origin, standing)
        if victim is connection:
            return
        if victim is not None:
            self._ends.pop(victim)()
        self._ends[connection] = task.cancel
        try:
            await _splice(connection, store, lambda: self._crowd.advance(connection))
        finally:
            self._ends.pop(connection, None)
            self._crowd.leave(connection)


async def _splice(
    connection: socket.socket, endpoint: Endpoint, answered: Callable[[], object]
) -> None:
    """Join two connections until one of them ends; `answered` when the other says something."""
    writers: list[asyncio.StreamWriter] = []
    try:
        ours = await asyncio.open_connection(sock=connection, limit=_BUFFER)
        writers.append(ours[1])
        theirs = await asyncio.open_connection(endpoint.address, endpoint.port, limit=_BUFFER)
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
        while data := await reader.read(_BUFFER):
            first()
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
