"""The rounds of one app on this host: the one that runs, and those whose logs are on their way."""

from __future__ import annotations

import asyncio
import shutil

from phalanx import wire
from phalanx.agent.turn import Spawn, Turn


class Turns:
    """At most one round runs at a time."""

    def __init__(self, spawn: Spawn) -> None:
        """None has begun. `spawn` runs something whose failure is not overlooked."""
        self.current: Turn | None = None
        self._spawn = spawn
        self._past: dict[int, Turn] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._stopped = 0
        self._asked = False

    def may_begin(self, number: int) -> bool:
        """A round of this number is new, was not given up, and nothing runs."""
        turn = self.current
        last = 0 if turn is None else turn.begin.round
        return number > max(last, self._stopped) and (turn is None or turn.cleared.is_set())

    def begin(self, turn: Turn) -> None:
        """Have this one be what runs now."""
        if self.current is not None:
            self._put_away(self.current)
        self.current = turn
        if self._asked:
            turn.ask_to_stop()

    def ask_to_stop(self) -> None:
        """Let the workers know that the host will be taken away; those to come as well."""
        self._asked = True
        if self.current is not None:
            self.current.ask_to_stop()

    def find(self, frame: wire.Frame) -> Turn | None:
        """The round that a frame is about, if it is here."""
        turn = self.current
        if turn is not None and (turn.begin.app, turn.begin.round) == (frame.app, frame.round):
            return turn
        past = self._past.get(frame.round)
        return past if past is not None and past.begin.app == frame.app else None

    def give_up(self, number: int) -> bool:
        """A round that is not here must not begin any more; False if it is here."""
        if self.current is not None and self.current.begin.round >= number:
            return False
        self._stopped = max(self._stopped, number)
        return True

    def _put_away(self, turn: Turn) -> None:
        self._past[turn.begin.round] = turn
        task = self._spawn(self._finish(turn))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _finish(self, turn: Turn) -> None:
        await turn.close(drain=True)
        shutil.rmtree(turn.directory, ignore_errors=True)
        self._past.pop(turn.begin.round, None)

    async def wait_until_clear(self) -> None:
        """Until no process is left."""
        if self.current is not None:
            await self.current.cleared.wait()

    async def close(self, *, drain: bool) -> None:
        """End following; with `drain`, only after everything printed was handed on."""
        for turn in (*self._past.values(), *([self.current] if self.current is not None else [])):
            await turn.close(drain=drain)
        while drain and self._leaving:
            await asyncio.wait(self._leaving)

    async def forget(self) -> None:
        """Hand on what is left of the logs, and remove all that there is."""
        await self.wait_until_clear()
        await self.close(drain=True)
        if self.current is not None:
            shutil.rmtree(self.current.directory, ignore_errors=True)
        self.current = None
