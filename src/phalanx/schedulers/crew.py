"""Who starts replicas and ends them: what a supervisor asks for, and this machine as one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import IO, Protocol

from phalanx.rounds import signal_name
from phalanx.schedulers.course import Key
from phalanx.schedulers.request import ReplicaRequest
from phalanx.worker import processes

CANNOT_START = 127
"""The exit code of what cannot be started, as shells have it."""


@dataclass(frozen=True)
class Ending:
    """How a replica ended."""

    exit_code: int | None = None
    signal: str | None = None
    error: str = ""
    """What is known besides what it printed."""

    @property
    def succeeded(self) -> bool:
        """It exited with 0."""
        return self.exit_code == 0 and self.signal is None

    @property
    def code(self) -> int:
        """What a shell would give for it."""
        if self.signal is not None:
            number = getattr(signal, self.signal, None)
            return 128 + int(number) if number is not None else 1
        return 1 if self.exit_code is None else self.exit_code


class Crew(Protocol):
    """Runs replicas somewhere. Nothing blocks, but `close`."""

    def start(self, replica: ReplicaRequest) -> Ending | None:
        """Start a replica; how it ended, if it cannot be."""

    def pid(self, replica: Key) -> int | None:
        """The process of a replica that was started, if it is one of this machine's."""

    def stop(self, replica: Key, grace: float) -> None:
        """Have it end: SIGTERM, after the grace SIGKILL."""

    def ended(self) -> list[tuple[Key, Ending]]:
        """Those that have ended since the last look."""

    def close(self) -> None:
        """End all that is left, and wait until it has."""


class LocalCrew:
    """Replicas as children of this process, each in a session of its own."""

    def __init__(self) -> None:
        """Nothing runs."""
        self._running: dict[Key, subprocess.Popen[bytes]] = {}
        self._kill_at: dict[Key, float] = {}

    def start(self, replica: ReplicaRequest) -> Ending | None:
        """Start it, its streams going to its files."""
        environ = {**os.environ, **replica.env}
        try:
            with _open(replica.logs["stdout"]) as out, _open(replica.logs["stderr"]) as err:
                self._running[replica.key] = subprocess.Popen(
                    _resolve(replica.argv, environ["PATH"]),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=environ,
                    cwd=replica.cwd,
                    start_new_session=True,
                )
        except OSError as error:
            what = error.filename or replica.argv[0]
            text = f"cannot start {what!r}: {error.strerror}"
            with contextlib.suppress(OSError), _open(replica.logs["stderr"]) as err:
                err.write(f"phalanx: {text}\n".encode())
            return Ending(exit_code=CANNOT_START, error=text)
        return None

    def pid(self, replica: Key) -> int | None:
        """Its own."""
        process = self._running.get(replica)
        return None if process is None else process.pid

    def stop(self, replica: Key, grace: float) -> None:
        """To all of its session, at first."""
        process = self._running.get(replica)
        if process is not None:
            self._kill_at[replica] = time.monotonic() + grace
            _signal_session(process.pid, signal.SIGTERM)
            _signal_session(process.pid, signal.SIGCONT)  # one that is stopped hears nothing

    def ended(self) -> list[tuple[Key, Ending]]:
        """Those whose own process has; what it has left behind in its session is killed."""
        now = time.monotonic()
        for key, moment in self._kill_at.items():
            if now >= moment and key in self._running:
                _kill_session(self._running[key].pid)
        found = []
        for key, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                _kill_session(process.pid)
                del self._running[key]
                self._kill_at.pop(key, None)
                found.append((key, _ending(code)))
        return found

    def close(self) -> None:
        """Everything below this process goes."""
        processes.kill_descendants(processes.reap)


def _open(path: str) -> IO[bytes]:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    return open(path, "ab", buffering=0)


def _resolve(argv: tuple[str, ...], path: str) -> list[str]:
    """With the program's own path: it is looked for where the replica would."""
    import shutil

    program = argv[0]
    found = program if os.sep in program else shutil.which(program, path=path)
    return [found or program, *argv[1:]]


def _ending(code: int) -> Ending:
    return Ending(signal=signal_name(-code)) if code < 0 else Ending(exit_code=code)


def _signal_session(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _kill_session(leader: int) -> None:
    """Kill what is in the session that a process has begun, itself included."""
    _signal_session(leader, signal.SIGKILL)
    for pid in processes.descendants(os.getpid()):
        if processes.session_of(pid) == leader:
            processes.send(pid, signal.SIGKILL)
