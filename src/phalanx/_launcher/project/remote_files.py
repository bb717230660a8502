"""The files that workers wrote on one host, as the launcher asks for them and sends them.

Nothing that the host says is taken as it is. One thing is asked at a time.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from phalanx import _wire as wire
from phalanx._channel.transfer import WINDOW, OnBytes, Outgoing, receive
from phalanx._core.patterns import Patterns, is_inside, shown, why_too_long
from phalanx._core.silence import Silence
from phalanx._launcher.project.file_versions import FileVersion
from phalanx._system.filetree import FileTree

T = TypeVar("T")

FILES_LIMIT = 20_000
"""How many files of one host are taken."""
_NAMES_LIMIT = 64 * FILES_LIMIT
"""How many directories those may need to be in, should no two be in the same."""
_STALLED = 60.0
"""Seconds without a word about files after which they are given up."""
_READING = 3 * 3600.0
"""Seconds for a host to read through one file."""
_SERVED = 4
"""How many requests of a host are served at a time: it has no reason for more than two."""
_DROPPED = 500
"""How many files are named at a time that are home."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ReportedFiles:
    """What a host says that workers wrote, as far as it is believed."""

    def __init__(self, patterns: Patterns, *, digests: bool = True) -> None:
        """Only what fits the patterns may be in it."""
        self.files: dict[str, FileVersion] = {}
        self.unread: dict[str, str] = {}
        """Files that are there and cannot be had, and why."""
        self._names = 0
        self._patterns = patterns
        self._digests = digests

    def add(self, files: Sequence[wire.WrittenFile]) -> None:
        """Take some more. Raises `ValueError` for what no honest host says."""
        for file in files:
            if not is_inside(file.path) or not self._patterns.fits(file.path) or file.size < 0:
                raise ValueError(f"it offers {shown(file.path)[:200]}, which was not requested")
            if len(self.files) + len(self.unread) >= FILES_LIMIT:
                raise ValueError(f"more than {FILES_LIMIT} files match: use narrower patterns")
            self._names += file.path.count("/")
            if self._names > _NAMES_LIMIT:
                raise ValueError("the files are in too many directories: use narrower patterns")
            if too_long := why_too_long(file.path):
                self.unread[file.path] = too_long
            elif file.problem or (self._digests and not _DIGEST.fullmatch(file.digest)):
                self.unread[file.path] = shown(file.problem)[:500] or "cannot be read"
            else:
                self.files[file.path] = FileVersion(file.size, file.digest)


class _Offer:
    """What a host may ask for: each byte of what it is offered, once."""

    def __init__(self, batch: Sequence[wire.WrittenFile]) -> None:
        self._sizes = {file.path: file.size for file in batch}
        self.left = sum(self._sizes.values())
        """Bytes that it has not asked for yet."""
        self._asked_for_all = False

    def take(self, asked: wire.FetchFile | wire.FetchSmall) -> int:
        """How many bytes it asks for now. Raises `OSError` for what no honest host asks for."""
        if isinstance(asked, wire.FetchFile):
            wanted, size = {asked.path: self._sizes.get(asked.path)}, asked.size
            whole = wanted[asked.path] or 0
            fits = 0 < size <= WINDOW and 0 <= asked.offset <= whole - size
        else:
            wanted, size = {file.path: file.size for file in asked.files}, self.left
            fits = wanted == self._sizes and len(asked.files) == len(wanted) and size <= wire.PIECE
        if not fits or size > self.left or self._asked_for_all:
            names = ", ".join(map(shown, itertools.islice(wanted, 3)))[:200] or "no file"
            raise OSError(errno.EBADMSG, f"it requested {names}, more than it was offered")
        self.left -= size
        self._asked_for_all = isinstance(asked, wire.FetchSmall)
        return size


class FileAgent(Protocol):
    """What is asked of an agent whose host has files of its own."""

    @property
    def hello(self) -> wire.Hello | None:
        """What it said of itself, once it has."""

    @property
    def is_gone(self) -> bool:
        """It is lost."""

    @property
    def lost(self) -> asyncio.Event:
        """Set when it is."""

    async def send(self, frame: wire.Frame) -> None:
        """Say something to it."""

    def expect(self, frames: int) -> None:
        """It was asked for something: so many small answers are no chatter."""


