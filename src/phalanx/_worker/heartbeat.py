"""What a worker says while it works: `heartbeat`, `step`, `expires`. A store in memory each."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import threading
import time
from collections.abc import Iterator

from phalanx._core.heartbeats import AFTER, BEATS, DEADLINE, KEPT, SIZE, STEPS, TIMES
from phalanx._core.ranks import HEARTBEAT_FILE
from phalanx.errors import ConfigError

__all__ = ["expires", "heartbeat", "step"]


class _Page:
    """The file that the agent reads, as far as it can be had; otherwise memory of our own."""

    def __init__(self) -> None:
        self.numbers = memoryview(bytearray(SIZE)).cast("d")
        self.ended = 0.0
        """When the last step did."""
        self.timers: dict[object, tuple[float, float]] = {}
        """Those that run: until when, and how long in all."""
        self.lock = threading.Lock()
        path = os.environ.get(HEARTBEAT_FILE)
        with contextlib.suppress(OSError, ValueError):
            if path:
                self.numbers = memoryview(_map(path)).cast("d")

    def disown(self) -> None:
        """Store in memory of our own from now on: whoever has this page in hand keeps it."""
        self.numbers = memoryview(bytearray(SIZE)).cast("d")
        self.lock = threading.Lock()  # a thread that is not here any more may have had it


def _map(path: str) -> mmap.mmap:
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # A page that has no room on a full disk would end the process when it is written.
        os.posix_fallocate(number, 0, SIZE)
        return mmap.mmap(number, SIZE)
    finally:
        os.close(number)


_page: _Page | None = None


def _open() -> _Page:
    global _page  # noqa: PLW0603 a process has one
    if _page is None:
        _page = _Page()
    return _page


def _forget() -> None:
    """In a process that was forked: what it does says nothing of the one that is the rank."""
    os.environ.pop(HEARTBEAT_FILE, None)
    if _page is not None:
        _page.disown()


os.register_at_fork(after_in_child=_forget)


def heartbeat() -> None:
    """Say that this worker gets on. From its first call on, it is expected to.

    One that does not call it for `heartbeat_timeout` seconds (an option of `Launcher` and of
    `phalanx torchrun`) has hung: its stacks go into the error, and the app fails or its workers are
    restarted, as for any failure. Takes less than a microsecond. Outside of workers, and without
    that option, it has no effect.
    """
    (_page or _open()).numbers[BEATS] += 1.0


def step() -> None:
    """Say that this worker has done a training step. Also counts as a heartbeat.

    `phalanx status` and `App.status` show how many steps ranks have done, how long one takes, and
    which rank is the slowest. Takes about a microsecond. Outside of workers it has no effect.
    """
    page = _page or _open()
    now, before = time.monotonic(), page.ended
    page.ended = now
    numbers = page.numbers
    done = int(numbers[STEPS])
    if done:
        numbers[TIMES + (done - 1) % KEPT] = now - before
    numbers[STEPS] = done + 1
    numbers[BEATS] += 1.0


@contextlib.contextmanager
def expires(after: float) -> Iterator[None]:
    """A block that must not take longer than so many seconds, as torch's `timer.expires`.

    Where it does, the worker has hung: its stacks go into the error, and the app fails or its
    workers are restarted, as for any failure. Blocks may be nested and in several threads. Outside
    of workers it has no effect.

    Args:
        after: Seconds, more than 0.

    Raises:
        ConfigError: It is no such number.
    """
    if not 0 < after < math.inf:
        raise ConfigError(f"expires(after={after!r}): must be a number of seconds, more than 0.")
    page, timer = _page or _open(), object()
    with page.lock:
        page.timers[timer] = time.monotonic() + after, after
        _set_timer(page)
    try:
        yield
    finally:
        with page.lock:
            del page.timers[timer]
            _set_timer(page)


def _set_timer(page: _Page) -> None:
    """Have the agent know of the timer that comes first."""
    deadline, after = min(page.timers.values(), default=(0.0, 0.0))
    page.numbers[AFTER] = after
    page.numbers[DEADLINE] = deadline
