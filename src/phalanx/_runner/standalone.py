"""A component as a file of its own: its function, and all of its module that this needs."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from phalanx._runner.component import Component


def source_of(component: Component) -> str:
    """A file that has the component and can be run. Raises `OSError` where there is no source."""
    function = inspect.unwrap(component.function)
    module = inspect.getmodule(function)
    source = inspect.getsource(function if module is None else module)
    return standalone(source, function.__name__)


def standalone(source: str, function: str) -> str:
    """A file with one function of a module, and all of the module that it needs."""
    tree = ast.parse(source)
    lines = source.splitlines()
    defined = {name: node for node in tree.body for name in _defines(node)}
    wanted: list[str] = [function]
    kept: list[ast.stmt] = [
        n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"
    ]
    while wanted:
        node = defined.get(wanted.pop())
        if node is not None and node not in kept:
            kept.append(node)
            wanted += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    parts: list[str] = []
    for node in sorted(kept, key=lambda node: node.lineno):
        imported = isinstance(node, ast.Import | ast.ImportFrom)
        text = "\n".join(lines[_first_line(node) - 1 : node.end_lineno])
        parts.append(text if imported else f"\n{text}")
    return "\n".join(parts).strip() + "\n"


def _defines(node: Any) -> list[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _first_line(node: Any) -> int:
    found = [node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]
    return min(map(int, found))
