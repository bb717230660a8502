"""Load the packages that the user's modules will want, once, before the workers are forked.

A package is left out when its import reads a variable that differs between ranks: what it read
here would be frozen into every worker. What fails to import is left to the worker, where the user
sees it.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from phalanx._core.ranks import RANK_VARIABLES
from phalanx._system.installed_files import is_installed
from phalanx._wire import Import, Prepare

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
class _Tried:
    """What came of one import."""

    torch: bool
    failure: str | None
    printed: tuple[bytes, bytes]
    marks: tuple[bool, ...]
    """Whether it has changed what `_marks` looks at, `sys.path` first."""


@dataclass
class LoadedPackages:
    """What was loaded here so far, and what came of it."""

    tainted: list[str] = field(default_factory=list)
    """Modules whose import read a per-rank variable."""
    unsafe: str | None = None
    """Why this process must not be forked any more."""
    _tried: dict[Import, _Tried] = field(default_factory=dict)
    _stamps: dict[str, tuple[int, int]] = field(default_factory=dict)
    _with_torch: set[str] = field(default_factory=lambda: {"torch"})

    def missing(self, imports: Iterable[Import]) -> list[Import]:
        """Those that have not been tried yet."""
        return [item for item in imports if item not in self._tried]

    def failures(self, imports: Iterable[Import]) -> tuple[str, ...]:
        """What went wrong with these."""
        found = (self._tried[item].failure for item in imports if item in self._tried)
        return tuple(failure for failure in found if failure is not None)

    def bring_torch(self, imports: Iterable[Import]) -> bool:
        """One of these uses torch, as far as can be told."""
        return any(item in self._tried and self._tried[item].torch for item in imports)

    def printed(self, imports: Iterable[Import]) -> tuple[bytes, bytes]:
        """What these have printed to stdout and stderr when they were loaded."""
        parts = [self._tried[item].printed for item in imports if item in self._tried]
        return b"".join(out for out, _ in parts), b"".join(err for _, err in parts)

    def load(self, item: Import) -> None:
        """Import one, and note what came of it."""
        top = item.module.partition(".")[0]
        before = "torch" in sys.modules
        sizes, marks = _sizes(), _marks()
        failure = None
        plain: Any = builtins.__import__
        watched = self._watched_import(plain) if before else plain
        builtins.__import__ = watched
        try:
            __import__(item.module, fromlist=item.names)
        except BaseException as error:  # noqa: BLE001 the worker meets it too, and reports it
            failure = f"{item.module} ({type(error).__name__}: {error})"
        finally:
            if builtins.__import__ is watched:
                builtins.__import__ = plain
        torch = top in self._with_torch or ("torch" in sys.modules and not before)
        if torch:
            self._with_torch.add(top)
        changed = tuple(a != b for a, b in zip(marks, _marks(), strict=True))
        self._tried[item] = _Tried(torch, failure, _printed_since(sizes), changed)

    def _watched_import(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """An `__import__` that notes which packages import torch, though it is there already."""

        def watched(
            name: str,
            globals: Any = None,  # noqa: A002 packages call it by these names
            locals: Any = None,  # noqa: A002
            fromlist: Any = (),
            level: int = 0,
        ) -> Any:
            module = plain(name, globals, locals, fromlist, level)
            if level == 0 and name.partition(".")[0] in self._with_torch:
                importer = (globals or {}).get("__name__") or ""
                self._with_torch.add(importer.partition(".")[0])
            return module

        return watched

    # ── may it be used again? ─────────────────────────────────────────────────

    def stamp(self, python_path: Iterable[str]) -> None:
        """Remember the files that the loaded modules came from, as they are now."""
        for module in list(sys.modules.values()):
            path = getattr(module, "__dict__", {}).get("__file__")
            if isinstance(path, str) and path not in self._stamps:
                self._stamps[path] = _stamp(path)
        for directory in python_path:
            if is_installed(directory + os.sep):
                self._stamps.setdefault(directory, _stamp(directory))

    def fits(self, prepare: Prepare) -> bool:
        """What is loaded is on disk as it was, and hinders nothing that this app wants."""
        extra = [item for item in self._tried if item not in prepare.preload]
        if extra and (prepare.late is None or self.unsafe is not None):
            return False
        # Every app begins with its own sys.path: what a package has added is lost to the next.
        if any(t.marks[0] for t in self._tried.values()):
            return False
        if any(any(self._tried[item].marks) for item in extra):
            return False
        tops = {name.partition(".")[0] for name in sys.modules}
        if prepare.late is not None and not tops.isdisjoint(prepare.late):
            return False
        if any(_stamp(path) != stamp for path, stamp in self._stamps.items()):
            return False
        tops -= {*sys.stdlib_module_names, "__main__", "phalanx"}
        return not any(_shadows(directory, tops) for directory in prepare.python_path)


def _shadows(directory: str, tops: set[str]) -> bool:
    """In a directory of the user's there is now another module of a name that is loaded."""
    if is_installed(directory + os.sep):
        return False
    directory = os.path.abspath(directory)
    try:
        names = {entry.partition(".")[0] for entry in os.listdir(directory)}
    except OSError:
        return False
    for top in tops & names:
        path = os.path.join(directory, top)
        found = [p for p in (f"{path}.py", os.path.join(path, "__init__.py")) if os.path.isfile(p)]
        if found and getattr(sys.modules.get(top), "__file__", None) not in found:
            return True
    return False


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


def _marks() -> tuple[Any, ...]:
    """What a package may change for others when it is imported."""
    return (
        list(sys.path),
        {k: v for k, v in os.environ.items() if k not in RANK_VARIABLES},
        [*logging.root.handlers, logging.root.level],
        (sys.excepthook, sys.stdout, sys.stderr, builtins.__import__),
    )


def flush_streams() -> None:
    """Flush what the packages have left as stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a stream of someone's own raises anything
            stream.flush()


def _sizes() -> tuple[int, int]:
    flush_streams()
    return os.fstat(1).st_size, os.fstat(2).st_size


def _printed_since(before: tuple[int, int]) -> tuple[bytes, bytes]:
    """What has come into the files that are our stdout and stderr."""
    after = _sizes()
    parts = []
    for number, start, end in zip((1, 2), before, after, strict=True):
        try:
            parts.append(os.pread(number, end - start, start) if end > start else b"")
        except OSError:
            parts.append(b"")  # not a file: then nothing was kept
    return parts[0], parts[1]


def preload(prepare: Prepare, loaded: LoadedPackages, announce: Callable[[str], None]) -> None:
    """Import in order. Each is announced before: one that ends the process can then be named."""
    plain = type(os.environ)
    os.environ.__class__ = _Watched
    try:
        for item in loaded.missing(prepare.preload):
            _Watched.asked.clear()
            announce(item.module)
            loaded.load(item)
            if _Watched.asked:
                loaded.tainted.append(item.module)
    finally:
        os.environ.__class__ = plain
    loaded.stamp(prepare.python_path)


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


def reseed() -> None:
    """Give numpy's and torch's global generators states of their own: all forks share one
    otherwise. Python's own does that itself.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()
    generator: Any = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.seed()
