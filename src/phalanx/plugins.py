"""What installed packages add: the only reader of entry points.

Entry points are read once a process. A plugin is loaded when it is asked for, not before; one that
cannot be is named, and breaks nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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

        with quiet(self):
            return EntryPoint(self.name, self.value, self.group).load()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Load it, and call what it names. Raises `PluginError`, whatever went wrong."""
        function = self.load()
        with quiet(self):
            return function(*args, **kwargs)


@contextlib.contextmanager
def quiet(plugin: Plugin) -> Iterator[None]:
    """Run what is a plugin's own: what it prints goes to stderr, what it raises names it."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (PluginError, ConfigError):
        raise
    except (Exception, SystemExit) as error:
        text = str(error).partition("\n")[0]
        kind = type(error).__name__
        raise PluginError(plugin, f"{kind}: {text}" if text else kind) from error


@functools.cache
def _installed() -> Any:
    """What is installed, read once."""
    from importlib.metadata import entry_points

    try:
        return entry_points()
    except Exception as error:  # noqa: BLE001 some package's own record, which others must not pay for
        logging.getLogger("phalanx").warning("phalanx: plugins cannot be read: %r", error)
        return None


@functools.cache
def of(group: str) -> Sequence[Plugin]:
    """The plugins of a group, in the order of their names; of two alike the first counts."""
    found = {
        Plugin(group, entry.name, entry.value, entry.dist.name if entry.dist else "")
        for entry in (() if _installed() is None else _installed().select(group=group))
    }
    return tuple(sorted(found, key=lambda plugin: (plugin.name, plugin.package, plugin.value)))


def clashes(group: str) -> list[str]:
    """One sentence for each name that more than one plugin of a group has."""
    by_name: dict[str, list[Plugin]] = {}
    for plugin in of(group):
        by_name.setdefault(plugin.name, []).append(plugin)
    return [
        f"{len(plugins)} plugins have the name {name!r}: "
        + ", ".join(f"{p.value} of {p.package}" for p in plugins)
        + f"; that of {plugins[0].package} is used"
        for name, plugins in by_name.items()
        if len(plugins) > 1
    ]
