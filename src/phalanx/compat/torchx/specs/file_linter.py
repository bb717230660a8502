"""TorchX's check of a file with components."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phalanx._runner import catalog, docstrings
from phalanx._runner.component import Component
from phalanx.errors import ComponentError

__all__ = ["LinterMessage", "get_fn_docstring", "validate"]


@dataclass
class LinterMessage:
    """What is wrong with a component."""

    name: str
    """The component's name."""
    description: str
    """What is wrong."""
    line: int = 0
    """Where the function begins, if that is known."""
    char: int = 0
    """Unused."""
    severity: str = "error"
    """Every one is an error."""


def get_fn_docstring(fn: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """What a docstring says of a function, and of each argument.

    Args:
        fn: The function.
    """
    return docstrings.parse(fn.__doc__)


def validate(path: str, component_function: str) -> list[LinterMessage]:
    """What is wrong with a component of a file; nothing, if it can be run.

    Args:
        path: The file.
        component_function: The function in it.
    """
    try:
        found: Component = catalog.find(f"{path}:{component_function}")
    except ComponentError as error:
        return [LinterMessage(component_function, str(error))]
    line = getattr(found.function, "__code__", None)
    at = 0 if line is None else line.co_firstlineno
    return [LinterMessage(component_function, found.problem, at)] if found.problem else []
