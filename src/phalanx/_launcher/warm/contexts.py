"""Launchers that are used as contexts, and the pool that each keeps its agents in meanwhile."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from phalanx._launcher.launch_options import LaunchOptions
from phalanx._launcher.warm.pool import KeptPool, Pool


@dataclass
class _Context:
    launcher: LaunchOptions
    """Held, so that its identity stays its own."""
    pool: Pool
    depth: int = 0


_OPEN: dict[int, _Context] = {}
"""By the identity of the launcher: two that are equal keep agents of their own."""
_LOCK = threading.Lock()


def enter(launcher: LaunchOptions, keep_warm: float) -> None:
    """Have a pool for a launcher, until it was left as often as it was entered."""
    with _LOCK:
        context = _OPEN.get(id(launcher))
        if context is None:
            kept = KeptPool(keep_warm) if keep_warm else None
            context = _OPEN[id(launcher)] = _Context(launcher, Pool(kept=kept))
        context.depth += 1


def leave(launcher: LaunchOptions) -> None:
    """The last to leave closes the pool."""
    with _LOCK:
        context = _OPEN[id(launcher)]
        context.depth -= 1
        if context.depth:
            return
        del _OPEN[id(launcher)]
    context.pool.close()


def pool_of(launcher: LaunchOptions) -> Pool | None:
    """Where a launcher keeps its agents; None outside of a `with`."""
    context = _OPEN.get(id(launcher))
    return None if context is None else context.pool
