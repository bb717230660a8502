"""Modules whose names are loaded when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loader(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: each of its names is found in the module that `places` has."""

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(places[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return load
