"""The project on its way to hosts that do not have it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import IO

from phalanx import _wire as wire
from phalanx._core.ids import AgentId
from phalanx._launcher.project.project_files import Manifest, Project
from phalanx.errors import WireError

_STEP = 8
"""How many pieces are read at a time."""

Send = Callable[[wire.Frame], Awaitable[None]]


class ProjectSender:
    """What of one project was asked for, and has arrived, by agent."""

    def __init__(self, project: Project) -> None:
        """Nothing is read yet."""
        self._project = project
        self._manifest: asyncio.Task[Manifest] | None = None
        self._turns: defaultdict[AgentId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._left: dict[AgentId, int] = {}
        self._total: dict[AgentId, int] = {}
        self._held: list[IO[bytes]] = []

    async def manifest(self) -> Manifest:
        """The list of files, made once, when it is first wanted. Raises `LaunchError`."""
        if self._manifest is None:
            self._manifest = asyncio.create_task(asyncio.to_thread(self._project.manifest))
        return await asyncio.shield(self._manifest)

    async def send(self, agent: AgentId, digests: Sequence[str], send: Send) -> None:
        """Send files to an agent. Raises `LaunchError` for one that has changed, and `WireError`
        for one that is unknown.
        """
        manifest = await self.manifest()
        if any(d != manifest.digest and d not in manifest.sources for d in digests):
            raise WireError("a request for a file that is not of the project")
        # One request after another: some of each is read ahead.
        async with self._turns[agent]:
            total = sum(manifest.sizes.get(digest, 0) for digest in digests)
            self._left[agent] = self._total[agent] = total
            for digest in digests:
                pieces = manifest.pieces(digest)
                while batch := await asyncio.to_thread(_take, pieces):
                    for piece in batch:
                        await send(piece)

    def hold(self, paths: Collection[str]) -> None:
        """Keep files open that are about to be replaced, if they are some that may be asked for."""
        if self._manifest is None or not self._manifest.done() or self._manifest.exception():
            return
        for digest, source in self._manifest.result().sources.items():
            if source in paths:
                with contextlib.suppress(OSError):
                    self._held.append(open(source, "rb"))  # noqa: SIM115 closed by `close`
                    held = f"/proc/self/fd/{self._held[-1].fileno()}"
                    self._manifest.result().sources[digest] = held

    def close(self) -> None:
        """Let go of what was held."""
        while self._held:
            self._held.pop().close()

    def arrived(self, agent: AgentId, frame: wire.ProjectArrived) -> None:
        """An agent has said how much is there: what was sent may be on its way for long."""
        self._left[agent] = 0 if frame.complete else max(0, self._left.get(agent, 0) - frame.size)

    def describe(self, hostname: Callable[[AgentId], str]) -> str:
        """How far it is, in a few words; empty when nothing is on its way."""
        waiting = {agent: left for agent, left in self._left.items() if left > 0}
        if not waiting:
            return ""
        slowest = max(waiting, key=lambda agent: waiting[agent])
        total, left = self._total[slowest], waiting[slowest]
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        size = f"{(total - left) / 1e6:.1f} of {total / 1e6:.1f} MB"
        return f"sending the project to {hostname(slowest)}{more}: {size}"


def _take(pieces: Iterator[wire.Piece]) -> list[wire.Piece]:
    """The next few, read in a thread."""
    return list(itertools.islice(pieces, _STEP))
