"""Files between two hosts, over a channel that carries other things too.

Whoever wants a file asks for a few pieces at a time and writes them down before it asks for more:
neither side holds more than that of it, whatever its size, and nobody waits for a slow disk but the
transfer itself. What was not asked for ends it.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable

from phalanx import wire
from phalanx.filetree import FileTree
from phalanx.patterns import shown

WINDOW = 4 * wire.PIECE
"""How much is asked for at a time; twice that may be on its way."""

Send = Callable[[wire.Frame], Awaitable[None]]
OnBytes = Callable[[int], None]


class Outgoing:
    """Gives out files of a directory to one peer."""

    def __init__(self, tree: FileTree, send: Send) -> None:
        """Nothing is read yet."""
        self._tree = tree
        self._send = send
        self._in_turn = asyncio.Lock()

    async def serve(self, fetch: wire.Fetch) -> None:
        """Send what is asked for; one after another, in the order of asking."""
        async with self._in_turn:
            offset, end = fetch.offset, fetch.offset + fetch.size
            number = -1
            try:
                number = await asyncio.to_thread(self._tree.open, fetch.path)
                while offset < end:
                    size = min(wire.PIECE, end - offset)
                    data = await asyncio.to_thread(os.pread, number, size, offset)
                    if len(data) < size:
                        raise OSError(errno.EIO, "it became shorter while it was read")
                    await self._send(wire.Part(number=fetch.number, offset=offset, data=data))
                    offset += size
            except (OSError, ValueError) as error:
                problem = describe(error)
                part = wire.Part(number=fetch.number, offset=offset, data=b"", problem=problem)
                await self._send(part)
            finally:
                if number >= 0:
                    os.close(number)


class Incoming:
    """One file on its way into a directory."""

    def __init__(
        self, tree: FileTree, number: int, path: str, size: int, digest: str, send: Send
    ) -> None:
        """`number` tells the transfer from others of the same peer."""
        self.number = number
        self.size = size
        self.got = 0
        """How many bytes are written down."""
        self._tree = tree
        self._path = path
        self._digest = digest
        self._send = send
        self._asked = self._came = 0
        self._failed = False
        self._parts: asyncio.Queue[wire.Part] = asyncio.Queue()

    def take(self, part: wire.Part) -> None:
        """The peer has sent something. What was not asked for is not kept, and fails `run`."""
        if self._failed:
            return
        start = self._came - self._came % WINDOW
        room = min(wire.PIECE, min(start + WINDOW, self._asked) - self._came)
        if not part.problem and (part.offset != self._came or not 0 < len(part.data) == room):
            part = wire.Part(number=part.number, offset=0, data=b"", problem="it sent other bytes")
        self._failed = bool(part.problem)
        self._came += len(part.data)
        self._parts.put_nowait(part)

    async def run(self, stalled: float | None = None, on_bytes: OnBytes = lambda _: None) -> None:
        """Have it come; `OSError` if it cannot, or nothing comes for so many seconds."""
        file = await asyncio.to_thread(self._tree.create, self._path, self.size)
        try:
            while self.got < self.size:
                while self._asked < self.size and self._asked - self.got < 2 * WINDOW:
                    size = min(WINDOW, self.size - self._asked)
                    offset, self._asked = self._asked, self._asked + size
                    await self._send(
                        wire.Fetch(number=self.number, path=self._path, offset=offset, size=size)
                    )
                part = await self._next(stalled)
                if part.problem:
                    raise OSError(errno.EIO, shown(part.problem)[:500])
                await asyncio.to_thread(file.write, part.data)
                self.got += len(part.data)
                on_bytes(len(part.data))
            await asyncio.to_thread(file.commit, self._digest)
        finally:
            file.close()

    async def _next(self, stalled: float | None) -> wire.Part:
        try:
            return await asyncio.wait_for(self._parts.get(), stalled)
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, f"nothing came for {stalled:g} s") from None


def describe(error: OSError | ValueError) -> str:
    """What is wrong, in a few words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
