"""Load the packages that the user's modules will want, once, before the workers are forked.

A package is left out when its import reads a variable that differs between ranks: what it read
here would be frozen into every worker. What fails to import is left to the worker, where the user
sees it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
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


def preload(imports: Iterable[Import]) -> tuple[str, ...]:
    """Import in order; give the modules whose import read a per-rank variable."""
    plain = type(os.environ)
    tainted: list[str] = []
    os.environ.__class__ = _Watched
    try:
        for item in imports:
            _Watched.asked.clear()
            _import(item)
            if _Watched.asked:
                tainted.append(item.module)
    finally:
        os.environ.__class__ = plain
    return tuple(tainted)


def _import(item: Import) -> None:
    try:
        __import__(item.module, fromlist=item.names)
    except BaseException as error:  # noqa: BLE001 the worker meets the same error, and reports it
        print(f"phalanx: could not preload {item.module}: {error!r}", file=sys.stderr)


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
