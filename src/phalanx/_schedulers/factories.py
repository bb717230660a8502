"""Which schedulers there are, and what creates each: ours, and those of plugins."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

from phalanx import _plugins as plugins
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._schedulers.options import options
from phalanx._schedulers.scheduler import BUILT_IN, Scheduler
from phalanx.errors import UnknownScheduler

GROUP = "phalanx.schedulers"

Factory = Callable[..., "Scheduler[Any, Any]"]


def adapted(made: Any) -> Scheduler[Any, Any]:
    """What a factory has made, as a scheduler of ours. Raises `TypeError` for what is none."""
    if isinstance(made, Scheduler):
        return made
    from phalanx._schedulers.torchx.adapter import TorchxAdapter
    from phalanx._schedulers.torchx.interface import TorchxScheduler

    if isinstance(made, TorchxScheduler):
        return TorchxAdapter(made)
    raise TypeError(f"it returned {made!r}, which is not a phalanx.schedulers.Scheduler")


def get_scheduler_factories() -> dict[str, Factory]:
    """What creates each scheduler, by name: ours and those of plugins, without loading any.

    Returns:
        Functions of a session's name. They raise `PluginError` for a plugin that is broken, and
        `ConfigError` for a scheduler that needs a package that is not installed.
    """
    factories: dict[str, Factory] = {name: _built_in(module) for name, module in BUILT_IN.items()}
    for plugin in plugins.of(GROUP):
        factories.setdefault(plugin.name, _of_plugin(plugin))
    return factories


def problems() -> list[str]:
    """Names that are taken more than once."""
    taken = [plugin for plugin in plugins.of(GROUP) if plugin.name in BUILT_IN]
    return plugins.clashes(GROUP) + [
        f"the plugin {plugin} is ignored: phalanx has a scheduler of that name" for plugin in taken
    ]


def default_scheduler() -> str:
    """The name of the scheduler that is used when none is named."""
    return next(iter(BUILT_IN))


def create_scheduler(name: str, session_name: str, **kwargs: object) -> Scheduler[Any, Any]:
    """Create a scheduler by name.

    Args:
        name: Such as `local_cwd` or `slurm`, or the name that a plugin has registered.
        session_name: The middle part of handles.
        **kwargs: For the scheduler's own constructor.

    Raises:
        UnknownScheduler: There is no such scheduler.
        ConfigError: It needs a package that is not installed.
        PluginError: The plugin that has it is broken.
    """
    factories = get_scheduler_factories()
    if name not in factories:
        raise unknown_scheduler(name, factories)
    return factories[name](session_name, **kwargs)


def unknown_scheduler(name: str, known: Collection[str]) -> UnknownScheduler:
    """The error for an unknown scheduler."""
    hint = did_you_mean(closest(name, known), f"Choose one of {', '.join(known)}.")
    return UnknownScheduler(f"unknown scheduler {name!r}.{hint}")


def _built_in(module: str) -> Factory:
    def create(session_name: str, **kwargs: object) -> Scheduler[Any, Any]:
        made: Scheduler[Any, Any] = import_module(module).create_scheduler(session_name, **kwargs)
        return made

    return create


def _of_plugin(plugin: plugins.Plugin) -> Factory:
    def create(session_name: str, **kwargs: object) -> Scheduler[Any, Any]:
        made = plugin.call(session_name, **kwargs)
        with plugins.guarded(plugin):
            found = adapted(made)
            options(found.options)
        return found

    return create
