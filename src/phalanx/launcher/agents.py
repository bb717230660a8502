"""The launcher's side of one agent: what is known of it, speaking to it, letting it go."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar

from phalanx import wire
from phalanx.clock import ClockOffset
from phalanx.launcher.placement import PlacedAgent
from phalanx.launcher.vetting import Vetting
from phalanx.logs import logger
from phalanx.rounds import Outcome

if TYPE_CHECKING:
    from phalanx.launcher.workspace import Workspace

T = TypeVar("T")

LAST_LOGS = 3.0
"""Seconds that the logs of a cancelled app may take before they are given up."""
_LEAST = 64 << 10
"""Bytes of log by which one that was told to end shows that it only has much left to send."""
_LOST = 0.5
"""Seconds for what leads to a host that is lost: there is nothing left to wait for."""


class Agent:
    """What the launcher knows of one agent of an app."""

    def __init__(self, placed: PlacedAgent, app: str, *, shipped: bool = False) -> None:
        """It has not said anything yet. `shipped`: the project may have to be sent to it."""
        loop = asyncio.get_running_loop()
        self.placed = placed
        self.channel = placed.channel
        self.clock = ClockOffset()
        self.heard = 0
        self.silent = 0.0
        self.last_heard = time.monotonic()
        self.vetting = Vetting(shipped=shipped, began=self.last_heard)
        self.gone = False
        self.left = False
        """It was told to end: it is not wanted back."""
        self.dismissed = False
        """It was asked to end, or to rest."""
        self.rests = False
        self.lost = asyncio.Event()
        self.hello: wire.Hello | None = None
        self.ready: asyncio.Future[wire.Ready] = loop.create_future()
        self.reached: asyncio.Future[str] = loop.create_future()
        """Whether it reaches the first host: empty, or why not."""
        self.tried: tuple[str, int] | None = None
        """The address and port that it tried."""
        self.listening: asyncio.Task[None] | None = None
        self._app = app

    async def send(self, frame: wire.Frame) -> None:
        """Say something; that it is gone is heard where it is listened to."""
        with contextlib.suppress(ConnectionError):
            await self.channel.send(dataclasses.replace(frame, app=self._app))

    @property
    def is_shipped(self) -> bool:
        """The project is sent to it."""
        return self.hello is not None and bool(self.hello.tree)

    def pass_time(self, seconds: float) -> float:
        """So much time was waited for; gives how long it has been silent, once it has spoken."""
        silent = self.hello is not None and self.channel.heard == self.heard
        self.silent = self.silent + seconds if silent else 0.0
        self.heard = self.channel.heard
        return self.silent

    def translate(self, outcome: Outcome, workspace: Workspace | None) -> Outcome:
        """What is said of files of the project, in terms of the launcher's own."""
        fault = outcome.fault
        if fault is None:
            return outcome
        trace = self.translate_text(fault.traceback, workspace)
        return dataclasses.replace(outcome, fault=dataclasses.replace(fault, traceback=trace))

    def translate_text(self, text: str, workspace: Workspace | None) -> str:
        """A text with names of files, those of the project as the launcher's own."""
        if self.hello is not None and self.hello.tree and workspace is not None:
            for name, root in workspace.roots.items():
                there = os.path.join(self.hello.tree, name, "")
                text = text.replace(there, f"{root.path}{os.sep}")
        return text

    async def wait_until_reached(self) -> str:
        """Whether it reaches the first host; one that is lost meanwhile has nothing to say."""
        return await self._unless_lost(self.reached) or ""

    async def wait_until_ready(self) -> wire.Ready | None:
        """What came of loading packages; None for one that is lost meanwhile."""
        return await self._unless_lost(self.ready)

    async def _unless_lost(self, awaited: asyncio.Future[T]) -> T | None:
        lost = asyncio.ensure_future(self.lost.wait())
        waited: set[asyncio.Future[Any]] = {awaited, lost}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        return awaited.result() if awaited.done() else None

    async def dismiss(
        self, gave_up: asyncio.Event, grace: float, *, orderly: bool, patience: float = math.inf
    ) -> None:
        """Let it go: `orderly`, once its logs are here; otherwise by force.

        One that says nothing of use for so long, and does not end, is given up.
        """
        if orderly:
            self.dismissed = True
            await self._tell_to_go(gave_up)
            await self._await_logs(gave_up, patience)
            if self.rests:
                self.placed.keep()
            else:
                await self.placed.end(2.0)
            return
        self.channel.close()
        await self.placed.end(_LOST if self.placed.is_abroad and self.gone else grace + 3.0)
        if self.hello is not None:
            await self.placed.sweep(self._app, self.hello)

    async def _tell_to_go(self, gave_up: asyncio.Event) -> None:
        """One that does not read hears it from the end of its channel."""
        telling = asyncio.ensure_future(self.send(self.placed.rest or wire.Leave()))
        await self._unless(telling, gave_up, self.lost, LAST_LOGS)
        telling.cancel()

    async def _await_logs(self, gave_up: asyncio.Event, patience: float) -> None:
        """Until it has nothing left to say; not much longer once the app was given up."""
        if self.listening is None:
            return
        while not gave_up.is_set() and not self.lost.is_set():
            before = self.vetting.output
            if await self._unless(self.listening, gave_up, self.lost, patience):
                return
            idle = self.vetting.output - before < _LEAST and not self.vetting.unwritten
            if idle and not gave_up.is_set() and not self.lost.is_set():
                logger.warning(
                    "phalanx: %s was told to end, and has not for %g s: it is given up",
                    *(self.placed.host, patience),
                )
                return
        if not await self._unless(self.listening, None, None, LAST_LOGS):
            logger.warning("phalanx: the last of the workers' output was given up")

    @staticmethod
    async def _unless(
        awaited: asyncio.Future[Any],
        gave_up: asyncio.Event | None,
        lost: asyncio.Event | None,
        patience: float,
    ) -> bool:
        """Wait for something, at most so long, unless one of these happens; whether it is done."""
        ends = [asyncio.create_task(event.wait()) for event in (gave_up, lost) if event is not None]
        limit = None if patience == math.inf else patience
        waited: set[asyncio.Future[Any]] = {awaited, *ends}
        await asyncio.wait(waited, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        return awaited.done()
