"""Agents, or the commands that lead to them, as processes here, and our ends of their streams.

A stream outlives the channels that are opened over it: an agent may serve one app after another.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol, Self

from phalanx import _wire as wire
from phalanx._core import environment
from phalanx._system import machine, processes
from phalanx._worker import leftovers

if TYPE_CHECKING:
    from phalanx._channel.resumable import ChannelState

_PIPE_SIZE = 1 << 20
_BURIED = 5.0
"""Seconds in which a process that was killed is gone, unless it hangs in the kernel."""


class Process(Protocol):
    """What is asked of an agent's process; a child's, or that of one that was found."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, if it has ended; 0 where that cannot be known."""

    def kill(self) -> None:
        """End it by force."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""


@dataclass(frozen=True)
class RemoteInfo:
    """What is known of an agent on another host; the process here is the one that leads to it."""

    host: str
    tool: str
    """What leads there: ssh or srun."""
    changed: frozenset[str] = frozenset()
    """The environment variables that `env_file` has set there."""
    processors: int = 0
    gpus: int = 0
    pid: int = 0
    """The agent's process there."""
    start: int = 0
    """When that began, in its machine's terms."""
    python: str = ""
    """The interpreter there."""


class AgentProcess:
    """A process and our ends of the streams to it."""

    def __init__(
        self,
        process: Process,
        read: IO[bytes],
        write: IO[bytes],
        errors: IO[bytes],
        *,
        used: bool = False,
    ) -> None:
        """Use `start` or `found`. `used`: it was there already, and may have gone meanwhile."""
        self.process = process
        self.used = used
        self.remote_info: RemoteInfo | None = None
        """Where it is, if not on this machine."""
        self.early = b""
        """What it has said outside of its channel before anybody listened."""
        self.state: ChannelState | None = None
        """Where both directions stand, if the stream may break and be replaced."""
        self.spool = ""
        """Its directory, once it has said which."""
        self._read, self._write, self._errors = read, write, errors
        self._unsaid = b""
        os.set_blocking(write.fileno(), False)
        for pipe in (read, write):
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        _OPEN.add(self)

    @classmethod
    def start(cls, env_file: str | None, first: bytes) -> AgentProcess:
        """Start an agent, and give it its first frame. Raises `OSError`.

        The channel has descriptors of its own: anything may print to the standard streams before
        our code is reached.
        """
        with _Pipes() as pipes:
            # In a session of its own: the terminal's Ctrl-C is ours to deal with, not the agent's.
            process = subprocess.Popen(
                machine.agent_command(*map(str, pipes.theirs[:2]), env_file=env_file),
                stdin=subprocess.DEVNULL,
                stdout=pipes.theirs[2],
                stderr=pipes.theirs[2],
                pass_fds=pipes.theirs[:2],
                env=environment.users(os.environ),
                start_new_session=True,
            )
            child = cls(process, *pipes.take())
        child.say(first)
        return child

    @classmethod
    def remote(
        cls, command: Sequence[str], host: str, *, without: Collection[str] = ()
    ) -> AgentProcess:
        """Run a command that leads to another host; its streams are the channel.

        `without` are variables that it must not have.
        """
        with _Pipes() as pipes:
            process = subprocess.Popen(
                command,
                stdin=pipes.theirs[0],
                stdout=pipes.theirs[1],
                stderr=pipes.theirs[2],
                env={k: v for k, v in environment.users(os.environ).items() if k not in without},
                start_new_session=True,
            )
            child = cls(process, *pipes.take())
        child.remote_info = RemoteInfo(host, command[0])
        return child

    @classmethod
    def carried(
        cls, process: Process, streams: tuple[int, int, int], remote_info: RemoteInfo
    ) -> AgentProcess:
        """One whose streams others carry: our ends of them, to read, to write, and for errors."""
        child = cls(process, *_open(streams))
        child.remote_info = remote_info
        return child

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """Our ends of the streams: to read, to write, and for errors."""
        return self._read.fileno(), self._write.fileno(), self._errors.fileno()

    @classmethod
    def found(cls, connection: socket.socket, pid: int) -> AgentProcess:
        """Give an agent that was there already streams to us. Raises `OSError`."""
        with _Pipes() as pipes:
            socket.send_fds(connection, [b"\0"], pipes.theirs)
            return cls(_FoundProcess(pid), *pipes.take(), used=True)

    def say(self, data: bytes) -> bool:
        """Write what the stream takes at once, and keep the rest; False if nobody is there."""
        if self.state is not None:
            self.state.ledger.keep(data)
        data = self._unsaid + data
        self._unsaid = b""
        try:
            self._unsaid = data[os.write(self._write.fileno(), data) :]
        except BlockingIOError:
            self._unsaid = data
        except OSError:
            return False
        return True

    @property
    def is_behind(self) -> bool:
        """Something is still to be written."""
        return bool(self._unsaid)

    def streams(self) -> tuple[IO[bytes], IO[bytes], IO[bytes], bytes]:
        """Copies of the streams, to be closed by whoever asked, and what is still to be written."""
        unsaid, self._unsaid = self._unsaid, b""
        read, write, errors = self._files()
        return _copy(read, "rb"), _copy(write, "wb"), _copy(errors, "rb"), unsaid

    @property
    def is_found(self) -> bool:
        """It is not our child: how it ended cannot be known."""
        return isinstance(self.process, _FoundProcess)

    def close(self) -> None:
        """Let go of the streams: an agent that was not asked to stay ends."""
        for file in self._files():
            file.close()
        _OPEN.discard(self)

    def end(self, patience: float) -> None:
        """Let go of it, and wait so long for its end before it is killed."""
        if self.state is not None:
            self.say(wire.encode(wire.EndOfFrames()))  # or it would wait for another stream
        self.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> bool:
        """End it by force, even if it is stopped, and on this machine all that it has left.

        Gives whether it was seen that nothing of it is left here. Blocks for a moment.
        """
        gone = True
        if self.remote_info is None and self.process.poll() is None:
            gone = processes.kill_tree(self.process.pid)
        self.process.kill()
        try:
            self.process.wait(_BURIED)
        except subprocess.TimeoutExpired:  # it hangs in the kernel
            return False
        if self.remote_info is None:
            # Nobody else will: what could not end in order could not remove its directory either.
            gone = leftovers.end_agent(0, None, self.spool) and gone
        return gone

    def wake(self) -> None:
        """Have a process that was stopped go on: there is something for it to do."""
        if self.process.poll() is None:
            with contextlib.suppress(OSError):
                os.kill(self.process.pid, signal.SIGCONT)

    def _files(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        return self._read, self._write, self._errors

    def _close_in_fork(self) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for file in self._files():
            if not file.closed:
                os.dup2(null, file.fileno(), inheritable=False)
        os.close(null)


class _FoundProcess:
    """A process that is not our child. How it ended cannot be known."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._began = processes.start_time(pid)

    def poll(self) -> int | None:
        return None if self._began and processes.start_time(self.pid) == self._began else 0

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        limit = math.inf if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > limit:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.002)
        return 0


class _Pipes:
    """Pipes to and from an agent: its ends are closed here on the way out, ours unless taken."""

    def __init__(self) -> None:
        made: list[int] = []
        try:
            for _ in range(3):
                made += _pipe()
        except OSError:
            for number in made:
                os.close(number)
            raise
        theirs_in, ours_in, ours_out, theirs_out, ours_errors, theirs_errors = made
        self.theirs = (theirs_in, theirs_out, theirs_errors)
        self._ours = [ours_out, ours_in, ours_errors]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in (*self.theirs, *self._ours):
            os.close(number)

    def take(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        read, write, errors = self._ours
        self._ours = []
        return _open((read, write, errors))


def _open(streams: tuple[int, int, int]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    return open(streams[0], "rb", 0), open(streams[1], "wb", 0), open(streams[2], "rb", 0)


def _pipe() -> tuple[int, int]:
    """A pipe beside the standard streams, even where those are closed."""
    ends = os.pipe()
    made: list[int] = []
    try:
        made.extend(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends)
    except OSError:
        for end in made:
            os.close(end)
        raise
    finally:
        for end in ends:
            os.close(end)
    return made[0], made[1]


def _copy(file: IO[bytes], mode: str) -> IO[bytes]:
    number = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    return open(number, mode, 0)


_OPEN: weakref.WeakSet[AgentProcess] = weakref.WeakSet()


def _close_all_in_fork() -> None:
    """Let go of the streams in a process that the program forks, or it would keep agents alive."""
    for child in list(_OPEN):
        child._close_in_fork()
    _OPEN.clear()


os.register_at_fork(after_in_child=_close_all_in_fork)
