"""Where agents come from. Here: this machine, as child processes with pipes.

A placement starts agents and gives a channel to each; it does not know what an agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from phalanx import hosts, wire
from phalanx.channel import Channel, PipeChannel
from phalanx.errors import StartFailed
from phalanx.hosts import SOURCE_FAILED
from phalanx.logs import logger
from phalanx.rounds import signal_name

_PIPE_SIZE = 1 << 20
_TAIL = 64 << 10


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

    async def end(self, patience: float) -> None:
        """Wait so long for it to end by itself, then kill it."""

    def sweep(self, app: str, spool: str) -> None:
        """After it was lost: end and remove what it can have left behind, as far as that goes."""


class Placement(Protocol):
    """Starts agents."""

    def start(self, first: Sequence[wire.Frame]) -> None:
        """Begin to start one agent for each of these first frames; does not wait."""

    def place(self) -> AsyncIterator[Placed]:
        """The agents, as each can be spoken to."""


class LocalPlacement:
    """Agents as children of this process."""

    def __init__(self, env_file: str | None) -> None:
        """`env_file` is sourced before each agent."""
        self._env_file = env_file
        self._started: list[_Child] = []

    def start(self, first: Sequence[wire.Frame]) -> None:
        """Start the children, and give each its first frame if that cannot block."""
        for frame in first:
            try:
                self._started.append(_Child(self._env_file, wire.encode(frame)))
            except OSError as error:
                self.kill()
                raise StartFailed(
                    f"the agent on this machine could not be started: {error}", hostname="localhost"
                ) from error

    async def place(self) -> AsyncIterator[LocalAgent]:
        """Channels to the children, in order."""
        for index, child in enumerate(self._started):
            yield await LocalAgent.open(index, child)

    def kill(self) -> None:
        """End the children that were started, without waiting for anything in order."""
        for child in self._started:
            child.process.kill()
            child.process.wait()


class _Child:
    """A process and our ends of the pipes to it.

    The channel has descriptors of its own: anything may print to the standard streams before our
    code is reached.
    """

    def __init__(self, env_file: str | None, first: bytes) -> None:
        theirs_in, ours_in = _pipe()
        ours_out, theirs_out = _pipe()
        ours_errors, theirs_errors = _pipe()
        self.read, self.write, self.errors = (
            open(ours_out, "rb", 0),  # noqa: SIM115 the channel closes them
            open(ours_in, "wb", 0),  # noqa: SIM115
            open(ours_errors, "rb", 0),  # noqa: SIM115
        )
        try:
            # In a session of its own: the terminal's Ctrl-C is ours to deal with, not the agent's.
            self.process = subprocess.Popen(
                hosts.agent_command(str(theirs_in), str(theirs_out), env_file=env_file),
                stdin=subprocess.DEVNULL,
                stdout=theirs_errors,
                stderr=theirs_errors,
                pass_fds=(theirs_in, theirs_out),
                start_new_session=True,
            )
        except OSError:
            for file in (self.read, self.write, self.errors):
                file.close()
            raise
        finally:
            for number in (theirs_in, theirs_out, theirs_errors):
                os.close(number)
        self.rest = self._write_first(first)

    def _write_first(self, data: bytes) -> bytes:
        """Write what an empty pipe takes; give the rest."""
        for pipe in (self.read, self.write):
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        os.set_blocking(self.write.fileno(), False)
        try:
            return data[os.write(self.write.fileno(), data) :]
        except (BlockingIOError, BrokenPipeError):
            return data


def _pipe() -> tuple[int, int]:
    """A pipe beside the standard streams, even where those are closed."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends)
    for end in ends:
        os.close(end)
    return read, write


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
    async def open(cls, index: int, child: _Child) -> LocalAgent:
        """Take the child's pipes over."""
        loop = asyncio.get_running_loop()
        channel = await PipeChannel.open(child.read, child.write)
        channel.send_raw(child.rest)
        agent = cls(index, child.process, channel)
        await loop.connect_read_pipe(lambda: agent._errors, child.errors)
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
                logger.warning("phalanx: an agent ended badly: %s", await self.describe_end())
        except TimeoutError:
            self._process.send_signal(signal.SIGKILL)
            await self._wait(None)
        self.channel.abort()
        self._errors.close()

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
