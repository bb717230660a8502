"""Modules whose names are loaded when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_NOTHING: Mapping[str, str] = {}


def loader(
    module: str, sources: Mapping[str, str], absent: Mapping[str, str] = _NOTHING
) -> Callable[[str], Any]:
    """A module's `__getattr__`: each of its names is found in the module that `sources` has.

    `MODULE:NAME` is a name that is another there. `absent` has, for names that users may look for
    here and that there are not, what to use instead.
    """

    def load(name: str) -> Any:
        if name not in sources:
            raise AttributeError(_no_attribute(module, name, absent))
        source, _, other = sources[name].partition(":")
        value = getattr(import_module(source), other or name)
        setattr(sys.modules[module], name, value)
        return value

    return load


def facade(module: str, target: str, absent: Mapping[str, str] = _NOTHING) -> Callable[[str], Any]:
    """The `__getattr__` of a module that gives the names of another, for people who look there.

    `target` is the module that has the names; `absent` as for `loader`.
    """

    def load(name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(_no_attribute(module, name, absent))
        if name in absent:
            raise AttributeError(_no_attribute(module, name, absent))
        found = import_module(target)
        if name != "__all__" and name not in found.__all__:
            getattr(found, name)  # it may say what to use instead
            raise AttributeError(_no_attribute(module, name, absent))
        return getattr(found, name)

    return load


def _no_attribute(module: str, name: str, absent: Mapping[str, str]) -> str:
    text = f"module {module!r} has no attribute {name!r}"
    return f"{text}: {absent[name]}" if name in absent else text
