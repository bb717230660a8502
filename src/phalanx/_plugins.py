"""What installed packages add: the only reader of entry points.

Entry points are read once a process. A plugin is loaded when it is asked for, not before; one that
cannot be is named, and breaks nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Any

from phalanx import _aliases
from phalanx.errors import ConfigError, PluginError


@dataclass(frozen=True)
class Plugin:
    """One entry point."""

    group: str
    name: str
    value: str
    """The module it names, and behind a colon what in it."""
    package: str
    """The installed package it is of."""

    def __str__(self) -> str:
        """As its author wrote it, and where."""
        return (
            f"{self.name!r} of {self.package or 'an unnamed package'} ({self.group}: {self.value})"
        )

    def load(self) -> Any:
        """What it names. Raises `PluginError`, whatever went wrong."""
        from importlib.metadata import EntryPoint

        with guarded(self):
            return EntryPoint(self.name, self.value, self.group).load()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Load it, and call what it names. Raises `PluginError`, whatever went wrong."""
        function = self.load()
        with guarded(self, refuses=True):
            return function(*args, **kwargs)


@contextlib.contextmanager
def guarded(plugin: Plugin, *, refuses: bool = False) -> Iterator[None]:
    """Run what is a plugin's own: what it raises names it.

    `refuses`: it may say with a `ConfigError` that it cannot do what it was asked for.
    """
    try:
        yield
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        if refuses and isinstance(error, ConfigError):
            raise
        text = str(error).partition("\n")[0]
        kind = type(error).__name__
        instead = _aliases.instead_of(error)
        said = f"{kind}: {text}" if text else kind
        reason = f"{said.removesuffix('.')}. {instead}" if instead else said
        raise PluginError(plugin, reason) from error


_STARTS = ("phalanx.", "torchrun.")
"""What groups that we read begin with: ours, and torch's for its launcher."""


TORCHX_GROUPS = {
    "torchx.schedulers": "phalanx.schedulers",
    "torchx.named_resources": "phalanx.named_resources",
    "torchx.components": "phalanx.components",
    "torchx.cli.cmds": "phalanx.cli",
}
"""Groups of TorchX's that count as ours for a program that runs on `phalanx.compat.torchx`."""


class _Package:
    """An installed package, by its directory of metadata."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read_text(self, name: str) -> str | None:
        """A file of its metadata; None where there is none."""
        try:
            with open(os.path.join(self._path, name), encoding="utf-8") as file:
                return file.read()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
            return None

    @property
    def name(self) -> str:
        """What it calls itself."""
        for file in ("METADATA", "PKG-INFO"):
            head, _, _ = (self.read_text(file) or "").partition("\n\n")
            for line in head.splitlines():
                key, _, value = line.partition(":")
                if key.lower() == "name":
                    return value.strip()
        raise ValueError("it has no name")


def _packages() -> Iterable[Any]:
    """All that is installed, as `importlib.metadata` finds it.

    Directories, that is nearly always all, are read here: to load `importlib.metadata`, with the
    parsers of mail and archives that it needs, takes longer than to read them.
    """
    finders = [one for one in sys.meta_path if hasattr(one, "find_distributions")]
    if finders != [PathFinder] or not all(map(_is_plain, sys.path)):
        from importlib.metadata import distributions

        return distributions()
    return (
        _Package(os.path.join(place, name))
        for place in sys.path
        for name in _names_in(place)
        if name.lower().endswith((".dist-info", ".egg-info"))
    )


def _is_plain(place: Any) -> bool:
    """A directory, or nothing: no archive, and no egg."""
    if not isinstance(place, str) or place.lower().endswith(".egg"):
        return False
    return os.path.isdir(place or os.curdir) or not os.path.exists(place)


def _names_in(place: str) -> list[str]:
    try:
        return os.listdir(place or os.curdir)
    except OSError:
        return []


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Group, name and value of each entry point. Raises `ValueError` for a line that is none."""
    group = None
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
        elif group is not None:
            name, value = line.split("=", 1)
            yield group, name.strip(), value.strip()


@functools.cache
def _installed() -> dict[str, list[Plugin]]:
    """What is installed, read once: entry points of ours, by group."""
    found: dict[str, list[Plugin]] = {}
    seen: set[str] = set()
    names = os.environ.get(_aliases.VARIABLE, "").split(",")
    theirs = TORCHX_GROUPS if "torchx" in names else {}
    for package in _packages():
        try:
            text = package.read_text("entry_points.txt")
            if text is None or not any(start in text for start in (*_STARTS, *theirs)):
                continue
            if (its_name := package.name) in seen:
                continue  # the first on the path is the one that is imported
            seen.add(its_name)
            for written, name, value in list(_entries(text)):
                group = theirs.get(written, written)
                if group.startswith(_STARTS):
                    found.setdefault(group, []).append(Plugin(group, name, value, its_name))
        except Exception as error:  # noqa: BLE001 a package's own record, others must not pay for it
            where = getattr(package, "_path", package)
            logging.getLogger("phalanx").warning("phalanx: %s is broken: %r", where, error)
    return found


@functools.cache
def of(group: str) -> Sequence[Plugin]:
    """The plugins of a group, in the order of their names; of two alike the first counts."""
    found = set(_installed().get(group, ()))
    return tuple(sorted(found, key=lambda plugin: (plugin.name, plugin.package, plugin.value)))


def clashes(group: str) -> list[str]:
    """One sentence for each name that more than one plugin of a group has."""
    by_name: dict[str, list[Plugin]] = {}
    for plugin in of(group):
        by_name.setdefault(plugin.name, []).append(plugin)
    return [
        f"{len(plugins)} plugins are named {name!r}: "
        + ", ".join(f"{p.value} of {p.package}" for p in plugins)
        + f"; using that of {plugins[0].package}"
        for name, plugins in by_name.items()
        if len(plugins) > 1
    ]
