"""Where this host's workers are: their stacks, native frames and collectives, taken together."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence

from phalanx._agent.stacks import flight_records, native_frames, stack_dumps
from phalanx._wire import RankDump

_COLLECTIVES = 1.0
"""Seconds for workers to write down their collectives: one that cannot is not waited for."""
_NATIVE_OF_HUNG = 3.0


class StackReader:
    """Those of one round. One question at a time: a worker has one file for its answer."""

    def __init__(self, directory: str) -> None:
        """`directory` is the round's."""
        self._directory = directory
        self._taking = asyncio.Lock()

    async def take(
        self, pids: Mapping[int, int], seconds: float, *, native: bool = False
    ) -> tuple[RankDump, ...]:
        """Of these workers, by rank; in so many seconds, and as many for native frames."""
        async with self._taking:
            dumps = await self._take(pids, seconds)
            return await native_frames.add(dumps, seconds) if native else dumps

    async def take_below(
        self, pids: Iterable[int], seconds: float, *, native: bool = False
    ) -> tuple[RankDump, ...]:
        """Of the workers of launches that these processes have started."""
        async with self._taking:
            workers = stack_dumps.workers_below(pids)
            dumps = await self._with_collectives(
                [os.path.dirname(one.path) for one in workers],
                stack_dumps.take_of(workers, seconds),
                seconds,
            )
            return await native_frames.add(dumps, seconds) if native else dumps

    async def take_hung(self, pids: Mapping[int, int], seconds: float) -> tuple[RankDump, ...]:
        """Of workers that have hung: those that are stopped, which will be killed, are continued
        until they have answered; with native frames, where they can be had.
        """
        async with self._taking:
            dumps = await self._take(pids, seconds, wake=pids)
            return await native_frames.add(dumps, _NATIVE_OF_HUNG, say_why=False)

    async def _take(
        self, pids: Mapping[int, int], seconds: float, wake: Collection[int] = ()
    ) -> tuple[RankDump, ...]:
        return await self._with_collectives(
            [os.path.join(self._directory, str(rank)) for rank in sorted(pids)],
            stack_dumps.take(self._directory, pids, seconds, wake=wake),
            seconds,
        )

    async def _with_collectives(
        self, directories: Sequence[str], taking: Awaitable[tuple[RankDump, ...]], seconds: float
    ) -> tuple[RankDump, ...]:
        """Of ranks in these directories, which are in the order of their stacks."""
        dumps, collectives = await asyncio.gather(
            taking, flight_records.take(directories, min(seconds, _COLLECTIVES))
        )
        return tuple(
            dataclasses.replace(dump, collectives=collectives.get(directory, ()))
            for dump, directory in zip(dumps, directories, strict=True)
        )
