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

from phalanx.hosts import is_installed
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
class Loaded:
    """What was loaded here so far, and what came of it."""

    tainted: list[str] = field(default_factory=list)
    """Modules whose import read a per-rank variable."""
    unsafe: str | None = None
    """Why this process must not be forked any more."""
    _failed: dict[Import, str] = field(default_factory=dict)
    _torch: dict[Import, bool] = field(default_factory=dict)
    _stamps: dict[str, tuple[int, int]] = field(default_factory=dict)

    def missing(self, imports: Iterable[Import]) -> list[Import]:
        """Those that have not been tried yet."""
        return [item for item in imports if item not in self._torch]

    def add(self, item: Import, error: BaseException | None) -> None:
        """Note that one was tried."""
        self._torch[item] = "torch" in sys.modules
        if error is not None:
            self._failed[item] = f"{item.module} ({type(error).__name__}: {error})"

    def failures(self, imports: Iterable[Import]) -> tuple[str, ...]:
        """What went wrong with these."""
        return tuple(self._failed[item] for item in imports if item in self._failed)

    def bring_torch(self, imports: Iterable[Import]) -> bool:
        """One of these has torch loaded, as far as can be told."""
        return any(self._torch.get(item, False) for item in imports)

    def stamp(self) -> None:
        """Remember the files that the loaded modules came from, as they are now."""
        for module in list(sys.modules.values()):
            path = getattr(module, "__dict__", {}).get("__file__")
            if isinstance(path, str) and path not in self._stamps:
                self._stamps[path] = _stamp(path)

    def is_stale(self, python_path: Iterable[str]) -> bool:
        """A loaded file has changed, or another one of its name would be found first now."""
        if any(_stamp(path) != stamp for path, stamp in self._stamps.items()):
            return True
        tops = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
        tops -= {"__main__", "phalanx"}
        for directory in python_path:
            if is_installed(directory + os.sep):
                continue
            try:
                names = {entry.partition(".")[0] for entry in os.listdir(directory or os.curdir)}
            except OSError:
                continue
            for top in tops & names:
                file = getattr(sys.modules.get(top), "__file__", None) or ""
                if not file.startswith(os.path.abspath(directory)) and _is_module(directory, top):
                    return True
        return False


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


def _is_module(directory: str, name: str) -> bool:
    path = os.path.join(directory, name)
    return os.path.isfile(path + ".py") or os.path.isfile(os.path.join(path, "__init__.py"))


def preload(imports: Iterable[Import], loaded: Loaded, announce: Callable[[str], None]) -> None:
    """Import in order. Each is announced before: one that ends the process can then be named."""
    plain = type(os.environ)
    os.environ.__class__ = _Watched
    try:
        for item in imports:
            _Watched.asked.clear()
            announce(item.module)
            failure = None
            try:
                __import__(item.module, fromlist=item.names)
            except BaseException as error:  # noqa: BLE001 the worker meets it too, and reports it
                failure = error
            loaded.add(item, failure)
            if _Watched.asked:
                loaded.tainted.append(item.module)
    finally:
        os.environ.__class__ = plain
    loaded.stamp()


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