class RemoteFiles:
    """What is in the working directory of one agent's workers."""

    def __init__(self, agent: FileAgent, hostname: str, home: FileTree) -> None:
        """Files come into `home`, and go from there."""
        self.hostname = hostname
        self._agent = agent
        self._home = home
        self._outgoing = Outgoing(home, agent.send)
        self._numbers = itertools.count(1)
        self._number = 0
        """Of what is under way; an answer to anything else is late, or made up."""
        self._hear: Callable[[wire.Frame], None] = lambda _: None
        self._heard = 0
        self._serving: set[asyncio.Task[None]] = set()

    def hear(self, frame: wire.Frame) -> None:
        """The agent has said something about files."""
        if self._number and getattr(frame, "number", 0) == self._number:
            self._heard += 1
            self._hear(frame)

    async def list(
        self, patterns: Patterns, on_bytes: OnBytes = lambda _: None, *, digests: bool = True
    ) -> ReportedFiles:
        """What workers wrote. Raises `OSError`."""
        listing = ReportedFiles(patterns, digests=digests)
        last = time.monotonic()

        def hear(frame: wire.Frame, done: asyncio.Future[None]) -> None:
            nonlocal last
            if not isinstance(frame, wire.WrittenList):
                return
            on_bytes(0)
            now = time.monotonic()
            if frame.files:
                last = now
            elif now - last > _READING:
                error = OSError(errno.ETIMEDOUT, f"it listed no file for {_READING:g} s")
                done.set_exception(error)
                return
            try:
                listing.add(frame.files)
            except ValueError as error:
                done.set_exception(OSError(errno.EBADMSG, str(error)))
                return
            if frame.complete and frame.problem:
                done.set_exception(OSError(errno.EIO, shown(frame.problem)[:500]))
            elif frame.complete:
                done.set_result(None)

        number = next(self._numbers)
        asked = wire.ListWritten(number=number, patterns=patterns.texts, digests=digests)
        await self._ask(number, asked, hear)
        return listing

    async def fetch(self, batch: Sequence[wire.WrittenFile], on_bytes: OnBytes) -> dict[int, str]:
        """Have files here; gives, by their positions, why some could not. Raises `OSError`."""
        number = self._number = next(self._numbers)
        incoming = receive(self._home, number, batch, self._agent.send)
        self._agent.expect(1)  # the last part may be a small one
        self._hear = incoming.take
        return await self._unless_lost(incoming.run(_STALLED, on_bytes))

    async def offer(self, batch: Sequence[wire.WrittenFile], on_bytes: OnBytes) -> dict[int, str]:
        """Have files there; gives, by their positions, why some cannot be put. Raises `OSError`."""
        offered = _Offer(batch)
        problems: dict[int, str] = {}

        def hear(frame: wire.Frame, done: asyncio.Future[None]) -> None:
            if isinstance(frame, wire.FileStored):
                for position, problem in frame.problems.items():
                    if 0 <= position < len(batch):
                        problems[position] = shown(problem)[:500]
                done.set_result(None)
            elif not isinstance(frame, wire.FetchFile | wire.FetchSmall):
                done.set_exception(OSError(errno.EBADMSG, f"it sent a {type(frame).__name__}"))
            else:
                try:
                    self._serve(frame, offered.take(frame), on_bytes)
                except OSError as error:
                    done.set_exception(error)

        number = next(self._numbers)
        self._agent.expect(2 + offered.left // WINDOW)
        await self._ask(number, wire.OfferFile(number=number, files=tuple(batch)), hear)
        return problems

    async def drop(self, paths: Sequence[str]) -> None:
        """Say that files are home."""
        for start in range(0, len(paths), _DROPPED):
            await self._agent.send(wire.ReleaseFiles(paths=tuple(paths[start : start + _DROPPED])))

    def _serve(self, fetch: wire.FetchFile | wire.FetchSmall, size: int, on_bytes: OnBytes) -> None:
        if len(self._serving) >= _SERVED:
            return
        on_bytes(size)
        out = self._outgoing
        serve = out.serve(fetch) if isinstance(fetch, wire.FetchFile) else out.serve_small(fetch)
        task = asyncio.create_task(serve)
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _ask(
        self,
        number: int,
        question: wire.Frame,
        hear: Callable[[wire.Frame, asyncio.Future[None]], None],
    ) -> None:
        """Ask, and hear what comes until it is done with."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number = number
        self._hear = lambda frame: None if done.done() else hear(frame, done)
        await self._unless_lost(self._unless_silent(question, done))

    async def _unless_silent(self, question: wire.Frame, done: asyncio.Future[None]) -> None:
        await self._agent.send(question)
        silence = Silence(self._heard)
        while not (await asyncio.wait({done}, timeout=_STALLED))[0]:
            if silence.pass_time(_STALLED, self._heard) >= _STALLED:
                raise OSError(errno.ETIMEDOUT, f"no response for {_STALLED:g} s")
        done.result()

    async def _unless_lost(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        lost = asyncio.create_task(self._agent.lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise OSError(errno.ECONNRESET, "the host was lost")
            return task.result()
        finally:
            self._number = 0
            task.cancel()
            lost.cancel()
            await asyncio.wait({task, lost})  # what was begun of a file is removed
