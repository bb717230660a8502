"""TorchX's way to load what packages have registered."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

__all__ = ["load", "load_group"]


def load(group: str, name: str, default: Any = None) -> Any:
    """What is registered under a name.

    Args:
        group: The group.
        name: The name in it.
        default: What to give if there is none.

    Raises:
        KeyError: There is none, and no default.
    """
    entries = metadata.entry_points().select(group=group)
    if name not in entries.names and default is not None:
        return default
    return entries[name].load()


def load_group(group: str, default: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Everything that is registered under a group, by name; each is loaded when it is called.

    Args:
        group: The group.
        default: What to give if nothing is.
    """
    entries = metadata.entry_points().select(group=group)
    return {entry.name: _deferred(entry) for entry in entries} or default


def _deferred(entry: metadata.EntryPoint) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        """Call the function that is registered, or give the module.

        Args:
            *args: The function's.
            **kwargs: The function's.
        """
        found = entry.load()
        return found(*args, **kwargs) if entry.attr else found

    return call
