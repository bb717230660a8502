"""What hosts tell each other through the store of a rendezvous. Blocks: for threads.

A handler gives a new store for each round. Torch's static one does not: it gives the first round's
again, at once, whether the others come or not. There, rounds have generations: what a host tells
has its generation, one that is ahead waits for the others, and these see that it does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from phalanx._rendezvous.errors import RendezvousTimeoutError

_MEMBER, _DONE, _AHEAD = "phalanx/member", "phalanx/done", "phalanx/ahead"
_LOOK = 0.02
_PATIENCE = 600.0
"""Seconds for the others to come, where the store does not say how long it waits itself."""


class SharedStore:
    """The store of one round, for one of its hosts."""

    def __init__(self, store: Any, rank: int, world_size: int, *, is_kept: bool) -> None:
        """`is_kept`: the handler gives the same store for every round."""
        self._store = store
        self._rank = rank
        self._hosts = range(world_size)
        self._is_kept = is_kept
        self._generation = 1

    def exchange(self, facts: Sequence[Any], is_over: Callable[[], bool]) -> list[list[Any]] | None:
        """Tell the others, and hear of them, in the order of their ranks; None if it is over.

        Raises `RendezvousTimeoutError` if some do not come again.
        """
        if self._is_kept and self._store.check([f"{_MEMBER}/{self._rank}"]):
            self._advance(self._read(self._rank)[0] + 1)
        limit = time.monotonic() + self._patience
        while True:
            self._store.set(f"{_MEMBER}/{self._rank}", json.dumps([self._generation, *facts]))
            told = [self._read(rank) for rank in self._hosts]
            latest = max(generation for generation, *_ in told)
            late = [rank for rank, one in zip(self._hosts, told, strict=True) if one[0] < latest]
            if not late:
                return [rest for _, *rest in told]
            if is_over():
                return None
            if time.monotonic() > limit:
                names = ", ".join(f"{told[rank][1]} (host {rank})" for rank in late)
                raise RendezvousTimeoutError(
                    f"the next round has not begun after {self._patience:g} s: {names} did not "
                    "come to it."
                )
            if self._generation < latest:
                self._advance(latest)
            else:
                time.sleep(_LOOK)

    def is_behind(self) -> bool:
        """Others wait in a later round."""
        return self._is_kept and bool(self._store.check([f"{_AHEAD}/{self._generation + 1}"]))

    def tell_done(self) -> None:
        """This host's workers have returned."""
        self._store.set(f"{_DONE}/{self._generation}/{self._rank}", "1")

    def all_done(self) -> bool:
        """Those of all hosts have."""
        return bool(
            self._store.check([f"{_DONE}/{self._generation}/{rank}" for rank in self._hosts])
        )

    def _advance(self, generation: int) -> None:
        self._generation = generation
        self._store.set(f"{_AHEAD}/{generation}", "1")

    def _read(self, rank: int) -> list[Any]:
        found: list[Any] = json.loads(self._store.get(f"{_MEMBER}/{rank}"))
        return found

    @property
    def _patience(self) -> float:
        """As long as the store waits for a key, which is how long the first round waits."""
        found = getattr(self._store, "timeout", None)
        return found.total_seconds() if isinstance(found, timedelta) else _PATIENCE
