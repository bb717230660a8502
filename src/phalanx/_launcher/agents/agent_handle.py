"""The launcher's side of one agent: what is known of it, speaking to it, letting it go."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar

from phalanx import _wire as wire
from phalanx._channel.channel import wait_for_silence
from phalanx._core.clock import ClockOffset
from phalanx._core.rounds import Outcome
from phalanx._core.silence import Silence
from phalanx._launcher.agents.frame_checks import FrameChecker
from phalanx._launcher.placement import PlacedAgent
from phalanx._logs import logger

if TYPE_CHECKING:
    from phalanx._launcher.project.project_files import Project

T = TypeVar("T")

LAST_LOGS = 3.0
"""Seconds that the logs of a cancelled app may take before they are given up."""
_LEAST = 64 << 10
"""Bytes of log by which one that was told to end shows that it only has much left to send."""
ANSWER = 1.0
"""Seconds for an agent of an app that is over to answer, or it is ended by force."""
_LOST = 0.5
"""Seconds for what leads to a host that is lost: there is nothing left to wait for."""


class AgentHandle:
    """What the launcher knows of one agent of an app."""

    def __init__(self, placed: PlacedAgent, app: str, *, shipped: bool = False) -> None:
        """It has not said anything yet. `shipped`: the project may have to be sent to it."""
        loop = asyncio.get_running_loop()
        self.placed = placed
        self.channel = placed.channel
        self.clock = ClockOffset()
        self._silence = Silence()
        self.last_heard = time.monotonic()
        self.checker = FrameChecker(
            shipped=shipped, began=self.last_heard, local=not placed.is_remote
        )
        self.is_gone = False
        """Its channel has ended, or it was given up: it is not spoken to any more."""
        self.has_left = False
        """It goes for good, by its own word or ours: its host is not wanted back."""
        self.is_ending = False
        """It goes by its own word, and first says what its workers have printed."""
        self.was_preempted = False
        """By its own word: somebody else ends what runs on its host."""
        self.is_released = False
        """It was asked to end, or to stay warm."""
        self.is_silent = False
        """It was given up because it does not answer: there is nothing to wait for."""
        self.stays_warm = False
        self.has_joined = False
        """It can begin a round; those from before are not its own."""
        self.has_begun = False
        """It was told to start workers."""
        self.is_cleared = False
        """It was seen that nothing of it is left."""
        self.lost = asyncio.Event()
        self.hello: wire.Hello | None = None
        self.ready: asyncio.Future[wire.Ready] = loop.create_future()
        self.reached: asyncio.Future[str] = loop.create_future()
        """Whether it reaches the first host: empty, or why not."""
        self.tried: tuple[str, int] | None = None
        """The address and port that it tried."""
        self.port = 0
        """The port of its host for the next round's store."""
        self._checking: dict[int, asyncio.Future[dict[str, str]]] = {}
        """The checks of its host that it was asked for, by their numbers."""
        self._asked = 0
        self.listening: asyncio.Task[None] | None = None
        self._app = app

    async def send(self, frame: wire.Frame) -> None:
        """Say something; that it is gone is heard where it is listened to."""
        with contextlib.suppress(ConnectionError):
            await self.channel.send(dataclasses.replace(frame, app=self._app))

    def expect(self, frames: int) -> None:
        """It was asked for something: so many small answers are no chatter."""
        self.checker.expect(frames)

    async def check_host(self, ask: wire.CheckHost) -> dict[str, str] | None:
        """Have it check its host: why checks failed; None if it is lost meanwhile."""
        self._asked += 1
        number = self._asked
        answer = self._checking[number] = asyncio.get_running_loop().create_future()
        try:
            await self.send(dataclasses.replace(ask, number=number))
            return await self._unless_lost(answer)
        finally:
            del self._checking[number]

    def host_checked(self, frame: wire.HostChecked) -> None:
        """It says what came of checking its host."""
        answer = self._checking.get(frame.number)
        if answer is not None and not answer.done():
            answer.set_result(frame.problems)

    @property
    def is_shipped(self) -> bool:
        """The project is sent to it."""
        return self.hello is not None and bool(self.hello.tree)

    def pass_time(self, seconds: float) -> float:
        """So much time was waited for; gives how long it has been silent, once it has spoken."""
        expected = self.hello is not None and self.channel.is_connected
        return self._silence.pass_time(seconds, self.channel.heard, expected=expected)

    @property
    def silent(self) -> float:
        """How long it has been silent."""
        return self._silence.seconds

    def translate(self, outcome: Outcome, project: Project | None) -> Outcome:
        """What is said of files of the project, in terms of the launcher's own."""
        exception = outcome.exception
        if exception is None:
            return outcome
        trace = self.translate_text(exception.traceback, project)
        return dataclasses.replace(
            outcome, exception=dataclasses.replace(exception, traceback=trace)
        )

    def translate_text(self, text: str, project: Project | None) -> str:
        """A text with names of files, those of the project as the launcher's own."""
        if self.hello is not None and self.hello.tree and project is not None:
            for name, root in project.roots.items():
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

    async def release(
        self, gave_up: asyncio.Event, grace: float, *, orderly: bool, patience: float = math.inf
    ) -> None:
        """Let it go: `orderly`, once its logs are here; otherwise, or if it is silent, by force.

        One that says nothing of use for so long, and does not end, is given up.
        """
        if orderly:
            self.is_released = True
            await self._say(self.placed.stay_warm or wire.ShutDown())
            await self._await_logs(gave_up, patience)
            if self.stays_warm:
                self.placed.return_to_pool()
                self.is_cleared = True
                return
            self.is_cleared = not self.is_silent and await self.placed.end(2.0)
            if self.is_cleared:
                return
        if self.is_ending:
            await self._hear_last(gave_up, grace + ANSWER)
        self.channel.close()
        patience = grace + 3.0
        if self.is_silent:
            patience = 0.0
        elif self.placed.is_remote and self.is_gone:
            patience = _LOST
        self.is_cleared = await self.placed.destroy(patience, self.hello)

    async def clear_host(self) -> None:
        """Try once more to end what is left of it."""
        self.is_cleared = await self.placed.sweep(self.hello)

    async def _say(self, frame: wire.Frame) -> None:
        """As `send`, but not for longer than a moment: it may not read any more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER):
                await self.send(frame)

    async def _await_logs(self, gave_up: asyncio.Event, patience: float) -> None:
        """Until it has nothing left to say.

        Not much longer once the app was given up, and then not at all if it does not answer, as if
        it has never said anything.
        """
        if self.listening is None:
            return
        heard = self.hello is None or await self._hear_out(self.listening, gave_up, patience)
        if not heard or self.listening.done():
            return
        silence = asyncio.create_task(self._wait_for_silence())
        waited: set[asyncio.Future[Any]] = {self.listening, silence}
        await asyncio.wait(waited, timeout=LAST_LOGS, return_when=asyncio.FIRST_COMPLETED)
        silence.cancel()
        if not self.listening.done() and self.ready.done():
            logger.warning("phalanx: the last worker output was dropped")

    async def _hear_out(
        self, listening: asyncio.Future[Any], gave_up: asyncio.Event, patience: float
    ) -> bool:
        """Listen until its end, or until the app was given up or it was lost.

        False if it was told to end, and neither ends nor says anything of use for so long.
        """
        while not gave_up.is_set() and not self.lost.is_set():
            before = self.checker.output
            over = asyncio.create_task(_either(gave_up, self.lost))
            limit = None if patience == math.inf else patience
            waited: set[asyncio.Future[Any]] = {listening, over}
            await asyncio.wait(waited, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            ended = over.done()
            over.cancel()
            if listening.done() or ended:
                break
            if self.checker.output - before < _LEAST and not self.checker.unwritten:
                logger.warning(
                    "phalanx: %s did not stop within %g s: giving up on it",
                    self.placed.host,
                    patience,
                )
                return False
        return True

    async def _hear_last(self, gave_up: asyncio.Event, patience: float) -> None:
        """Listen to one that ends, for as long as it says something of use."""
        before = -1
        while self.listening is not None and not self.listening.done():
            if self.checker.output == before and (gave_up.is_set() or not self.checker.unwritten):
                logger.warning("phalanx: the last worker output was dropped")
                return
            before = self.checker.output
            await asyncio.wait({self.listening}, timeout=patience)

    async def _wait_for_silence(self) -> None:
        """Until it has not answered for a moment in which it was asked again and again."""

        def asked() -> bool:
            if not self.channel.congested:
                self.channel.post(wire.Ping(app=self._app, sent=time.monotonic()))
            return True

        await wait_for_silence(self.channel, ANSWER, asked, step=ANSWER / 8)
        self.is_silent = True


async def _either(*events: asyncio.Event) -> None:
    """Until one of them is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
