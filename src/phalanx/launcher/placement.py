"""Where agents come from. Here: this machine, as child processes with pipes.

A placement starts agents and gives a channel to each; it does not know what an agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from phalanx import wire
from phalanx.channel import Channel, PipeChannel
from phalanx.errors import StartFailed
from phalanx.hosts import SOURCE_FAILED
from phalanx.launcher.children import Child
from phalanx.launcher.surroundings import Surroundings, surroundings
from phalanx.launcher.warmth import Shelter
from phalanx.logs import logger
from phalanx.rounds import signal_name

_TAIL = 64 << 10
_FIRST_WORD = 5.0
"""Seconds in which an agent that was there already must answer, or another is started."""
_SECOND_WORD = 0.05
"""Seconds in which one that has lost its zygote meanwhile will have noticed."""


class Placed(Protocol):
    """An agent that was started, and the channel to it."""

    @property
    def index(self) -> int:
        """Which of the first frames it was started with."""

    @property
    def channel(self) -> Channel:
        """The stream of frames to and from it."""

    async def describe_end(self) -> str:
        """How it ended, for an error; called when its channel has ended."""

    def on_errors(self, take: Callable[[bytes], None]) -> None:
        """Have what it says outside of its channel, from the beginning, passed on to this."""

    async def end(self, patience: float) -> None:
        """Wait so long for it to end by itself, then kill it."""

    @property
    def rest(self) -> wire.Rest | None:
        """What to tell it so that it stays for another app; None if it is to leave."""

    def keep(self) -> None:
        """It has said that it rests: the next app may have it."""

    def sweep(self, app: str, spool: str) -> None:
        """After it was lost: end and remove what it can have left behind, as far as that goes."""


class Placement(Protocol):
    """Starts agents."""

    def start(self, first: Sequence[wire.Prepare]) -> None:
        """Begin to start one agent for each of these first frames; does not wait."""

    def place(self) -> AsyncIterator[Placed]:
        """The agents, as each can be spoken to."""


@dataclass(frozen=True)
class _Started:
    """An agent, and where it stays after the app, as one for which surroundings."""

    child: Child
    shelter: Shelter | None
    around: Surroundings


class LocalPlacement:
    """Agents as children of this process, or such as were left from an app before."""

    def __init__(self, env_file: str | None, shelters: Sequence[Shelter] = ()) -> None:
        """`env_file` is sourced before each agent; new agents stay in the first shelter."""
        self._env_file = env_file
        self._shelters = shelters
        self._first: Sequence[wire.Prepare] = ()
        self._started: list[_Started] = []

    def start(self, first: Sequence[wire.Prepare]) -> None:
        """Start or find the agents, and give each its first frame; does not wait."""
        self._first = first
        for frame in first:
            # Now, not later: the program may change its environment at any time.
            around = surroundings(frame, self._env_file) if self._shelters else {}
            self._started.append(self._find(frame, around) or self._start(frame, around))

    def _find(self, frame: wire.Prepare, around: Surroundings) -> _Started | None:
        for shelter in self._shelters:
            while (child := shelter.take(around)) is not None:
                if child.process.poll() is None and child.say(wire.encode(frame)):
                    return _Started(child, shelter, around)
                child.end(0.0)
        for shelter in self._shelters:
            shelter.make_room(around)
        return None

    def _start(self, frame: wire.Prepare, around: Surroundings) -> _Started:
        try:
            child = Child.start(self._env_file, wire.encode(frame))
        except OSError as error:
            self.kill()
            raise StartFailed(
                f"the agent on this machine could not be started: {error}", hostname="localhost"
            ) from error
        return _Started(child, self._shelters[0] if self._shelters else None, around)

    async def place(self) -> AsyncIterator[LocalAgent]:
        """Channels to the agents, in order. One that was gone already is replaced."""
        for index, frame in enumerate(self._first):
            started = self._started[index]
            agent = await LocalAgent.open(index, started)
            if started.child.used and not await _is_well(agent.channel, frame.app):
                await agent.end(0.0)
                self._started[index] = self._start(frame, started.around)
                agent = await LocalAgent.open(index, self._started[index])
            yield agent

    def kill(self) -> None:
        """End the agents that were started, without waiting for anything in order."""
        for started in self._started:
            started.child.process.kill()
            started.child.end(1.0)


async def _is_well(channel: PipeChannel, app: str) -> bool:
    """An agent that was there already answers, and does not say at once that it is broken."""

    def says(kind: type[wire.Frame]) -> bool:
        return any(isinstance(f, kind) and f.app in ("", app) for f in channel.waiting)

    await channel.wait_until(lambda: says(wire.Hello) or says(wire.Broken), _FIRST_WORD)
    if not says(wire.Hello):
        return False
    await channel.wait_until(lambda: says(wire.Ready) or says(wire.Broken), _SECOND_WORD)
    return not says(wire.Broken) and not channel.has_ended


class LocalAgent:
    """An agent on this machine."""

    def __init__(self, index: int, started: _Started, channel: PipeChannel) -> None:
        """Use `open` instead."""
        self.index = index
        self.channel = channel
        self._child = started.child
        self._process = started.child.process
        self._shelter = started.shelter
        self._around = started.around
        self._errors = _Tail()
        self._described = False

    @classmethod
    async def open(cls, index: int, started: _Started) -> LocalAgent:
        """Open a channel over the child's streams."""
        read, write, errors, unsaid = started.child.streams()
        channel = await PipeChannel.open(read, write)
        channel.send_raw(unsaid)
        agent = cls(index, started, channel)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: agent._errors, errors)
        return agent

    @property
    def rest(self) -> wire.Rest | None:
        """What to tell it so that it stays for another app."""
        return None if self._shelter is None else self._shelter.rest(self._around)

    def keep(self) -> None:
        """It has said that it rests: the next app may have it."""
        whole = self.channel.is_written
        self.channel.abort()
        self._errors.close()
        if self._shelter is not None and whole:
            self._child.used = True
            self._shelter.put(self._around, self._child)
        else:
            self._child.end(2.0)

    def on_errors(self, take: Callable[[bytes], None]) -> None:
        """Have what it says outside of its channel, from the beginning, passed on to this."""
        self._errors.pass_on(take)

    async def describe_end(self) -> str:
        """How it ended, for an error; called when its channel has ended."""
        self._described = True
        try:
            code = await self._wait(2.0)
        except TimeoutError:
            return "it closed its channel and does not end"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._errors.ended.wait(), 1.0)
        text = self._errors.text()
        if code == SOURCE_FAILED:
            return f"sourcing env_file failed:\n{text}"
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
        return f"it {how}" + (f":\n{text}" if text else "")

    async def end(self, patience: float) -> None:
        """Wait so long for it to end by itself, then kill it."""
        try:
            if await self._wait(patience) > 0 and not self._described:
                logger.warning("phalanx: an agent ended badly: %s", await self.describe_end())
        except TimeoutError:
            self._process.kill()
            await self._wait(None)
        self.channel.abort()
        self._errors.close()
        self._child.close()

    def sweep(self, app: str, spool: str) -> None:
        """End what carries the app's id in its environment, and remove the spool.

        Agent and zygote may have been killed both; what workers had started is then nobody's.
        """
        mark = f"TORCHELASTIC_RUN_ID={app}\0".encode()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/environ", "rb") as file:
                    environ = file.read()
                if mark in environ and pid != os.getpid():
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(spool, ignore_errors=True)

    async def _wait(self, patience: float | None) -> int:
        """Poll: a child watcher would want this process's SIGCHLD or a thread."""
        loop = asyncio.get_running_loop()
        limit = None if patience is None else loop.time() + patience
        pause = 0.0005
        self._child.close()
        while (code := self._process.poll()) is None:
            if limit is not None and loop.time() > limit:
                raise TimeoutError
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        return code


class _Tail(asyncio.Protocol):
    """Keeps the end of what an agent wrote to its stderr."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._data = bytearray()
        self._transport: asyncio.BaseTransport | None = None
        self._take: Callable[[bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def pass_on(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        if self._data:
            take(bytes(self._data))

    def data_received(self, data: bytes) -> None:
        if self._take is not None:
            self._take(data)
        self._data += data
        del self._data[:-_TAIL]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    def text(self) -> str:
        return self._data.decode("utf-8", "replace").strip()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
