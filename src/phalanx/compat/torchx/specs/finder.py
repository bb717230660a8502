"""TorchX's way to find components."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phalanx._core.lazy import loader
from phalanx._runner import catalog
from phalanx._runner.component import Component
from phalanx._runner.standalone import source_of
from phalanx.compat.torchx.specs.api import AppDef, thawing
from phalanx.errors import ComponentError as ComponentNotFoundException
from phalanx.errors import ComponentError as ComponentValidationException

__all__ = [
    "ComponentNotFoundException",
    "ComponentValidationException",
    "FoundComponent",
    "get_builtin_source",
    "get_component",
    "get_components",
]


@dataclass
class FoundComponent:
    """A component, as TorchX describes it."""

    name: str
    """Its name."""
    description: str
    """The first line of its docstring."""
    fn_name: str
    """The function's name."""
    fn: Callable[..., AppDef]
    """The function."""
    validation_errors: list[str] = field(default_factory=list)
    """Why it cannot be run."""


def get_components() -> dict[str, FoundComponent]:
    """All components that can be run, by name."""
    return {component.name: _described(component) for component in catalog.catalog().components}


def get_component(name: str) -> FoundComponent:
    """A component by its name, or `FILE.py:FUNCTION`.

    Args:
        name: The name.

    Raises:
        ComponentNotFoundException: There is no such component, or it is broken.
    """
    return _described(catalog.find(name))


def get_builtin_source(name: str) -> str:
    """A component as a file of its own, which can be run.

    Args:
        name: Its name.
    """
    return source_of(catalog.find(name))


def _described(component: Component) -> FoundComponent:
    function: Any = component.function
    return FoundComponent(component.name, component.summary, function.__name__, thawing(function))


__getattr__ = loader(
    __name__,
    {},
    dict.fromkeys(
        ("ComponentsFinder", "ModuleComponentsFinder"),
        "use get_components(), or get_component('FILE.py:FUNCTION')",
    ),
)
