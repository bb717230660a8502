"""The pickled functions that an agent has, by their digest, as files of its spool."""

from __future__ import annotations

import asyncio
import contextlib
import os

from phalanx import _wire as wire

_KEPT = 4
"""How many are kept between apps, in case they are run again."""


class FunctionFiles:
    """Those that are there, and those that are on their way."""

    def __init__(self, spool: str) -> None:
        """None is there."""
        self._spool = spool
        self._paths: dict[str, asyncio.Future[str]] = {}

    def want(self, digest: str) -> bool:
        """Expect it; whether it has to be asked for."""
        if digest in self._paths:
            return False
        self._paths[digest] = asyncio.get_running_loop().create_future()
        return True

    async def path(self, digest: str) -> str:
        """Where it is, once it is there; it must have been wanted."""
        return await asyncio.shield(self._paths[digest])

    def receive(self, piece: wire.Piece) -> bool:
        """Take the next piece of one; False if it is none of ours, or nobody waits for it."""
        waiting = self._paths.get(piece.key)
        if waiting is None or waiting.done():
            return False
        path = os.path.join(self._spool, piece.key)
        mode = "r+b" if piece.offset else "wb"
        with open(path, mode, opener=lambda p, f: os.open(p, f, 0o600)) as file:
            file.seek(piece.offset)
            file.write(piece.data)
            done = file.tell() >= piece.total
        if done:
            waiting.set_result(path)
        return True

    def forget(self) -> None:
        """Remove all but the last few, and what has not arrived."""
        for digest in list(self._paths):
            if len(self._paths) > _KEPT or not self._paths[digest].done():
                self._paths.pop(digest).cancel()
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._spool, digest))
