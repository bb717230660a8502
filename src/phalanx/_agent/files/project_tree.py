"""The user's project on this host: files kept by their digests, and a tree of them for each app.

Files that are here already are not sent again. They are copied into the app's tree, so that nothing
that workers write can reach what is kept; each is checked while it is copied. When the app has
ended, what was sent is removed from the tree; what workers have written stays for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from phalanx import _wire as wire
from phalanx._agent.files.path_mapping import TreeLocation
from phalanx._remote import bootstrap

KEPT_DAYS = 7
"""How long what workers have written into a tree stays."""
_FILES_DAYS = 30
_TOLD_EVERY = 128 << 10
"""Bytes after which the launcher is told how much has arrived."""
_DAY = 86400.0
_TOUCHED_EVERY = 3600.0

Tell = Callable[[wire.Frame], Awaitable[None]]


@dataclass(frozen=True)
class ProjectFile:
    """One file of the project: its contents by their digest, or where it links to."""

    path: str
    mode: int
    size: int
    digest: str = ""
    link: str = ""


def pack(entries: Iterable[ProjectFile]) -> bytes:
    """A list of files as it travels."""
    rows = [[e.path, e.mode, e.size, e.digest, e.link] for e in entries]
    return zlib.compress(json.dumps(rows).encode(), 1)


def unpack(data: bytes) -> list[ProjectFile]:
    """The reverse. Raises `ValueError` for a path that leads out of the tree."""
    entries = [ProjectFile(*row) for row in json.loads(zlib.decompress(data))]
    for entry in entries:
        if os.path.isabs(entry.path) or ".." in entry.path.split(os.sep):
            raise ValueError(f"{entry.path!r} is not a path within the project")
    return entries


class ProjectTree:
    """The project of one app, on its way here."""

    def __init__(self, tree: TreeLocation, app: str, tell: Tell) -> None:
        """Nothing is here yet."""
        self.tree = tree.path
        self._names = tree.names
        self._app = app
        self._tell = tell
        self._files = os.path.join(os.path.dirname(os.path.dirname(tree.path)), "files")
        self._arriving: dict[str, asyncio.Future[None]] = {}
        self._arrived = 0
        self._mark = secrets.token_hex(4)
        self._touched = time.monotonic()
        self._closed = False
        self._building: asyncio.Future[list[str]] | None = None
        self._built: set[str] = set()
        self._complete = asyncio.get_running_loop().create_future()
        if not tree.path:
            self._complete.set_result(None)

    async def wait_until_complete(self) -> None:
        """Until the tree is as the project is."""
        await asyncio.shield(self._complete)

    async def ship(self, manifest: str) -> None:
        """Make the tree from a list of files, asking for what is not here. Raises `OSError`."""
        os.makedirs(self._files, mode=0o700, exist_ok=True)
        listed = self._read(manifest)
        if listed is None:
            await self._have([manifest])
            listed = self._read(manifest) or b""
        entries = [e for e in unpack(listed) if e.path.split(os.sep)[0] in self._names]
        for _ in range(3):
            self._building = asyncio.ensure_future(asyncio.to_thread(self._build, entries))
            missing = await asyncio.shield(self._building)
            if not missing:
                break
            await self._have(missing)
        else:
            raise OSError(f"{len(missing)} files of the project were damaged in transit")
        if self._closed:
            return
        with open(os.path.join(self.tree, bootstrap.BUILT), "w"):  # noqa: ASYNC230 on local disk
            pass
        self._complete.set_result(None)
        await self._tell(wire.ProjectArrived(app=self._app, size=0, complete=True))
        await asyncio.to_thread(self._prune)

    def _read(self, digest: str) -> bytes | None:
        """A small file that is here; a damaged one is removed."""
        try:
            with open(self._path_of(digest), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        if hashlib.sha256(data).hexdigest() != digest:
            os.unlink(self._path_of(digest))
            return None
        return data

    async def _have(self, digests: list[str]) -> None:
        wanted = self._missing(digests)
        if not wanted:
            return
        loop = asyncio.get_running_loop()
        self._arriving = {digest: loop.create_future() for digest in wanted}
        arriving = list(self._arriving.values())
        await self._tell(wire.WantContent(app=self._app, digests=tuple(wanted)))
        await asyncio.gather(*arriving)

    def _missing(self, digests: list[str]) -> list[str]:
        return [digest for digest in digests if not os.path.exists(self._path_of(digest))]

    async def receive(self, piece: wire.Piece) -> None:
        """Take the next piece of a file. Raises `OSError`."""
        waiting = self._arriving.get(piece.key)
        if waiting is None or waiting.done():
            return
        kept = self._path_of(piece.key)
        new = f"{kept}.{self._mark}.new"
        if not piece.offset:
            os.makedirs(os.path.dirname(kept), mode=0o700, exist_ok=True)
        try:
            with open(new, "ab" if piece.offset else "wb") as file:  # noqa: ASYNC230 on local disk
                file.write(piece.data)
                done = file.tell() >= piece.total
        except OSError as error:
            error.filename = new
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
        if done:
            os.chmod(new, 0o400)
            os.rename(new, kept)
            waiting.set_result(None)
        self._arrived += len(piece.data)
        if self._arrived >= _TOLD_EVERY:
            size, self._arrived = self._arrived, 0
            await self._tell(wire.ProjectArrived(app=self._app, size=size))

    def _path_of(self, digest: str) -> str:
        return os.path.join(self._files, digest[:2], digest)

    # ── the tree ──────────────────────────────────────────────────────────────

    def _build(self, entries: Iterable[ProjectFile]) -> list[str]:
        """Put into the tree what is here; gives what is not. In a thread."""
        missing: dict[str, None] = {}
        made: set[str] = set()
        tree = self.tree
        for entry in entries:
            path = os.path.join(tree, entry.path)
            if entry.path in self._built:
                continue
            if self._closed:
                return []
            parent = os.path.dirname(path)
            if parent not in made:
                os.makedirs(parent, exist_ok=True)
                made.add(parent)
            if entry.link:
                os.symlink(entry.link, path)
            else:
                try:
                    is_here = self._copy(entry, path)
                except OSError as error:
                    error.filename = path
                    raise
                if not is_here:
                    missing[entry.digest] = None
                    continue
            self._built.add(entry.path)
        return list(missing)

    def _copy(self, entry: ProjectFile, path: str) -> bool:
        """Copy one file and check it on the way; a damaged one is removed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        number = os.open(path, flags, entry.mode | 0o600)
        with open(number, "wb") as target:
            if not entry.size:
                return True
            kept = self._path_of(entry.digest)
            digest = hashlib.sha256()
            try:
                with open(kept, "rb", buffering=0) as source:
                    while data := source.read(wire.PIECE):
                        digest.update(data)
                        target.write(data)
                    used = os.fstat(source.fileno()).st_mtime
            except FileNotFoundError:
                return False
        if digest.hexdigest() != entry.digest:
            os.unlink(kept)
            return False
        if time.time() - used > _DAY:
            with contextlib.suppress(OSError):
                os.utime(kept)
        return True

    def touch(self) -> None:
        """Note, now and then, that the tree is in use: what is old is removed."""
        if self.tree and time.monotonic() - self._touched > _TOUCHED_EVERY:
            self._touched = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self.tree)

    async def close(self) -> None:
        """Remove what was sent, and say what workers have written instead. Idempotent."""
        self._closed = True
        if self._building is not None:
            with contextlib.suppress(OSError):
                await self._building
        tree, self.tree = self.tree, ""
        if not tree:
            return
        count, size = bootstrap.tidy(tree)
        if count:
            with contextlib.suppress(OSError):  # it is on a disk that cannot be written any more
                os.utime(tree)
            message = (
                f"workers wrote {count} {'file' if count == 1 else 'files'} ({size} bytes) below "
                f"{tree}. These files are removed after {KEPT_DAYS} days; copy them back with "
                "fetch=[...]."
            )
            await self._tell(wire.UserNote(app=self._app, message=message))

    def _prune(self) -> None:
        """Remove what is old: trees of earlier apps, and files that no app has wanted for long."""
        with contextlib.suppress(OSError):
            bootstrap.remove_unused(os.path.dirname(self.tree), KEPT_DAYS * _DAY)
            for shard in os.listdir(self._files):
                directory = os.path.join(self._files, shard)
                if time.time() - os.stat(directory).st_mtime > _DAY:
                    os.utime(directory)
                    _remove_old_files(directory)


def _remove_old_files(directory: str) -> None:
    for entry in os.scandir(directory):
        if time.time() - entry.stat().st_mtime > _FILES_DAYS * _DAY:
            os.unlink(entry.path)
