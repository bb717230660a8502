"""Many requests at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 16
"""Requests."""
T = TypeVar("T")


def for_all(function: Callable[[T], object], items: Iterable[T]) -> None:
    """Call a function for each, many at once. Raises what the first raised, when all are done."""
    waiting = list(items)
    if len(waiting) == 1:
        function(waiting[0])
        return
    with ThreadPoolExecutor(AT_ONCE, "phalanx-requests") as pool:
        done = [pool.submit(function, item) for item in waiting]
    for future in done:
        future.result()
