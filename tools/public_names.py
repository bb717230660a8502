"""What the reference shows: an extension of griffe, which reads the source for it."""

from __future__ import annotations

import importlib
from typing import Any

import griffe


class Public(griffe.Extension):
    """Follows names that a package loads only when they are first used, and leaves noise out."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """All modules are read."""
        self._follow(pkg)

    def _follow(self, module: griffe.Module) -> None:
        for name in map(str, module.exports or ()):
            if name not in module.members:
                value = getattr(importlib.import_module(module.path), name)
                if (home := getattr(value, "__module__", None)) is not None:  # a constant has none
                    module.set_member(name, griffe.Alias(name, f"{home}.{name}"))
        for inner in module.modules.values():
            if not inner.is_alias:
                self._follow(inner)

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """A module's docstring is for who reads the source; pages say what it is for users."""
        mod.docstring = None

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """A special method is worth showing if there is something to say of it."""
        if func.name.startswith("__") and func.name != "__init__" and func.docstring is None:
            func.public = False
