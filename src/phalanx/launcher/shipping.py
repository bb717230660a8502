"""The project on its way to hosts that do not have it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence

from phalanx import wire
from phalanx.launcher.workspace import Manifest, Workspace

_STEP = 8
"""How many pieces are read at a time."""

Send = Callable[[wire.Frame], Awaitable[None]]


class Shipping:
    """What of one project was asked for, and sent, by host."""

    def __init__(self, workspace: Workspace) -> None:
        """Nothing is read yet."""
        self._workspace = workspace
        self._manifest: asyncio.Task[Manifest] | None = None
        self._left: dict[str, int] = {}
        self._total: dict[str, int] = {}

    async def manifest(self) -> Manifest:
        """The list of files, made once, when it is first wanted. Raises `LaunchError`."""
        if self._manifest is None:
            self._manifest = asyncio.create_task(asyncio.to_thread(self._workspace.manifest))
        return await asyncio.shield(self._manifest)

    async def send(self, host: str, digests: Sequence[str], send: Send) -> None:
        """Send files to a host. Raises `LaunchError` for one that has changed."""
        manifest = await self.manifest()
        total = sum(manifest.sizes.get(digest, 0) for digest in digests)
        self._left[host] = self._total[host] = total
        for digest in digests:
            pieces = manifest.pieces(digest)
            while batch := await asyncio.to_thread(_take, pieces):
                for piece in batch:
                    await send(piece)
                    self._left[host] -= len(piece.data)
        self._left[host] = 0

    def describe(self) -> str:
        """How far it is, in a few words; empty when nothing is on its way."""
        waiting = {host: left for host, left in self._left.items() if left > 0}
        if not waiting:
            return ""
        host = max(waiting, key=lambda host: waiting[host])
        total, left = self._total[host], waiting[host]
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        size = f"{(total - left) / 1e6:.0f} of {total / 1e6:.0f} MB"
        return f"sending the project to {host}{more}: {size}"


def _take(pieces: Iterator[wire.Piece]) -> list[wire.Piece]:
    """The next few, read in a thread."""
    return list(itertools.islice(pieces, _STEP))
