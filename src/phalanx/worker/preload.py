"""Load the packages that the user's modules will want, once, before the workers are forked.

A package is left out when its import reads a variable that differs between ranks: what it read
here would be frozen into every worker. What fails to import is left to the worker, where the user
sees it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from phalanx.ranks import RANK_VARIABLES
from phalanx.wire import Import

_POOLS = ("openblas", "libmkl", "libgomp", "libomp", "libiomp")


class _Watched(type(os.environ)):  # type: ignore[misc]
    """The process environment, noting which per-rank variables are asked for."""

    asked: set[str] = set()  # noqa: RUF012 one per process, as the environment is

    def __getitem__(self, key: str) -> str:
        if key in RANK_VARIABLES:
            self.asked.add(key)
        value: str = super().__getitem__(key)
        return value


@dataclass
class Preloaded:
    """What came of it: the modules whose import read a per-rank variable, or failed."""

    tainted: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def preload(imports: Iterable[Import], announce: Callable[[str], None]) -> Preloaded:
    """Import in order. Each is announced before: one that ends the process can then be named."""
    plain = type(os.environ)
    done = Preloaded()
    os.environ.__class__ = _Watched
    try:
        for item in imports:
            _Watched.asked.clear()
            announce(item.module)
            try:
                __import__(item.module, fromlist=item.names)
            except BaseException as error:  # noqa: BLE001 the worker meets it too, and reports it
                done.failed.append(f"{item.module} ({type(error).__name__}: {error})")
            if _Watched.asked:
                done.tainted.append(item.module)
    finally:
        os.environ.__class__ = plain
    return done


def unsafe_to_fork() -> str | None:
    """Why this process must not be forked now, or None."""
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            return f"a package opened {target} when it was imported"
    python_threads = threading.active_count()
    if python_threads > 1:
        names = ", ".join(t.name for t in threading.enumerate() if t is not threading.main_thread())
        return f"a package started a thread when it was imported ({names})"
    native = len(os.listdir("/proc/self/task")) - python_threads
    if native > _pool_threads():
        return f"a package started {native} native threads when it was imported"
    return None


def _pool_threads() -> int:
    """How many idle threads the numeric libraries loaded here may keep: they survive a fork."""
    with open("/proc/self/maps") as file:
        mapped = {line.rpartition("/")[2].strip() for line in file if "/" in line}
    pools = [name for name in mapped if any(pool in name for pool in _POOLS)]
    return len(pools) * len(os.sched_getaffinity(0))


def reseed_numpy() -> None:
    """Give numpy's global generator a state of its own: all forks share one otherwise."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()
