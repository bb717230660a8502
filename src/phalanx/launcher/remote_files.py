"""The files that workers wrote on one host, as the launcher asks for them and sends them.

Nothing that the host says is taken as it is. One thing is asked at a time.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from phalanx import wire
from phalanx.filetree import FileTree
from phalanx.launcher.agents import Agent
from phalanx.launcher.versions import Version
from phalanx.patterns import Patterns, is_inside, shown
from phalanx.transfer import WINDOW, Incoming, OnBytes, Outgoing

FILES_LIMIT = 20_000
"""How many files of one host are taken."""
_STALLED = 60.0
"""Seconds without a word about files after which they are given up."""
_SERVED = 4
"""How many requests of a host are served at a time: it has no reason for more than two."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Listing:
    """What a host says that workers wrote, as far as it is believed."""

    def __init__(self, patterns: Patterns, *, digests: bool = True) -> None:
        """Only what fits the patterns may be in it."""
        self.files: dict[str, Version] = {}
        self.unread: list[str] = []
        """Files that are there, and cannot be read."""
        self._patterns = patterns
        self._digests = digests

    def add(self, files: Sequence[wire.WrittenFile]) -> None:
        """Take some more. Raises `ValueError` for what no honest host says."""
        for file in files:
            if not is_inside(file.path) or not self._patterns.fits(file.path) or file.size < 0:
                raise ValueError(f"it offers {shown(file.path)[:200]}, which was not asked for")
            if len(self.files) + len(self.unread) >= FILES_LIMIT:
                raise ValueError(f"more than {FILES_LIMIT} files fit: name fewer")
            if self._digests and not _DIGEST.fullmatch(file.digest):
                self.unread.append(file.path)
            else:
                self.files[file.path] = Version(file.size, file.digest)


class RemoteFiles:
    """What is in the working directory of one agent's workers."""

    def __init__(self, agent: Agent, hostname: str, home: FileTree) -> None:
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
    ) -> Listing:
        """What workers wrote. Raises `OSError`."""
        listing = Listing(patterns, digests=digests)

        def hear(frame: wire.Frame, done: asyncio.Future[None]) -> None:
            if not isinstance(frame, wire.Written):
                return
            on_bytes(0)
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

    async def fetch(self, path: str, version: Version, on_bytes: OnBytes) -> None:
        """Have a file here. Raises `OSError`."""
        number = self._number = next(self._numbers)
        send = self._agent.send
        incoming = Incoming(self._home, number, path, version.size, version.digest, send)
        self._agent.vetting.expect(1)  # the last part may be a small one

        def hear(frame: wire.Frame) -> None:
            if isinstance(frame, wire.Part):
                incoming.take(frame)

        self._hear = hear
        await self._unless_lost(incoming.run(_STALLED, on_bytes))

    async def offer(self, path: str, version: Version, on_bytes: OnBytes) -> None:
        """Have a file there. Raises `OSError`."""

        def hear(frame: wire.Frame, done: asyncio.Future[None]) -> None:
            match frame:
                case wire.Fetch(path=asked, size=size) if asked == path and size <= WINDOW:
                    if len(self._serving) < _SERVED:
                        self._serve(frame)
                        on_bytes(size)
                case wire.Kept(problem=""):
                    done.set_result(None)
                case wire.Kept(problem=problem):
                    done.set_exception(OSError(errno.EIO, shown(problem)[:500]))

        number = next(self._numbers)
        self._agent.vetting.expect(2 + version.size // WINDOW)
        offer = wire.Offer(number=number, path=path, size=version.size, digest=version.digest)
        await self._ask(number, offer, hear)

    async def drop(self, paths: Sequence[str]) -> None:
        """Say that files are home."""
        await self._agent.send(wire.Drop(paths=tuple(paths)))

    def _serve(self, fetch: wire.Fetch) -> None:
        task = asyncio.create_task(self._outgoing.serve(fetch))
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
        while True:
            heard = self._heard
            await asyncio.wait({done}, timeout=_STALLED)
            if done.done():
                return done.result()
            if self._heard == heard:
                raise OSError(errno.ETIMEDOUT, f"it said nothing of them for {_STALLED:g} s")

    async def _unless_lost(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        lost = asyncio.create_task(self._agent.lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise OSError(errno.ECONNRESET, "the host was lost")
            task.result()
        finally:
            self._number = 0
            task.cancel()
            lost.cancel()
            await asyncio.wait({task, lost})  # what was begun of a file is removed
