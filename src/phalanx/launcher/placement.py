"""Where agents come from. Here: this machine, as child processes with pipes.

A placement starts agents and gives a channel to each; it does not know what an agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from typing import IO, Protocol, cast

from phalanx import wire
from phalanx.channel import PipeChannel
from phalanx.hosts import SOURCE_FAILED
from phalanx.logs import logger
from phalanx.rounds import signal_name

_PIPE_SIZE = 1 << 20
_TAIL = 64 << 10


class Placed(Protocol):
    """An agent that was started, and the channel to it."""

    index: int
    channel: PipeChannel

    async def describe_end(self) -> str:
        """How it ended, for an error; called when its channel has ended."""

    async def end(self, patience: float) -> None:
        """Wait so long for it to end by itself, then kill it."""


class Placement(Protocol):
    """Starts agents."""

    def start(self, first: Sequence[wire.Frame]) -> None:
        """Begin to start one agent for each of these first frames; does not wait."""

    def place(self) -> AsyncIterator[Placed]:
        """The agents, as each can be spoken to."""


class LocalPlacement:
    """Agents as children of this process."""

    def __init__(self, command: list[str]) -> None:
        """`command` runs one agent."""
        self._command = command
        self._started: list[tuple[subprocess.Popen[bytes], bytes]] = []

    def start(self, first: Sequence[wire.Frame]) -> None:
        """Start the children, and give each its first frame if that cannot block."""
        for frame in first:
            # In a session of its own: the terminal's Ctrl-C is ours to deal with, not the agent's.
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
            self._started.append((process, self._write_first(process, wire.encode(frame))))

    @staticmethod
    def _write_first(process: subprocess.Popen[bytes], data: bytes) -> bytes:
        """Write what an empty pipe takes; give the rest."""
        number = cast(IO[bytes], process.stdin).fileno()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                fcntl.fcntl(cast(IO[bytes], stream), fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        os.set_blocking(number, False)
        try:
            return data[os.write(number, data) :]
        except (BlockingIOError, BrokenPipeError):
            return data

    async def place(self) -> AsyncIterator[LocalAgent]:
        """Channels to the children, in order."""
        for index, (process, rest) in enumerate(self._started):
            yield await LocalAgent.open(index, process, rest)

    def kill(self) -> None:
        """End the children that were started, if no channel was ever opened to them."""
        for process, _ in self._started:
            process.kill()
            process.wait()


class LocalAgent:
    """An agent that is a child of this process."""

    def __init__(self, index: int, process: subprocess.Popen[bytes], channel: PipeChannel) -> None:
        """Use `open` instead."""
        self.index = index
        self.channel = channel
        self._process = process
        self._errors = _Tail()
        self._described = False

    @classmethod
    async def open(
        cls, index: int, process: subprocess.Popen[bytes], rest: bytes = b""
    ) -> LocalAgent:
        """Take the child's pipes over."""
        loop = asyncio.get_running_loop()
        streams = cast(tuple[IO[bytes], IO[bytes]], (process.stdout, process.stdin))
        channel = await PipeChannel.open(*streams)
        channel.send_raw(rest)
        agent = cls(index, process, channel)
        await loop.connect_read_pipe(lambda: agent._errors, process.stderr)
        return agent

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
                logger.warning("an agent ended badly: %s", await self.describe_end())
        except TimeoutError:
            self._process.send_signal(signal.SIGKILL)
            await self._wait(None)
        self.channel.abort()
        self._errors.close()

    async def _wait(self, patience: float | None) -> int:
        """Poll: a child watcher would want this process's SIGCHLD or a thread."""
        loop = asyncio.get_running_loop()
        limit = None if patience is None else loop.time() + patience
        pause = 0.0005
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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        del self._data[:-_TAIL]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    def text(self) -> str:
        return self._data.decode("utf-8", "replace").strip()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
