"""The option `host_checks`, read: our own checks with their values, plugins' and the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx import _plugins as plugins
from phalanx._core import amounts
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._remote.probe import CHECKS
from phalanx.errors import ConfigError

GROUP = "phalanx.host_checks"
"""Where packages register checks of their own: functions, as the user's."""


@dataclass(frozen=True)
class CheckList:
    """What a host is checked for."""

    values: dict[str, float] = field(default_factory=dict)
    """Our own checks, and what they go by."""
    functions: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """The user's, and plugins', by their names."""

    def __bool__(self) -> bool:
        """There is something to check."""
        return bool(self.values or self.functions)


def read_checks(given: object) -> CheckList:
    """The checks that were asked for. Raises `ConfigError`."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError(f"host_checks={given!r}: must be a list, such as ['gpus', 'disk=20GiB'].")
    found = CheckList()
    for one in given:
        if isinstance(one, str):
            _add_named(found, one)
        elif callable(one):
            found.functions[getattr(one, "__name__", None) or type(one).__name__] = one
        else:
            raise ConfigError(f"host_checks: {one!r} is neither a check's name nor a function.")
    return found


def _add_named(found: CheckList, text: str) -> None:
    name, equals, value = text.partition("=")
    if name in CHECKS:
        try:
            found.values[name] = _value(name, value) if equals else CHECKS[name]
        except ValueError as error:
            raise ConfigError(f"host_checks: {text!r}: {error}.") from None
        return
    others = {plugin.name: plugin for plugin in plugins.of(GROUP)}
    if name not in others:
        known = [*CHECKS, *others]
        hint = did_you_mean(closest(name, known), f"Choose one of {', '.join(known)}.")
        raise ConfigError(f"unknown host check {name!r}.{hint}")
    if equals:
        raise ConfigError(f"host_checks: {text!r}: only {', '.join(CHECKS)} take a value.")
    found.functions[name] = others[name].load()


def _value(name: str, text: str) -> float:
    if name == "disk":
        return amounts.size(text)
    if name == "clock":
        return amounts.seconds(text)
    if not text.isdigit():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)
