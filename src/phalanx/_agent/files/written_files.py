"""What workers write into the project's tree: listed, sent home, and taken from there.

Only where their working directory is in a tree of this app's own. Elsewhere it is the launcher's
very directory, or nobody's, and there is nothing to say of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Awaitable, Callable, Iterator

from phalanx import _wire as wire
from phalanx._channel.transfer import Incoming, IncomingSmall, Outgoing, describe, receive
from phalanx._core.patterns import Patterns, is_inside
from phalanx._remote import bootstrap
from phalanx._system.filetree import FileTree, FoundFile

_AT_A_TIME = 500
_SAID_EVERY = 1.0
"""Seconds between signs of life while files are read."""

Tell = Callable[[wire.Frame], Awaitable[None]]


class WrittenFiles:
    """The files of one app's workers on this host."""

    def __init__(
        self,
        tree: str,
        cwd: str | None,
        app: str,
        tell: Tell,
        wait_until_complete: Callable[[], Awaitable[None]],
    ) -> None:
        """`tree` is empty where there is none, `cwd` where workers run.

        `wait_until_complete` returns when the project is there.
        """
        inside = bool(tree) and cwd is not None and f"{cwd}/".startswith(f"{tree}/")
        self._tree = tree
        self._files = FileTree(cwd) if inside and cwd is not None else None
        self._app = app
        self._send = tell
        self._wait_until_complete = wait_until_complete
        self._outgoing = None if self._files is None else Outgoing(self._files, self._tell)
        self._incoming: dict[int, Incoming | IncomingSmall] = {}
        self._digests: dict[str, tuple[tuple[int, ...], str]] = {}
        """By path: what the file was like when it was last read through."""

    @property
    def is_apart(self) -> bool:
        """Workers' working directory is this host's alone."""
        return self._files is not None

    async def _tell(self, frame: wire.Frame) -> None:
        await self._send(dataclasses.replace(frame, app=self._app))

    async def list(self, asked: wire.ListWritten) -> None:
        """Say what there is."""
        number, loop, problem = asked.number, asyncio.get_running_loop(), ""
        said = time.monotonic()

        def still_here() -> None:
            nonlocal said
            if time.monotonic() - said > _SAID_EVERY:
                said = time.monotonic()
                sign = self._tell(wire.WrittenList(number=number))
                asyncio.run_coroutine_threadsafe(sign, loop)

        # What the project has is older than what is sent here after this.
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SAID_EVERY):
                    await self._wait_until_complete()
                break
            await self._tell(wire.WrittenList(number=number))
        try:
            listed = iter(self._list(asked, still_here))
            while some := await asyncio.to_thread(_take, listed):
                await self._tell(wire.WrittenList(number=number, files=tuple(some)))
        except (OSError, ValueError) as error:
            problem = describe(error)
        await self._tell(wire.WrittenList(number=number, complete=True, problem=problem))

    def _list(
        self, asked: wire.ListWritten, on_block: Callable[[], None]
    ) -> Iterator[wire.WrittenFile]:
        """In a thread."""
        if self._files is None:
            return
        try:
            built = os.lstat(os.path.join(self._tree, bootstrap.BUILT)).st_ctime_ns
        except FileNotFoundError:
            return  # the project has not come yet: no worker has been here
        patterns = Patterns(asked.patterns)
        unread: list[wire.WrittenFile] = []

        def add_unread(directory: str, error: OSError) -> None:
            if patterns.fits(inside := os.path.join(directory, "*")):
                unread.append(wire.WrittenFile(inside, 0, problem=describe(error)))

        for found in self._files.files(patterns, add_unread):
            if found.changed > built:
                digest = problem = ""
                try:
                    digest = self._digest(found, on_block) if asked.digests else ""
                except OSError as error:
                    problem = describe(error)
                yield wire.WrittenFile(found.path, found.size, digest, problem)
        yield from unread

    def _digest(self, found: FoundFile, on_block: Callable[[], None]) -> str:
        assert self._files is not None
        state, digest = self._digests.get(found.path, ((), ""))
        if state != found.state:
            digest = self._files.digest(found.path, on_block)
            self._digests[found.path] = (found.state, digest)
        return digest

    async def serve(self, fetch: wire.FetchFile | wire.FetchSmall) -> None:
        """Send a part of a file, or several files."""
        if self._outgoing is None:
            return
        if isinstance(fetch, wire.FetchSmall):
            if all(is_inside(file.path) for file in fetch.files):
                await self._outgoing.serve_small(fetch)
        elif is_inside(fetch.path):
            await self._outgoing.serve(fetch)

    async def keep(self, offer: wire.OfferFile) -> None:
        """Fetch files that the launcher has, and say what came of it."""
        problem = "the workers have no directory of their own"
        problems = dict.fromkeys(range(len(offer.files)), problem)
        if self._files is not None and all(is_inside(file.path) for file in offer.files):
            incoming = receive(self._files, offer.number, offer.files, self._tell)
            self._incoming[offer.number] = incoming
            try:
                problems = await incoming.run()
            except (OSError, ValueError) as error:
                problems = dict.fromkeys(problems, describe(error))
            finally:
                del self._incoming[offer.number]
        await self._tell(wire.FileStored(number=offer.number, problems=problems))

    def take(self, part: wire.FilePart | wire.SmallFiles) -> None:
        """A part of a file has come, or several files."""
        if (incoming := self._incoming.get(part.number)) is not None:
            incoming.take(part)

    def drop(self, drop: wire.ReleaseFiles) -> None:
        """Remove files that are home."""
        for path in drop.paths:
            if self._files is not None and is_inside(path):
                with contextlib.suppress(OSError):
                    self._files.remove(path)


def _take(files: Iterator[wire.WrittenFile]) -> list[wire.WrittenFile]:
    """The next of them, in a thread: as many as there are in a moment."""
    taken: list[wire.WrittenFile] = []
    began = time.monotonic()
    for file in files:
        taken.append(file)
        if len(taken) >= _AT_A_TIME or time.monotonic() - began > _SAID_EVERY:
            break
    return taken
