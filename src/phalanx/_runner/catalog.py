"""Which components there are, and how one is found by its name.

Ours, unless a package registers its own under `phalanx.components`: then those, and ours only if
`phalanx = phalanx.components` is registered too. Finding one by name imports its module alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from phalanx import _plugins as plugins
from phalanx._core import launch_guard
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._logs import logger
from phalanx._plugins import Plugin
from phalanx._runner.component import Component
from phalanx._system.near_files import no_such_file
from phalanx.errors import ComponentError, PluginError

GROUP = "phalanx.components"
_OURS = Plugin(GROUP, "_", "phalanx.components", "phalanx")


@dataclass
class Catalog:
    """All components, and what is wrong with those that cannot be used."""

    components: list[Component] = field(default_factory=list)
    """Those that can be run, in the order of their names."""
    invalid: list[Component] = field(default_factory=list)
    """Public functions that are no components; each says why."""
    problems: list[str] = field(default_factory=list)
    """Plugins that are broken, and names that are taken twice."""

    def named(self, part: str) -> Catalog:
        """Of the components, those whose names contain this."""
        components, invalid = (
            [one for one in some if part in one.name] for some in (self.components, self.invalid)
        )
        return dataclasses.replace(self, components=components, invalid=invalid)


def entries() -> Sequence[Plugin]:
    """The packages that are searched, in the order of their entries' names."""
    return plugins.of(GROUP) or (_OURS,)


def catalog() -> Catalog:
    """Everything there is; imports all of it."""
    found: dict[str, tuple[Component, Plugin]] = {}
    made = Catalog(problems=plugins.clashes(GROUP))
    for plugin in entries():
        try:
            for component in _search(plugin, made.problems):
                _add(found, component, plugin, made.problems)
        except PluginError as error:
            made.problems.append(str(error))
    everything = [component for _, (component, _) in sorted(found.items())]
    made.components = [c for c in everything if not c.problem]
    made.invalid = [c for c in everything if c.problem]
    return made


def _add(
    found: dict[str, tuple[Component, Plugin]],
    component: Component,
    plugin: Plugin,
    problems: list[str],
) -> None:
    if component.name in found:
        problems.append(_twice(component.name, found[component.name][1], plugin))
        return
    found[component.name] = component, plugin


def find(name: str) -> Component:
    """The component of this name, of this last part of one, or `FILE.py:FUNCTION`.

    Raises `ComponentError`, or `PluginError` for one of a plugin that is broken.
    """
    if ":" in name:
        return _from_file(name)
    if name.endswith(".py") or os.sep in name:
        raise ComponentError(
            f"{name!r} names no function: write {name.rstrip(os.sep)}:FUNCTION. To run a "
            f"script: phalanx run utils.python {name}, or on several workers: phalanx run dist.ddp "
            f"-j 1x4 --script {name}",
            name=name,
        )
    if not re.fullmatch(r"\w+(\.\w+)*", name):
        raise ComponentError(
            f"{name!r} is not a component name. List components with: phalanx builtins", name=name
        )
    component, broken = _find_exactly(name)
    if component is None:
        try:
            component = _by_last_part(name)
        except ComponentError:
            if broken:
                raise broken[0] from None
            raise
    return _usable(component)


def _usable(component: Component) -> Component:
    if component.problem:
        hint = ""
        if ":" in component.name and component.problem.endswith("not AppDef"):
            hint = f" To call a function: phalanx launch {component.name}"
        raise ComponentError(
            f"{component.name} is not a component: {component.problem}.{hint}", name=component.name
        )
    return component


def _prefix(plugin: Plugin) -> str:
    """What the names of an entry's components begin with: `_`, `_0`, … are for nothing."""
    return "" if re.fullmatch(r"_\d*", plugin.name) else f"{plugin.name}."


def _resolve(plugin: Plugin, name: str) -> Component | None:
    """The component of exactly this name, by importing one module at most."""
    path, function = _split(plugin, name)
    if not function or function.startswith("_") or _spec(plugin, path) is None:
        return None
    module = _import(plugin, ".".join(filter(None, (_module_name(plugin), path))))
    found: Any = vars(module).get(function)
    return Component(name, found) if _is_defined_there(found, module.__name__) else None


def _split(plugin: Plugin, name: str) -> tuple[str, str]:
    """The module within an entry, and the function, that a name means; no function for none."""
    if not name.startswith(_prefix(plugin)):
        return "", ""
    path, _, function = name.removeprefix(_prefix(plugin)).rpartition(".")
    return path, function


def _spec(plugin: Plugin, path: str) -> ModuleSpec | None:
    """A module that the search would come to (within packages, but for the entry's own); it is not
    imported.
    """
    at = _module_name(plugin)
    with plugins.guarded(plugin):
        spec = importlib.util.find_spec(at)
        if spec is None:
            raise PluginError(plugin, f"no module named {at!r}")
        for part in filter(None, path.split(".")):
            search_path = spec.submodule_search_locations
            if search_path is None:
                return None
            at = f"{at}.{part}"
            spec = importlib.machinery.PathFinder.find_spec(at, list(search_path))
            if spec is None or spec.origin is None:
                return None
    return spec


def _has_in_source(spec: ModuleSpec | None, function: str) -> bool:
    """The source of a module has a function of this name."""
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return False
    try:
        with open(spec.origin, "rb") as file:
            return re.search(rf"^def {function}\b".encode(), file.read(), re.MULTILINE) is not None
    except OSError:
        return False


