"""Ctrl-C, SIGTERM and SIGHUP while a launch runs: end it in order, then let the signal act."""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from phalanx._logs.console import can_write


class Interruptible:
    """What the signal handlers act on: the app to cancel, once there is one."""

    def __init__(self) -> None:
        """Nothing has been received."""
        self.received: int | None = None
        self._cancel: Callable[[float | None], None] | None = None
        self._times = 0

    def attach(self, cancel: Callable[[float | None], None]) -> None:
        """From now on a signal calls this; one that came before does so at once."""
        self._cancel = cancel
        if self.received is not None:
            cancel(None)

    def handle(self, number: int, _: FrameType | None) -> None:
        """The signal handler: the first time in order, the second without grace."""
        self.received = self.received or number
        self._times += 1
        if self._cancel is not None:
            self._cancel(None if self._times == 1 else 0.0)
        if self._times == 1 and os.isatty(2) and can_write(2):
            os.write(2, b"\r\x1b[2Kphalanx: stopping the workers; press Ctrl-C again to kill now\n")


@contextmanager
def interruptible() -> Iterator[Interruptible]:
    """Within, SIGINT, SIGTERM and SIGHUP cancel instead of raising anywhere in our code.

    Only where Python's own handlers are in place, and only on the main thread: a program's own
    handlers stay. On the way out they are as they were, and a signal that came has its effect.
    """
    state = Interruptible()
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        defaults: dict[int, Any] = {
            signal.SIGINT: signal.default_int_handler,
            signal.SIGTERM: signal.SIG_DFL,
            signal.SIGHUP: signal.SIG_DFL,
        }
        for number, default in defaults.items():
            if signal.getsignal(number) == default or _is_asyncios(signal.getsignal(number)):
                previous[number] = signal.signal(number, state.handle)
    try:
        yield state
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if state.received == signal.SIGINT:
        # A subclass would not do: only for this very type does Python end by the signal itself.
        raise KeyboardInterrupt
    if state.received is not None:
        os.kill(os.getpid(), state.received)


def _is_asyncios(handler: Any) -> bool:
    """`asyncio.run`'s own: it would cancel a task that cannot run while we block its thread."""
    return getattr(getattr(handler, "func", None), "__qualname__", "") == "Runner._on_sigint"


def hide_traceback(interrupt: KeyboardInterrupt, left: str) -> None:
    """Have this interrupt, if nobody catches it, end the program without a traceback of ours.

    `left` says what is left of what was interrupted. Once it was caught and is forgotten, the
    program's hook for uncaught exceptions is the one that it was.
    """
    mark = _Left(left)
    interrupt.hushed = mark  # type: ignore[attr-defined]
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)
    sys.excepthook.count += 1
    weakref.finalize(mark, sys.excepthook.forget).atexit = False


class _Left(str):
    """What is left; it lives as long as the interrupt that carries it."""

    __slots__ = ("__weakref__",)


class _Hook:
    """A hook for uncaught exceptions that is there for as long as interrupts are hushed."""

    def __init__(self, previous: Callable[..., Any]) -> None:
        self.count = 0
        self._previous = previous

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if left := getattr(error, "hushed", ""):
            print(f"phalanx: interrupted; {left}", file=sys.stderr)
        else:
            self._previous(kind, error, trace)

    def forget(self) -> None:
        """One of them is gone."""
        self.count -= 1
        if not self.count and sys.excepthook is self:  # else somebody has put another over it
            sys.excepthook = self._previous
