"""Names of TorchX's schedulers that are not here: asking for one says what there is instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["absent"]


def absent(module: str, instead: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module.

    An `AttributeError` would be lost in `from MODULE import NAME`, as these are asked for.

    Args:
        module: The module.
        instead: What there is instead, by name.
    """

    def refuse(name: str) -> Any:
        if name in instead:
            raise ImportError(f"{module} has no {name}: {instead[name]}", name=module)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return refuse
