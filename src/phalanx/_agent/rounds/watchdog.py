"""Watches this host's workers by what they tell of themselves: who has hung, how far each is.

Knows files and times; what becomes of a worker that has hung is for whoever made this.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from phalanx._core import heartbeats
from phalanx._core.heartbeats import HangWatch, HeartbeatPage
from phalanx._core.rounds import RankSteps
from phalanx._worker.hooks.debugger import PROMPTING
from phalanx._worker.outcome import open_regular

if TYPE_CHECKING:
    from phalanx._core.stacks import RankStacks

_EVERY = 0.2
"""Seconds between looks."""
_ASLEEP = 1.0
"""A look that comes so much too late was not waited for: this host was asleep, or we stopped."""
_LONGEST_LOOK = 6.0
"""Taking stacks takes no longer: ranks that are silent meanwhile are silent."""
_STEPS_EVERY = 1.0
_YIELD, _SHARE = 1.5, 0.1
"""Seconds in which one that waits for another is not told of yet: the other may be, elsewhere. With
a long timeout a share of it: steps are long then, and whoever holds the others up was the last to
beat.
"""


class Watchdog:
    """The workers of one round on this host."""

    def __init__(
        self,
        directory: str,
        timeout: float,
        running: Callable[[], Mapping[int, int]],
        look_at: Callable[[Sequence[int]], Awaitable[Mapping[int, RankStacks]]],
    ) -> None:
        """`running` gives the pids of those to watch, by rank; `look_at` the stacks of these."""
        self._directory = directory
        self._timeout = timeout
        self._running = running
        self._look_at = look_at
        self._watches: dict[int, HangWatch] = {}
        self._since: dict[int, float] = {}
        """When each was first taken for hung, in seconds that were waited for."""
        self._waiting: set[int] = set()
        """Those of them that were seen to wait for another."""
        self._steps: tuple[RankSteps, ...] = ()

    async def run(
        self,
        end: Callable[[int, str, Mapping[int, RankStacks]], None],
        moment: Callable[[], Awaitable[None]],
    ) -> None:
        """Watch until this is cancelled.

        `end` is called for each that has hung, with why it is taken for that, and the stacks of all
        that may have; `moment` about every second.
        """
        last = told = time.monotonic()
        watched = looked = 0.0
        while True:
            await asyncio.sleep(_EVERY)
            now = time.monotonic()
            passed, last = now - last, now
            late = passed - _EVERY - min(looked, _LONGEST_LOOK)
            slept = late if late > _ASLEEP else 0.0
            watched += passed - slept
            pages = {rank: page for rank in self._running() if (page := self._read(rank))}
            hung = self._find_hung(pages, now, passed - slept, slept)
            chosen, stacks = await self._judge(hung, pages.keys() - hung.keys(), watched)
            for rank in chosen:
                end(rank, hung[rank], stacks)
            looked = time.monotonic() - now
            if now - told >= _STEPS_EVERY:
                told = now
                await moment()

    def _read(self, rank: int) -> HeartbeatPage | None:
        directory = os.path.join(self._directory, str(rank))
        with contextlib.suppress(OSError):  # it may have told nothing so far
            with open_regular(os.path.join(directory, heartbeats.FILE)) as file:
                page = heartbeats.read(file.read(heartbeats.SIZE + 1))
            if os.path.exists(os.path.join(directory, PROMPTING)):
                self._watches.pop(rank, None)  # the user has it in a debugger
                return None
            return page
        return None

    def _find_hung(
        self, pages: Mapping[int, HeartbeatPage], now: float, waited: float, slept: float
    ) -> dict[int, str]:
        hung = {}
        for rank, page in pages.items():
            watch = self._watches.setdefault(rank, HangWatch(self._timeout))
            if reason := watch.look(page, now, waited, slept):
                hung[rank] = reason
        return hung

    async def _judge(
        self, hung: Mapping[int, str], others: Collection[int], now: float
    ) -> tuple[list[int], Mapping[int, RankStacks]]:
        """Those to be told of now: first those that wait for nobody, where there are any.

        Those that wait yield to `others` of this host that have not beaten since, either: they will
        have hung in their turn, and one of them may be who is waited for.
        """
        self._since = {rank: self._since.get(rank, now) for rank in hung}
        self._waiting &= hung.keys()
        waited = now - min(self._since.values(), default=now)
        yields = waited < max(_YIELD, _SHARE * self._timeout) or any(
            self._watches[rank].silent > waited - _EVERY for rank in others
        )
        if not hung or (hung.keys() == self._waiting and yields):
            return [], {}
        stacks = await self._look_at(sorted(hung))
        self._waiting = {r for r in hung if r in stacks and stacks[r].waits_for_others}
        culprits = hung.keys() - self._waiting
        if not culprits and yields:
            return [], {}
        return sorted((culprits or hung.keys()) & stacks.keys() & self._running().keys()), stacks

    def steps(self, ranks: Iterable[int]) -> tuple[RankSteps, ...]:
        """How far these are, as far as they tell it; nothing if that was given before."""
        pages = {rank: page for rank in ranks if (page := self._read(rank)) and page.steps}
        found = tuple(RankSteps(rank, p.steps, p.step_seconds) for rank, p in pages.items())
        if found == self._steps:
            return ()
        self._steps = found
        return found
