"""TorchX's helpers to load modules by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["import_attr", "load_module"]


def load_module(path: str) -> Any:
    """A module, or what `MODULE:NAME` names in it; None where that cannot be loaded.

    Args:
        path: The name.
    """
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    except Exception:  # noqa: BLE001 whatever the module's own code does
        return None


def import_attr(name: str, attr: str, default: Callable[..., Any]) -> Any:
    """What a module has, if there is such a module.

    Args:
        name: The module.
        attr: The name in it.
        default: What to give if there is no such module.

    Raises:
        AttributeError: The module has no such name.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return default
    return getattr(module, attr)
