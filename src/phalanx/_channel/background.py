"""Work in the background of a loop, none of which may fail unheard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Background:
    """Tasks that nobody waits for."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        """`on_failure` is told of every task that raises."""
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()

    def do(self, coroutine: Coroutine[None, None, Any]) -> asyncio.Task[Any]:
        """Begin with it."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        """Cancel all of it."""
        for task in list(self._tasks):
            task.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
