"""Which of the user's files a script needs: itself, and the modules of the user's that it imports.

Nothing is imported. Knows nothing of what is sent, or where.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence

from phalanx._system.installed_files import is_installed

_FILE_LIMIT = 2000
"""How many files are read at most."""


def of_script(script: str, directory: str) -> tuple[str, ...]:
    """What a Python file of a directory needs; its own directory is where Python looks first."""
    path = os.path.join(directory, script)
    if os.path.isdir(path):
        path = os.path.join(path, "__main__.py")
    return _closure(path, "", [os.path.dirname(os.path.abspath(path))])


def of_module(module: str, directory: str) -> tuple[str, ...]:
    """What a module needs that is run with `python -m` there; nothing where it is not there."""
    for name in (f"{module}.__main__", module):
        if found := _sources(name, [directory]):
            package = module if name != module else module.rpartition(".")[0]
            return _closure(found[-1], package, [directory], *found[:-1])
    return ()


def _closure(path: str, package: str, search: Sequence[str], *more: str) -> tuple[str, ...]:
    seen: dict[str, None] = {}
    left = [(os.path.abspath(path), package), *((file, _package(file, search)) for file in more)]
    while left and len(seen) < _FILE_LIMIT:
        file, package = left.pop()
        if file in seen or not os.path.isfile(file):
            continue
        seen[file] = None
        for name in _imported(file, package):
            for source in _sources(name, search):
                left.append((source, _package(source, search)))  # noqa: PERF401 read while it grows
    return tuple(seen)


def _imported(file: str, package: str) -> Iterator[str]:
    """The names of all modules that a file may import, wherever in it."""
    try:
        with open(file, "rb") as opened:
            tree = ast.parse(opened.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # Python says what is wrong with it, where it runs
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            above = ".".join(parts) if node.level else ""
            module = ".".join(filter(None, (above, node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if alias.name != "*")


def _sources(name: str, search: Sequence[str]) -> list[str]:
    """A module's file below those directories, behind those of the packages that it is in."""
    files: list[str] = []
    if not name or name.partition(".")[0] in sys.builtin_module_names:
        return files
    places: Sequence[str] | None = search
    for part in name.split("."):
        if not places:
            return []
        spec = importlib.machinery.PathFinder.find_spec(part, list(places))
        if spec is None:
            return []
        if spec.origin is not None and spec.has_location:
            if is_installed(spec.origin):
                return []
            files.append(os.path.abspath(spec.origin))
        places = list(spec.submodule_search_locations or ())
    return files


def _package(file: str, search: Sequence[str]) -> str:
    """The package that a file is in, by its place below those directories."""
    for place in search:
        if file.startswith(os.path.join(place, "")):
            return os.path.dirname(os.path.relpath(file, place)).replace(os.sep, ".")
    return ""
