"""The pickled functions that an agent has, by their digest, as files of its spool."""

from __future__ import annotations

import asyncio
import contextlib
import os

from phalanx import wire

_KEPT = 4
"""How many are kept between apps, in case they are run again."""


class Functions:
    """Those that are there, and those that are on their way."""

    def __init__(self, spool: str) -> None:
        """None is there."""
        self._spool = spool
        self._paths: dict[str, asyncio.Future[str]] = {}

    def has(self, digest: str) -> bool:
        """It is there, or has been asked for."""
        return digest in self._paths

    async def path(self, digest: str) -> str:
        """Where it is, once it is there."""
        if digest not in self._paths:
            self._paths[digest] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._paths[digest])

    def receive(self, piece: wire.Piece) -> None:
        """Take the next piece of one."""
        path = os.path.join(self._spool, piece.key)
        with open(path, "ab", opener=lambda p, f: os.open(p, f, 0o600)) as file:
            file.write(piece.data)
            done = file.tell() >= piece.total
        waiting = self._paths.get(piece.key)
        if done and waiting is not None and not waiting.done():
            waiting.set_result(path)

    def forget(self) -> None:
        """Remove all but the last few, and what has not arrived."""
        for digest in list(self._paths):
            if len(self._paths) > _KEPT or not self._paths[digest].done():
                self._paths.pop(digest).cancel()
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._spool, digest))
