"""Files between two hosts, over a channel that carries other things too.

Whoever wants a file asks for a few pieces at a time and writes them down before it asks for more:
neither side holds more than that of it, whatever its size, and nobody waits for a slow disk but the
transfer itself. What was not asked for ends it. Small files come many at a time, in one frame: a
round trip for each of them would take longer than they do.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from phalanx import _wire as wire
from phalanx._core.patterns import shown
from phalanx._system.filetree import FileTree

WINDOW = 4 * wire.PIECE
"""How much is asked for at a time; twice that may be on its way."""

_SMALL = 64 << 10
"""Bytes up to which a file comes together with others."""
_TOGETHER = 500
"""How many do."""
_SHORTER = "it became shorter while it was read"
_WRITERS = 4
"""How many are written at a time: a disk takes several no slower than one."""

Send = Callable[[wire.Frame], Awaitable[None]]
OnBytes = Callable[[int], None]


def in_batches(files: Iterable[wire.WrittenFile]) -> Iterator[list[wire.WrittenFile]]:
    """What is fetched together: many small files, or one large one."""
    batch: list[wire.WrittenFile] = []
    size = 0
    for file in files:
        if file.size > _SMALL:
            yield [file]
            continue
        if len(batch) == _TOGETHER or size + file.size > wire.PIECE:
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def receive(
    tree: FileTree, number: int, files: Sequence[wire.WrittenFile], send: Send
) -> Incoming | IncomingSmall:
    """Have a batch come into a directory. `number` tells it from others of the same peer."""
    if len(files) == 1 and files[0].size > _SMALL:
        return Incoming(tree, number, files[0], send)
    return IncomingSmall(tree, number, files, send)


class Outgoing:
    """Gives out files of a directory to one peer."""

    def __init__(self, tree: FileTree, send: Send) -> None:
        """Nothing is read yet."""
        self._tree = tree
        self._send = send
        self._in_turn = asyncio.Lock()

    async def serve(self, fetch: wire.FetchFile) -> None:
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
                        raise OSError(errno.EIO, _SHORTER)
                    await self._send(wire.FilePart(number=fetch.number, offset=offset, data=data))
                    offset += size
            except (OSError, ValueError) as error:
                problem = describe(error)
                part = wire.FilePart(number=fetch.number, offset=offset, data=b"", problem=problem)
                await self._send(part)
            finally:
                if number >= 0:
                    os.close(number)

    async def serve_small(self, fetch: wire.FetchSmall) -> None:
        """Send several files, which together fit into a frame."""
        async with self._in_turn:
            data, problems = await asyncio.to_thread(self._read, fetch.files)
            await self._send(wire.SmallFiles(number=fetch.number, data=data, problems=problems))

    def _read(self, files: Sequence[wire.WrittenFile]) -> tuple[bytes, dict[int, str]]:
        contents: list[bytes] = []
        problems: dict[int, str] = {}
        for position, file in enumerate(files):
            try:
                with open(self._tree.open(file.path), "rb") as opened:
                    data = opened.read(file.size)
                if len(data) < file.size:
                    raise OSError(errno.EIO, _SHORTER)
                contents.append(data)
            except (OSError, ValueError) as error:
                problems[position] = describe(error)
        return b"".join(contents), problems


class Incoming:
    """One large file on its way into a directory."""

    def __init__(self, tree: FileTree, number: int, file: wire.WrittenFile, send: Send) -> None:
        """See `receive`."""
        self.number = number
        self.size = file.size
        self.got = 0
        """How many bytes are written down."""
        self._tree = tree
        self._path = file.path
        self._digest = file.digest
        self._send = send
        self._asked = self._came = 0
        self._failed = False
        self._parts: asyncio.Queue[wire.FilePart] = asyncio.Queue()

    def take(self, part: wire.Frame) -> None:
        """The peer has sent something. What was not asked for is not kept, and fails `run`."""
        if self._failed or not isinstance(part, wire.FilePart):
            return
        start = self._came - self._came % WINDOW
        room = min(wire.PIECE, min(start + WINDOW, self._asked) - self._came)
        if not part.problem and (part.offset != self._came or not 0 < len(part.data) == room):
            part = wire.FilePart(
                number=part.number, offset=0, data=b"", problem="it sent other bytes"
            )
        self._failed = bool(part.problem)
        self._came += len(part.data)
        self._parts.put_nowait(part)

    async def run(
        self, stalled: float | None = None, on_bytes: OnBytes = lambda _: None
    ) -> dict[int, str]:
        """Have it come; `OSError` if it cannot, or nothing comes for so many seconds."""
        file = await asyncio.to_thread(self._tree.create, self._path, self.size)
        try:
            while self.got < self.size:
                while self._asked < self.size and self._asked - self.got < 2 * WINDOW:
                    size = min(WINDOW, self.size - self._asked)
                    offset, self._asked = self._asked, self._asked + size
                    await self._send(
                        wire.FetchFile(
                            number=self.number, path=self._path, offset=offset, size=size
                        )
                    )
                part = await self._next(stalled)
                if part.problem:
                    raise OSError(errno.EIO, shown(part.problem)[:500])
                await asyncio.to_thread(file.write, part.data)
                self.got += len(part.data)
                on_bytes(len(part.data))
            await asyncio.to_thread(file.commit, self._digest)
            return {}
        finally:
            file.close()

    async def _next(self, stalled: float | None) -> wire.FilePart:
        try:
            async with asyncio.timeout(stalled):
                return await self._parts.get()
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, f"nothing came for {stalled:g} s") from None


class IncomingSmall:
    """Small files on their way into a directory, all in one frame."""

    def __init__(
        self, tree: FileTree, number: int, files: Sequence[wire.WrittenFile], send: Send
    ) -> None:
        """See `receive`."""
        self.number = number
        self._tree = tree
        self._files = files
        self._send = send
        self._came: asyncio.Future[wire.SmallFiles] = asyncio.get_running_loop().create_future()
        self._gave_up = False

    def take(self, came: wire.Frame) -> None:
        """The peer has sent something. Only the first answer counts."""
        if isinstance(came, wire.SmallFiles) and not self._came.done():
            self._came.set_result(came)

    async def run(
        self, stalled: float | None = None, on_bytes: OnBytes = lambda _: None
    ) -> dict[int, str]:
        """Have them come; gives, by their positions, why some cannot.

        `OSError` if none can, or nothing comes for so many seconds.
        """
        files = tuple(wire.WrittenFile(file.path, file.size) for file in self._files)
        await self._send(wire.FetchSmall(number=self.number, files=files))
        try:
            async with asyncio.timeout(stalled):
                came = await self._came
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, f"nothing came for {stalled:g} s") from None
        problems, contents = self._split(came)
        parts = [contents[i::_WRITERS] for i in range(_WRITERS)]
        try:
            for failed in await asyncio.gather(
                *(asyncio.to_thread(self._write, part) for part in parts if part)
            ):
                problems |= failed
        finally:
            self._gave_up = True
        on_bytes(len(came.data))
        return problems

    def _split(self, came: wire.SmallFiles) -> tuple[dict[int, str], list[tuple[int, bytes]]]:
        """The problems, and the contents by position. Raises `OSError` for what cannot be them."""
        problems = {
            position: shown(problem)[:500] or "it was not sent"
            for position, problem in came.problems.items()
            if position < len(self._files)
        }
        contents = []
        at = 0
        for position, file in enumerate(self._files):
            if position not in problems:
                contents.append((position, came.data[at : at + file.size]))
                at += file.size
        if at != len(came.data):
            raise OSError(errno.EBADMSG, "it sent other bytes")
        return problems, contents

    def _write(self, contents: Sequence[tuple[int, bytes]]) -> dict[int, str]:
        """In a thread."""
        problems = {}
        for position, data in contents:
            if self._gave_up:
                break
            try:
                self._tree.put(self._files[position].path, data, self._files[position].digest)
            except OSError as error:
                problems[position] = describe(error)
        return problems


def describe(error: OSError | ValueError) -> str:
    """What is wrong, in a few words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
