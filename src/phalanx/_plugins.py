"""What installed packages add: the only reader of entry points.

Entry points are read once a process. A plugin is loaded when it is asked for, not before; one that
cannot be is named, and breaks nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phalanx import _aliases
from phalanx.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


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


@functools.cache
def _installed() -> dict[str, list[tuple[EntryPoint, str]]]:
    """What is installed, read once: entry points of ours by group, each with its package."""
    from importlib.metadata import distributions

    found: dict[str, list[tuple[EntryPoint, str]]] = {}
    seen: set[str] = set()
    names = os.environ.get(_aliases.VARIABLE, "").split(",")
    theirs = TORCHX_GROUPS if "torchx" in names else {}
    for distribution in distributions():
        try:
            text = distribution.read_text("entry_points.txt")
            if text is None or not any(start in text for start in (*_STARTS, *theirs)):
                continue
            if (name := distribution.name) in seen:
                continue  # the first on the path is the one that is imported
            seen.add(name)
            for entry in distribution.entry_points:
                group = theirs.get(entry.group, entry.group)
                if group.startswith(_STARTS):
                    found.setdefault(group, []).append((entry, name))
        except Exception as error:  # noqa: BLE001 a package's own record, others must not pay for it
            where = getattr(distribution, "_path", distribution)
            logging.getLogger("phalanx").warning("phalanx: %s is broken: %r", where, error)
    return found


@functools.cache
def of(group: str) -> Sequence[Plugin]:
    """The plugins of a group, in the order of their names; of two alike the first counts."""
    found = {Plugin(e.group, e.name, e.value, name) for e, name in _installed().get(group, ())}
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
