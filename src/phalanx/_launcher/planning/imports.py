"""What a function will import, found without running anything.

Two answers: which installed packages are worth loading before the workers are forked, and whether
torch is used at all. What is preloaded is what nothing of the user's can have prepared for: the
leading imports of the user's files, and the imports in the bodies of the functions that are
reached, up to where one changes the environment. The user's own modules, editable installs among
them, are read but never preloaded.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx._system.installed_files import is_installed
from phalanx._wire import Import

_FILE_LIMIT = 500
"""How many of the user's files are read at most."""

_KNOWN_TO_READ_RANKS = frozenset({"lightning", "lightning_fabric", "pytorch_lightning"})
"""Packages that freeze their rank when imported: trying them would cost a second start."""


@dataclass(frozen=True)
class Needs:
    """What to load before the fork, and whether torch is used."""

    preload: tuple[Import, ...]
    torch: bool
    """It is named, and installed here."""
    late: tuple[str, ...] | None = ()
    """Packages that are imported after the code has changed the environment, perhaps for them;
    None where that is not known."""
    remote_preload: tuple[Import, ...] = ()
    """To load as well on other hosts: packages that are not found here, and may be there."""
    names_torch: bool = False
    files: tuple[str, ...] = ()
    """The user's own files that were read."""


@dataclass
class _Search:
    preload: dict[Import, None] = field(default_factory=dict)
    late: dict[str, None] = field(default_factory=dict)
    remote_preload: dict[Import, None] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    files: dict[str, None] = field(default_factory=dict)
    changing: set[str] = field(default_factory=set)
    functions: set[int] = field(default_factory=set)
    prepared: bool = False
    """What is looked at now runs after the environment was changed."""

    def needs(self) -> Needs:
        named = "torch" in self.names
        return Needs(
            preload=tuple(self.preload),
            torch=named and importlib.util.find_spec("torch") is not None,
            late=tuple(self.late),
            remote_preload=tuple(self.remote_preload),
            names_torch=named,
            files=tuple(self.files),
        )

    # ── files ─────────────────────────────────────────────────────────────────

    def file(self, path: Path, package: str) -> bool:
        """Read one of the user's files and those of the user's that it imports.

        Whether loading it changes the environment.
        """
        name = os.path.abspath(path)
        if name in self.files or len(self.files) > _FILE_LIMIT:
            return name in self.changing
        self.files[name] = None
        statements = _parse(path)
        changes = self.block(statements, package)
        if changes:
            self.changing.add(name)
        return changes

    def block(self, statements: list[ast.stmt], package: str) -> bool:
        """Take the imports of a file or a body; only its leading ones are worth preloading.

        Whether running it changes the environment.
        """
        leading, late = True, False
        for statement in statements:
            found = list(_imports(statement, package))
            leading = leading and (_is_import(statement) or _is_harmless(statement))
            late = late or _changes_environment(statement)
            for item in found:
                if self.statement(item, leading=leading and not late, late=late):
                    late = True
        return late

    def statement(self, item: Import, *, leading: bool, late: bool = False) -> bool:
        """Take one import statement: an installed package, or a file to read.

        Whether it changes the environment.
        """
        leading, late = leading and not self.prepared, late or self.prepared
        top = item.module.partition(".")[0]
        if not top or top in sys.stdlib_module_names or top == "phalanx":
            return False
        self.names.add(top)
        if _is_installed(top):
            if leading and top not in _KNOWN_TO_READ_RANKS:
                self.preload[item] = None
            if late:
                self.late[top] = None
            return False
        if leading and not _is_found(top):
            self.remote_preload[item] = None
        changes = False
        for name in (item.module, *(f"{item.module}.{n}" for n in item.names)):
            path = find_source(name)
            if path is not None:
                package = name if path.name == "__init__.py" else name.rpartition(".")[0]
                changes = self.file(path, package) or changes
        return changes

    # ── functions ─────────────────────────────────────────────────────────────

    def value(self, value: Any) -> None:
        """Take a function, or whatever else can be called or carried along."""
        match value:
            case functools.partial():
                for part in (value.func, *value.args, *value.keywords.values()):
                    self.value(part)
            case types.MethodType():
                self.value(value.__func__)
                self.value(type(value.__self__))
            case types.FunctionType():
                self.function(value)
            case types.ModuleType():
                self.module(value.__name__)
            case type():
                self.kind(value)
            case _ if type(value).__module__ != "builtins":
                self.kind(type(value))

    def function(self, function: types.FunctionType) -> None:
        """Take a function's module, its code and its closure, once."""
        if id(function) in self.functions:
            return
        self.functions.add(id(function))
        self.module(function.__module__)
        self.code(function.__code__, function.__globals__)
        for cell in function.__closure__ or ():
            self.cell(cell)
        self.value(getattr(function, "__wrapped__", None))

    def kind(self, kind: type) -> None:
        """Take a class: where it and its bases come from, and the methods that the user wrote."""
        for base in kind.__mro__:
            if base.__module__ != "builtins":
                self.module(base.__module__)
        if not _is_installed_class(kind):
            for attribute in vars(kind).values():
                if isinstance(attribute, types.FunctionType):
                    self.function(attribute)

    def cell(self, cell: types.CellType) -> None:
        """Take what a closure holds, if it holds something already."""
        try:
            self.value(cell.cell_contents)
        except ValueError:
            return

    def module(self, name: str | None) -> None:
        """Take a module that is loaded here: installed, or the user's to be read."""
        if name is None:
            return
        module = sys.modules.get(name)
        if name == "__main__":
            path = getattr(module, "__file__", None)
            # An installed program (pytest, a notebook's kernel) is not what the user wrote.
            if path is not None and not is_installed(os.path.abspath(path)):
                self.file(Path(path), getattr(module, "__package__", None) or "")
        else:
            self.statement(Import(name), leading=True)

    def code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """Take the imports in a function's body, and what it uses of its module."""
        for item, leading in _imports_in(code, names.get("__package__") or ""):
            self.statement(item, leading=leading, late=not leading)
        before = self.prepared
        self.prepared = before or any(map(_sets_environment, _codes(code)))
        for nested in _codes(code):
            for name in nested.co_names:
                if name in names and not name.startswith("__"):
                    self.value(names[name])
        self.prepared = before


