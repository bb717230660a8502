"""Names of other launchers that mean modules of ours: an import hook, off until it is asked for.

Under it `import torchrunx.utils` gives `phalanx.compat.torchrunx.utils`, the same module object, so
that what one half of a program defines is what the other half sees. `VARIABLE` carries the names to
the workers, which import a program's modules too.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from phalanx._core.suggestions import closest, did_you_mean
from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object  # the module takes 4 ms, in every command

VARIABLE = "PHALANX_COMPAT"
"""The environment variable that has the names, separated by commas."""

ROOM = "phalanx.compat"
"""The package that has a module for every name."""


def known() -> tuple[str, ...]:
    """The names that there are modules for."""
    import pkgutil

    modules = pkgutil.iter_modules(importlib.import_module(ROOM).__path__)
    return tuple(sorted(name for _, name, _ in modules if not name.startswith("_")))


def install(*names: str) -> None:
    """Have imports of these names give our modules, here and in the workers.

    Args:
        *names: Top-level names that a program imports, such as `torchrunx`.

    Raises:
        ConfigError: There is no module for a name, or its own package is loaded already.
    """
    for name in names:
        if name not in known():
            choices = f"Choose from: {', '.join(known())}."
            hint = did_you_mean(closest(name, known()), choices)
            raise ConfigError(f"phalanx.compat has no module {name!r}.{hint}")
        loaded = sys.modules.get(name)
        if loaded is not None and loaded.__name__ != f"{ROOM}.{name}":
            raise ConfigError(
                f"{name} is imported already, from {getattr(loaded, '__file__', None)}. "
                f"Call phalanx.compat.install({name!r}) before that."
            )
    finder = next((f for f in sys.meta_path if isinstance(f, AliasFinder)), None)
    if finder is None:
        finder = AliasFinder()
        sys.meta_path.insert(0, finder)
    finder.names.update(dict.fromkeys(names))
    os.environ[VARIABLE] = ",".join(finder.names)


def install_from(environ: Mapping[str, str]) -> None:
    """As the process that started this one had it."""
    if names := environ.get(VARIABLE):
        install(*names.split(","))


def instead_of(error: BaseException) -> str:
    """What to write in place of an import that found no module of another launcher's."""
    name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    top = name.partition(".")[0]
    if top in os.environ.get(VARIABLE, "").split(","):
        return ""  # it has been told what there is
    if top in known():
        return (
            f"Phalanx has the names of {top}: import {ROOM}.{top} as {top}, or run the program "
            f"with: python -m {ROOM} {top} -- PROGRAM"
        )
    return ""


def module_hint(name: str) -> str:
    """Where the module is that another launcher has under this name within its package.

    Args:
        name: The module's name without `phalanx.`, such as `specs.finder`.
    """
    for other in known():
        with contextlib.suppress(ImportError):
            if importlib.util.find_spec(f"{ROOM}.{other}.{name}") is not None:
                return f"{other}'s module of that name is {ROOM}.{other}.{name}"
            absent = getattr(importlib.import_module(f"{ROOM}.{other}"), "ABSENT", {})
            if instead := absent.get(name):
                return f"instead of {other}'s module of that name, {instead}"
    return ""


class AliasFinder(MetaPathFinder):
    """Finds modules of ours under others' names."""

    def __init__(self) -> None:
        """Nothing is renamed yet."""
        self.names: dict[str, None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module that is meant; None for names that are not ours."""
        top = fullname.partition(".")[0]
        if top not in self.names:
            return None
        ours = f"{ROOM}.{fullname}"
        try:
            module = importlib.import_module(ours)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{ours}.".startswith(f"{error.name}."):
                raise
            raise ModuleNotFoundError(
                f"phalanx.compat has no module {fullname!r}.{_hint(fullname)}", name=fullname
            ) from None
        spec = importlib.util.spec_from_loader(fullname, _Loaded(module), origin=module.__file__)
        if spec is not None and hasattr(module, "__path__"):
            spec.submodule_search_locations = list(module.__path__)
        return spec


class _Loaded(Loader):
    """Gives a module that is there already, and leaves it as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`, which runs a module anew."""
        loader = self._spec.loader if self._spec is not None else None
        get = getattr(loader, "get_code", None)
        code: CodeType | None = None if get is None else get(self._module.__name__)
        return code


def _hint(fullname: str) -> str:
    import pkgutil

    top, _, rest = fullname.partition(".")
    absent = getattr(importlib.import_module(f"{ROOM}.{top}"), "ABSENT", {})
    parts = rest.split(".")
    for count in range(len(parts), 0, -1):
        if instead := absent.get(".".join(parts[:count])):
            return f" Instead: {instead}."
    parent, _, last = fullname.rpartition(".")
    try:
        search_path = importlib.import_module(f"{ROOM}.{parent}").__path__
    except (ImportError, AttributeError):
        return ""
    names = [name for _, name, _ in pkgutil.iter_modules(search_path) if not name.startswith("_")]
    meant = closest(last, names)
    return did_you_mean(None if meant is None else f"{parent}.{meant}")
