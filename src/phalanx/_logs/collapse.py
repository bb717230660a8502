"""Equal lines of several ranks become one. Pure: whoever uses it says what time it is."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

WINDOW = 0.2
"""Seconds that a line waits for the same of other ranks."""

_HELD = 2000
"""How many different lines may wait."""


L = TypeVar("L", bound=Hashable)


@dataclass
class Group(Generic[L]):
    """A line, and the sources that have printed it."""

    text: L
    since: float
    number: int
    keys: set[int] = field(default_factory=set)


class Collapser(Generic[L]):
    """Holds lines back for a moment. The lines of each source keep their order."""

    def __init__(self, sources: int) -> None:
        """So many sources there are: a line that all have printed waits no longer."""
        self._sources = sources
        self._groups: deque[Group[L]] = deque()
        self._by_text: dict[L, list[Group[L]]] = {}
        self._last: dict[int, int] = {}
        self._count = 0

    @property
    def due(self) -> float | None:
        """When the next line has waited long enough."""
        return self._groups[0].since + WINDOW if self._groups else None

    def add(self, key: int, text: L, now: float) -> None:
        """A source has printed a line: it joins the first equal one that it may, or begins one."""
        same = self._by_text.get(text, [])
        at = bisect.bisect_right(same, self._last.get(key, -1), key=lambda g: g.number)
        if at < len(same):
            group = same[at]
        else:
            self._count += 1
            group = Group(text, now, self._count)
            self._groups.append(group)
            self._by_text.setdefault(text, []).append(group)
        group.keys.add(key)
        self._last[key] = group.number

    def take(self, now: float, *, final: bool = False) -> list[Group[L]]:
        """The lines that need not wait any more, in order."""
        taken: list[Group[L]] = []
        while self._groups:
            first = self._groups[0]
            whole = len(first.keys) == self._sources
            if not (whole or final or now >= first.since + WINDOW or len(self._groups) > _HELD):
                break
            taken.append(self._groups.popleft())
            same = self._by_text[first.text]
            same.pop(0)
            if not same:
                del self._by_text[first.text]
        return taken
