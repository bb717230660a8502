"""Takes connections at a port, of which strangers cannot keep others out.

Who has proved nothing has a place only as long as there is room: the origin with the most gives up
its oldest for one who comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import socket
from collections.abc import Awaitable, Callable

from phalanx._rendezvous.tcp.connections.crowd import Crowd, Standing

_PAUSE = 0.1
"""Seconds after which one is tried again that could not be taken: there may be descriptors then."""
_OWN_DESCRIPTORS = 16


class GuardedPort:
    """A listening socket, and those who came in by it."""

    def __init__(self, listening: socket.socket, room: int, *, keeps: bool = False) -> None:
        """`room` is for those who have proved nothing; with `keeps`, who has come further stays."""
        self._listening = listening
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        room = max(8, min(room, (descriptors - _OWN_DESCRIPTORS) // 2))
        self._crowd: Crowd[asyncio.Task[None]] = Crowd(room, room, keeps=keeps)

    async def serve(self, one: Callable[[socket.socket], Awaitable[None]]) -> None:
        """Have each connection served, until this is cancelled; then all of them end.

        Each is closed when it was served. `OSError` ends that one only.
        """
        loop = asyncio.get_running_loop()
        serving: set[asyncio.Task[None]] = set()

        async def serve(connection: socket.socket) -> None:
            with contextlib.suppress(OSError):
                await one(connection)

        def leave(connection: socket.socket, task: asyncio.Task[None]) -> None:
            connection.close()  # here, since one that is sent away may never have begun
            serving.discard(task)
            self._crowd.leave(task)

        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(self._listening)
                except OSError:
                    # No descriptor is left, or the other side has gone already.
                    await asyncio.sleep(_PAUSE)
                    continue
                connection.setblocking(False)
                task = asyncio.create_task(serve(connection))
                serving.add(task)
                task.add_done_callback(functools.partial(leave, connection))
                victim = self._crowd.enter(task, address[0], Standing.STRANGER)
                if victim is not None:
                    victim.cancel()
        finally:
            self._listening.close()
            for task in serving:
                task.cancel()

    def advance(self) -> None:
        """Who is served by this task has begun to prove itself."""
        self._crowd.advance(_own_task())

    def admit(self) -> None:
        """Who is served by this task is no stranger any more."""
        self._crowd.leave(_own_task())


def _own_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None  # those that serve are tasks
    return task
