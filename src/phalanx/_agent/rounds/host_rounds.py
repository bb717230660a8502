"""The rounds of one app on this host: the one that runs, and those whose logs are on their way."""

from __future__ import annotations

import asyncio
import shutil

from phalanx import _wire as wire
from phalanx._agent.rounds import round_files
from phalanx._agent.rounds.host_round import HostRound, Spawn


class HostRounds:
    """At most one round runs at a time."""

    def __init__(self, spawn: Spawn) -> None:
        """None has begun. `spawn` runs something whose failure is not overlooked."""
        self.current: HostRound | None = None
        self._spawn = spawn
        self._past: dict[int, HostRound] = {}
        self._finishing: set[asyncio.Task[None]] = set()
        self._stopped = 0
        self._asked = False

    def is_new(self, number: int) -> bool:
        """A round of this number has not begun here, and was not given up."""
        last = 0 if self.current is None else self.current.begin.round
        return number > max(last, self._stopped)

    def begin(self, host_round: HostRound) -> None:
        """Have this one be what runs now."""
        if self.current is not None:
            self._put_away(self.current)
        self.current = host_round
        if self._asked:
            host_round.ask_to_stop()

    def ask_to_stop(self) -> None:
        """Let the workers know that the host will be taken away; those to come as well."""
        self._asked = True
        if self.current is not None:
            self.current.ask_to_stop()

    def find(self, frame: wire.Frame) -> HostRound | None:
        """The round that a frame is about, if it is here."""
        host_round = self.current
        if host_round is not None and (host_round.begin.app, host_round.begin.round) == (
            frame.app,
            frame.round,
        ):
            return host_round
        past = self._past.get(frame.round)
        return past if past is not None and past.begin.app == frame.app else None

    def give_up(self, number: int) -> bool:
        """A round that is not here must not begin any more; False if it is here."""
        if self.current is not None and self.current.begin.round >= number:
            return False
        self._stopped = max(self._stopped, number)
        return True

    def _put_away(self, host_round: HostRound) -> None:
        self._past[host_round.begin.round] = host_round
        task = self._spawn(self._finish(host_round))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _finish(self, host_round: HostRound) -> None:
        await host_round.close(drain=True)
        if not host_round.begin.is_call:  # the next call has its directory
            round_files.remove(host_round.directory, host_round.member.ranks)
        self._past.pop(host_round.begin.round, None)

    async def wait_until_clear(self) -> None:
        """Until no process is left."""
        if self.current is not None:
            await self.current.cleared.wait()

    async def close(self, *, drain: bool) -> None:
        """End following; with `drain`, only after everything printed was handed on."""
        for host_round in (
            *self._past.values(),
            *([self.current] if self.current is not None else []),
        ):
            await host_round.close(drain=drain)
        while drain and self._finishing:
            await asyncio.wait(self._finishing)

    async def hand_on_rest(self, patience: float) -> None:
        """Hand on everything printed, until nothing of it is taken for so long."""
        closing = asyncio.ensure_future(self.close(drain=True))
        before = None
        while not closing.done() and before != self._handed_on:
            before = self._handed_on
            await asyncio.wait({closing}, timeout=patience)
        closing.cancel()

    @property
    def _handed_on(self) -> int:
        current = [] if self.current is None else [self.current]
        return sum(one.handed_on for one in (*self._past.values(), *current))

    async def forget(self) -> None:
        """Hand on what is left of the logs, and remove all that there is."""
        await self.wait_until_clear()
        await self.close(drain=True)
        if self.current is not None:
            shutil.rmtree(self.current.directory, ignore_errors=True)
        self.current = None
