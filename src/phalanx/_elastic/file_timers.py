"""Torch's file timers, served: a worker that outlives a timer that it has set is killed.

Workers use `torch.distributed.elastic.timer.FileTimerClient` with the pipe that
`TORCHELASTIC_TIMER_FILE` names; what they write is a line of JSON. It is asked for with
`TORCHELASTIC_ENABLE_FILE_TIMER=1`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx._core.json_text import parse_json
from phalanx._logs import logger
from phalanx._system import processes, temporary_directory

ENABLE, FILE = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"
_INTERVAL = 0.1


@dataclass(frozen=True)
class _Timer:
    expires: float
    signal: int


class FileTimers:
    """The pipe, and the thread that reads it."""

    def __init__(self, path: str) -> None:
        """Make the pipe and begin. Raises `OSError`."""
        self.path = path
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        # With an end for writing of our own it never comes to its end.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._timers: dict[tuple[int, str], _Timer] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="phalanx-timers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it, and remove the pipe."""
        self._stopped.set()
        self._thread.join()
        os.close(self._pipe)
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _run(self) -> None:
        begun = b""
        while not self._stopped.wait(_INTERVAL):
            with contextlib.suppress(BlockingIOError):
                while data := os.read(self._pipe, 1 << 16):
                    *lines, begun = (begun + data).split(b"\n")
                    for line in lines:
                        self._take(line)
            self._kill_expired(time.time())

    def _take(self, line: bytes) -> None:
        try:
            asked: dict[str, Any] = parse_json(line)
            key = (int(asked["pid"]), str(asked["scope_id"]))
            timer = _Timer(float(asked["expiration_time"]), int(asked["signal"]))
        except (ValueError, TypeError, KeyError):
            logger.warning("phalanx: not a timer of torch's: %r", line[:80])
            return
        if timer.expires < 0:
            self._timers.pop(key, None)
        else:
            self._timers[key] = timer

    def _kill_expired(self, now: float) -> None:
        for (pid, scope), timer in list(self._timers.items()):
            if processes.state_of(pid) is None:
                del self._timers[pid, scope]
            elif timer.expires <= now:
                del self._timers[pid, scope]
                # Whoever can write into the pipe is one of our user; still, only what is below us.
                if timer.signal > 0 and pid in processes.descendants(os.getpid()):
                    name = signal.Signals(timer.signal).name
                    logger.error("phalanx: timer %r of pid %d expired: %s", scope, pid, name)
                    processes.send(pid, timer.signal)


@contextlib.contextmanager
def served(environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Serve timers, if that is asked for; gives the variables that workers find them by."""
    if environ.get(ENABLE) != "1":
        yield {}
        return
    path = environ.get(FILE) or os.path.join(
        temporary_directory.place(), f"watchdog_timer_{os.getpid()}_{os.urandom(4).hex()}"
    )
    timers = FileTimers(path)
    try:
        yield {FILE: path}
    finally:
        timers.close()