def _module_name(plugin: Plugin) -> str:
    module, colon, _ = plugin.value.partition(":")
    if colon:
        reason = f"it must name a module: {plugin.name} = {module}"
        raise PluginError(plugin, reason)
    return module.strip()


def _import(plugin: Plugin, module: str) -> ModuleType:
    with plugins.guarded(plugin):
        return importlib.import_module(module)


def _is_defined_there(value: object, module: str) -> bool:
    return inspect.isfunction(value) and value.__module__ == module


def _search(plugin: Plugin, problems: list[str]) -> Iterator[Component]:
    """All public functions of an entry's modules, packages searched recursively."""
    top = _module_name(plugin)
    for module_name in _modules(plugin, top):
        try:
            module = _import(plugin, module_name)
        except PluginError as error:
            if module_name == top:
                raise
            problems.append(f"{error} ({module_name})")
            continue
        path = module_name.removeprefix(top).lstrip(".")
        for name, value in sorted(vars(module).items()):
            if not name.startswith("_") and _is_defined_there(value, module.__name__):
                full = ".".join(filter(None, (path, name)))
                yield Component(f"{_prefix(plugin)}{full}", value)


def _modules(plugin: Plugin, top: str) -> Iterator[str]:
    yield top
    search_path = getattr(_import(plugin, top), "__path__", None)
    pending = [] if search_path is None else [(top, list(search_path))]
    while pending:
        parent, where = pending.pop()
        for info in sorted(pkgutil.iter_modules(where), key=lambda info: info.name):
            if info.name.startswith("_"):
                continue
            name = f"{parent}.{info.name}"
            yield name
            if info.ispkg:  # not a namespace package: those are not listed
                spec = importlib.machinery.PathFinder.find_spec(name, where)
                pending.append((name, list((spec and spec.submodule_search_locations) or ())))


def _by_last_part(name: str) -> Component:
    """The only component whose last part this is. Imports what has a function of that name."""
    known: list[str] = []
    if re.fullmatch(r"\w+", name):
        known = [full for plugin in entries() for full in _named_in_source(plugin, name)]
        found = [c for full in dict.fromkeys(known) if (c := _find_exactly(full)[0]) is not None]
        usable = [c for c in found if not c.problem] or found
        if len(usable) == 1:
            return usable[0]
        if usable:
            names = ", ".join(c.name for c in usable)
            raise ComponentError(f"{name!r} is ambiguous: it could be {names}.", name=name)
    made = catalog()
    everything = {c.name: c for c in (*made.components, *made.invalid)}
    last = [c for full, c in everything.items() if full.rpartition(".")[2] == name]
    if len(last) == 1:
        return last[0]
    raise ComponentError(_unknown(name, [c.name for c in made.components]), name=name)


def _find_exactly(name: str) -> tuple[Component | None, list[PluginError]]:
    """The component of this name, and the entries in which it could not be looked for.

    Another entry that seems to have one of the same name is told of.
    """
    broken: list[PluginError] = []
    for i, plugin in enumerate(entries()):
        try:
            if (component := _resolve(plugin, name)) is None:
                continue
        except PluginError as error:
            broken.append(error)
            continue
        for other in entries()[i + 1 :]:
            path, function = _split(other, name)
            with contextlib.suppress(PluginError):
                if function and _has_in_source(_spec(other, path), function):
                    logger.warning("phalanx: %s", _twice(name, plugin, other))
        return component, broken
    return None, broken


def _twice(name: str, first: Plugin, second: Plugin) -> str:
    return (
        f"two entry points define the component {name!r}: {first.value} of {first.package} and "
        f"{second.value} of {second.package}; the first is used"
    )


def _named_in_source(plugin: Plugin, function: str) -> Iterator[str]:
    """Names of components of an entry whose source has a function of this name."""
    with contextlib.suppress(PluginError):
        top = _module_name(plugin)
        for module in _modules(plugin, top):
            path = module.removeprefix(top).lstrip(".")
            if _has_in_source(_spec(plugin, path), function):
                yield _prefix(plugin) + ".".join(filter(None, (path, function)))


def _unknown(name: str, known: Sequence[str]) -> str:
    by_last = {full.rpartition(".")[2]: full for full in known}
    near = closest(name, [*known, *by_last])
    meant = None if near is None else by_last.get(near, near)
    hint = did_you_mean(meant, "List components with: phalanx builtins")
    return f"unknown component {name!r}.{hint}"


# ── from a file ───────────────────────────────────────────────────────────────


def _from_file(text: str) -> Component:
    file, _, function = text.rpartition(":")
    path = os.path.expanduser(file)
    if not os.path.isfile(path):
        raise ComponentError(no_such_file(file), name=text)
    path = os.path.abspath(path)
    name = f"phalanx_component_{re.sub(r'[^0-9a-zA-Z]', '_', path)}"
    loader = importlib.machinery.SourceFileLoader(name, path)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if os.path.dirname(path) not in sys.path:  # for what it imports when it is called, too
        sys.path.insert(0, os.path.dirname(path))
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a dry run leaves no file
    try:
        with launch_guard.loading(file):
            loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    found = getattr(module, function, None)
    if not inspect.isfunction(found):
        names = [n for n, v in vars(module).items() if _is_defined_there(v, name)]
        hint = did_you_mean(closest(function, names))
        raise ComponentError(f"{file} has no function {function!r}.{hint}", name=text)
    return _usable(Component(text, found))
