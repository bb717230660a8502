"""Launchers that are used as contexts, and the pool that each keeps its agents in meanwhile."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from phalanx._launcher.borrowed_hosts import BorrowedHosts, Lender
from phalanx._launcher.launch_options import LaunchOptions
from phalanx._launcher.warm.pool import Pool, SharedPool


@dataclass
class _Context:
    launcher: LaunchOptions
    """Held, so that its identity stays its own."""
    pool: Pool
    depth: int = 0
    hosts: BorrowedHosts | None = None
    """Those of a scheduler, once a launch has asked for them."""


_OPEN: dict[int, _Context] = {}
"""By the identity of the launcher: two that are equal keep agents of their own."""
_LOCK = threading.Lock()


def enter(launcher: LaunchOptions, keep_warm: float) -> None:
    """Have a pool for a launcher, until it was left as often as it was entered."""
    with _LOCK:
        context = _OPEN.get(id(launcher))
        if context is None:
            shared = SharedPool(keep_warm) if keep_warm else None
            context = _OPEN[id(launcher)] = _Context(launcher, Pool(shared=shared))
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
    if context.hosts is not None:
        context.hosts.let_go()


def pool_of(launcher: LaunchOptions) -> Pool | None:
    """Where a launcher keeps its agents; None outside of a `with`."""
    context = _OPEN.get(id(launcher))
    return None if context is None else context.pool


def borrow(launcher: LaunchOptions, lender: Lender) -> BorrowedHosts:
    """Hosts for a launch, which lets go of them at its end: within a `with`, the same for all.

    Raises `SchedulerError` and `ConfigError`.
    """
    with _LOCK:
        context = _OPEN.get(id(launcher))
        if context is None:
            return lender.borrow()
        kept = context.hosts
        if kept is not None and kept.lender.request == lender.request and kept.hold():
            return kept
        hosts = context.hosts = lender.borrow(holders=2)
    if kept is not None:
        kept.let_go()  # it has ended, or other hosts are wanted
    return hosts
