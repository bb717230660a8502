"""Calls that may block for ever, on threads that the program's end does not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def start(function: Callable[[], T]) -> Future[T]:
    """Call something on a daemon thread; what it gives or raises is the future's."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # it cannot be taken back

    def run() -> None:
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001 whoever asks for the result gets it
            future.set_exception(error)
        else:
            future.set_result(value)

    threading.Thread(target=run, name="phalanx-call", daemon=True).start()
    return future


async def in_daemon_thread(function: Callable[[], T], limit: float | None = None) -> T:
    """Likewise, and wait for it. Raises `TimeoutError` after the limit; the call itself goes on."""
    async with asyncio.timeout(limit):
        return await asyncio.wrap_future(start(function))
