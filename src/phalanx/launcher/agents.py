"""The launcher's side of one agent: what is known of it, speaking to it, letting it go."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time

from phalanx import wire
from phalanx.clock import ClockOffset
from phalanx.launcher.placement import PlacedAgent
from phalanx.logs import logger

LAST_LOGS = 3.0
"""Seconds that the logs of a cancelled app may take before they are given up."""
_LOST = 0.5
"""Seconds for what leads to a host that is lost: there is nothing left to wait for."""


class Agent:
    """What the launcher knows of one agent of an app."""

    def __init__(self, placed: PlacedAgent, app: str) -> None:
        """It has not said anything yet."""
        loop = asyncio.get_running_loop()
        self.placed = placed
        self.channel = placed.channel
        self.clock = ClockOffset()
        self.heard = 0
        self.silent = 0.0
        self.last_heard = time.monotonic()
        self.gone = False
        self.rests = False
        self.lost = asyncio.Event()
        self.hello: wire.Hello | None = None
        self.ready: asyncio.Future[wire.Ready] = loop.create_future()
        self.reached: asyncio.Future[str] = loop.create_future()
        """Whether it reaches the first host: empty, or why not."""
        self.listening: asyncio.Task[None] | None = None
        self._app = app

    async def send(self, frame: wire.Frame) -> None:
        """Say something; that it is gone is heard where it is listened to."""
        with contextlib.suppress(ConnectionError):
            await self.channel.send(dataclasses.replace(frame, app=self._app))

    async def dismiss(self, gave_up: asyncio.Event, grace: float, *, orderly: bool) -> None:
        """Let it go: `orderly`, once its logs are here; otherwise by force."""
        if orderly:
            await self.send(self.placed.rest or wire.Leave())
            await self._await_logs(gave_up)
            if self.rests:
                self.placed.keep()
            else:
                await self.placed.end(2.0)
            return
        self.channel.close()
        await self.placed.end(_LOST if self.placed.is_abroad and self.gone else grace + 3.0)
        if self.hello is not None:
            await self.placed.sweep(self._app, self.hello)

    async def _await_logs(self, gave_up: asyncio.Event) -> None:
        """Until it has nothing left to say; not much longer once the app was given up."""
        if self.listening is None:
            return
        ends = [asyncio.create_task(event.wait()) for event in (gave_up, self.lost)]
        await asyncio.wait({self.listening, *ends}, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if not self.listening.done():
            await asyncio.wait({self.listening}, timeout=LAST_LOGS)
            if not self.listening.done():
                logger.warning("phalanx: the last of the workers' output was given up")
