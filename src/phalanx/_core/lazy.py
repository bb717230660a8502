"""Modules whose names are loaded when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import FrameType
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
            raise _missing(module, name, absent)
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
            raise _missing(module, name, absent)
        if name in absent:
            raise _missing(module, name, absent)
        found = import_module(target)
        if name != "__all__" and name not in found.__all__:
            getattr(found, name)  # it may say what to use instead
            raise _missing(module, name, absent)
        return getattr(found, name)

    return load


def attribute_hints(absent: Mapping[str, str]) -> Callable[[Any, str], Any]:
    """A class's `__getattr__`: of a name that users may look for it says what to use instead."""

    def missing(instance: Any, name: str) -> Any:
        hint = f": {absent[name]}" if name in absent else ""
        raise AttributeError(f"{type(instance).__name__!r} has no attribute {name!r}{hint}")

    return missing


def _missing(module: str, name: str, absent: Mapping[str, str]) -> Exception:
    """What a module raises for a name that it does not have.

    `from MODULE import NAME` would replace what an `AttributeError` says: it gets an `ImportError`.
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name not in absent:
        return AttributeError(text)
    if _is_from_import():
        return ImportError(f"cannot import {name!r} from {module!r}: {absent[name]}", name=module)
    return AttributeError(f"{text}: {absent[name]}")


def _is_from_import() -> bool:
    """Whether a module's `__getattr__` runs for `from MODULE import NAME`."""
    from opcode import opname

    asking: FrameType | None = sys._getframe()
    while asking and (
        asking.f_code.co_filename == __file__ or asking.f_code.co_name == "__getattr__"
    ):
        asking = asking.f_back
    return asking is not None and opname[asking.f_code.co_code[asking.f_lasti]] == "IMPORT_FROM"