def of_function(function: Callable[..., Any]) -> Needs:
    """What a function needs, from its code and from the files of the user's that it comes from."""
    search = _Search()
    try:
        search.value(function)
        return search.needs()
    except Exception:  # noqa: BLE001 proxies and lazy modules run the user's code when looked at
        return Needs((), torch="torch" in search.names, late=None)


def of_file(path: Path, function: str, package: str = "") -> Needs:
    """What a function of a file needs, without importing the file."""
    search = _Search()
    search.file(path, package)
    for statement in _parse(path):
        if isinstance(statement, ast.FunctionDef) and statement.name == function.partition(".")[0]:
            search.block(statement.body, package)
    return search.needs()


# ── statements ────────────────────────────────────────────────────────────────


def _parse(path: Path) -> list[ast.stmt]:
    try:
        return ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []  # the worker will say what is wrong with it


def _imports(statement: ast.stmt, package: str) -> Iterator[Import]:
    """The imports that run with this statement; not those in functions that it defines."""
    if isinstance(statement, ast.Try | ast.If | ast.With) and not _is_harmless(statement):
        for inner in statement.body:
            yield from _imports(inner, package)
    else:
        yield from _imports_of(statement, package)


def _imports_of(node: ast.AST, package: str) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name)
    elif isinstance(node, ast.ImportFrom):
        names = tuple(alias.name for alias in node.names if alias.name != "*")
        module = _absolute(node.module or "", node.level, package)
        if module != "__future__":
            yield Import(module, names)


def _absolute(module: str, level: int, package: str) -> str:
    """The full name of what a possibly relative import names."""
    if not level:
        return module
    parts = package.split(".")
    parts = parts[: len(parts) - level + 1]
    return ".".join([*parts, module] if module else parts)


def _is_import(statement: ast.stmt) -> bool:
    """An import statement, or a `try` of some that may not be there."""
    if isinstance(statement, ast.Try):
        return all(map(_is_import, statement.body))
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _is_harmless(statement: ast.stmt) -> bool:
    """A docstring, or a block that only type checkers enter: it changes no import."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.If):
        test = statement.test
        return getattr(test, "id", getattr(test, "attr", None)) == "TYPE_CHECKING"
    return False


def _changes_environment(statement: ast.stmt) -> bool:
    """It sets or removes a variable, as far as can be seen, when it runs."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    for node in ast.walk(statement):
        match node:
            case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()) if _is_environ(value):
                return True
            case ast.Call(func=ast.Attribute(value=value, attr=attr)):
                if attr in ("putenv", "unsetenv") or (
                    _is_environ(value) and attr in ("setdefault", "update", "pop", "clear")
                ):
                    return True
    return False


def _is_environ(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", None)) == "environ"


# ── code ──────────────────────────────────────────────────────────────────────


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _sets_environment(code: types.CodeType) -> bool:
    """The code names the environment, and stores into something or changes it by a method."""
    if "environ" not in code.co_names:
        return "putenv" in code.co_names
    if not {"setdefault", "update"}.isdisjoint(code.co_names):
        return True
    return any(step.opname == "STORE_SUBSCR" for step in dis.get_instructions(code))


def _imports_in(code: types.CodeType, package: str) -> Iterator[tuple[Import, bool]]:
    """The imports in a function's body, and whether each comes before a change of `os.environ`."""
    environment, leading = False, True
    constants: list[Any] = [0, None]
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            constants = [constants[-1], step.argval]
        elif step.opname == "IMPORT_NAME":
            level, names = constants
            module = _absolute(step.argval, level if isinstance(level, int) else 0, package)
            yield Import(module, names if isinstance(names, tuple) else ()), leading
        elif step.argval in ("environ", "putenv"):
            environment = True
        elif environment and (
            step.opname == "STORE_SUBSCR" or step.argval in ("setdefault", "update")
        ):
            leading = False
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from ((item, leading and first) for item, first in _imports_in(constant, package))


# ── origins ───────────────────────────────────────────────────────────────────


@functools.cache
def _is_installed(top: str) -> bool:
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return False
    if spec is None:
        return False
    origins = [spec.origin, *(spec.submodule_search_locations or ())]
    return any(p is not None and is_installed(p + os.sep) for p in origins)


@functools.cache
def _is_found(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):
        return top in sys.modules


def _is_installed_class(kind: type) -> bool:
    top = kind.__module__.partition(".")[0]
    return top != "__main__" and (top == "builtins" or _is_installed(top))


def find_source(name: str) -> Path | None:
    """The source of one of the user's modules, without importing its parents."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        return Path(file) if file and file.endswith(".py") else None
    search: Any = None
    spec = None
    parts = name.split(".")
    for i in range(len(parts)):
        try:
            spec = _find_spec(".".join(parts[: i + 1]), search)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        search = spec.submodule_search_locations
    origin = spec.origin if spec is not None else None
    return Path(origin) if origin and origin.endswith(".py") else None


def _find_spec(name: str, search: Any) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.machinery.PathFinder.find_spec(name, search)
    except KeyError:  # a directory without __init__.py in another: it asks for its parent, by name
        return importlib.machinery.PathFinder.find_spec(name.rpartition(".")[2], search)
