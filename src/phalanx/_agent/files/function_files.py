"""The pickled functions that an agent has, by their digest, as files of its spool."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os

from phalanx import _wire as wire

_KEPT = 4
"""How many are kept between apps, in case they are run again."""
_SMALL = 64 << 10
"""Bytes up to which the file of one that is forgotten is used for another: with many calls, most
of what they cost would be files that are made and removed.
"""


class FunctionFiles:
    """Those that are there, and those that are on their way."""

    def __init__(self, spool: str) -> None:
        """None is there."""
        self._spool = spool
        self._paths: dict[str, str] = {}
        self._arrived: dict[str, asyncio.Future[str]] = {}
        self._unused: list[str] = []
        self._numbers = itertools.count()

    def want(self, digest: str) -> bool:
        """Expect it; whether it has to be asked for."""
        if digest in self._paths:
            return False
        new = os.path.join(self._spool, f"function-{next(self._numbers)}")
        path = self._unused.pop() if self._unused else new
        self._paths[digest] = path
        self._arrived[digest] = asyncio.get_running_loop().create_future()
        return True

    async def path(self, digest: str) -> str:
        """Where it is, once it is there; it must have been wanted."""
        return await asyncio.shield(self._arrived[digest])

    def receive(self, piece: wire.Piece) -> bool:
        """Take the next piece of one; False if it is none of ours, or nobody waits for it."""
        arrived = self._arrived.get(piece.key)
        if arrived is None or arrived.done():
            return False
        with open(self._paths[piece.key], "r+b", opener=_opener) as file:
            file.seek(piece.offset)
            file.write(piece.data)
            done = file.tell() >= piece.total
            if done and os.fstat(file.fileno()).st_size > piece.total:
                file.truncate()
        if done:
            arrived.set_result(self._paths[piece.key])
        return True

    def forget(self) -> None:
        """Remove all but the last few, and what has not arrived."""
        for digest in list(self._paths):
            if len(self._paths) > _KEPT or not self._arrived[digest].done():
                self._arrived.pop(digest).cancel()
                self._remove(self._paths.pop(digest))

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_size <= _SMALL:
                self._unused.append(path)
            else:
                os.unlink(path)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o600)
