"""The configuration, in the module where TorchX has it."""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping
from typing import Any

from phalanx._core.lazy import loader
from phalanx._logs import logger
from phalanx._runner import config

__all__ = ["apply", "find_configs", "get_config", "get_configs"]

_KINDS = {"cli": "command", "component": "component", "scheduler": "scheduler"}


def apply(scheduler: str, cfg: MutableMapping[str, Any], dirs: Iterable[str] | None = None) -> None:
    """Fill in options of a scheduler that are configured and not given.

    `runner.run` and `runner.dryrun` do that by themselves.

    Args:
        scheduler: Its name.
        cfg: The options that are given, which are kept; the others are added to it.
        dirs: The directories whose files count, the first most; by default what applies here.

    Raises:
        ConfigError: A file cannot be read.
    """
    for settings in _settings(dirs):
        for key, value in settings.section("scheduler", scheduler).items():
            cfg.setdefault(key, value.value)


def get_configs(prefix: str, name: str, dirs: Iterable[str] | None = None) -> dict[str, Any]:
    """What is configured for a component, command or scheduler.

    Args:
        prefix: `component`, `cli` or `scheduler`.
        name: Its name.
        dirs: The directories whose files count, the first most; by default what applies here.

    Raises:
        ConfigError: A file cannot be read.
    """
    found: dict[str, Any] = {}
    for settings in _settings(dirs):
        for key, value in settings.section(_KINDS.get(prefix, prefix), name).items():
            found.setdefault(key, value.value)
    return found


def get_config(prefix: str, name: str, key: str, dirs: Iterable[str] | None = None) -> Any:
    """One value of `get_configs`; None if it is not configured.

    Args:
        prefix: `component`, `cli` or `scheduler`.
        name: Its name.
        key: The value's name.
        dirs: The directories whose files count, the first most; by default what applies here.

    Raises:
        ConfigError: A file cannot be read.
    """
    return get_configs(prefix, name, dirs).get(key.replace("-", "_"))


def find_configs(dirs: Iterable[str] | None = None) -> list[str]:
    """The files that count, the first most.

    Args:
        dirs: The directories; by default what applies here.
    """
    return [path for settings in _settings(dirs) for path, _ in reversed(settings.files)]


def _settings(dirs: Iterable[str] | None) -> list[config.Config]:
    if dirs is None:
        return [config.load()]
    found = []
    for directory in dirs:
        if (path := config.unread_torchx_file(os.path.expanduser(directory))) is not None:
            logger.warning(
                "phalanx: %s is not read; convert it with: phalanx configure --from-torchx", path
            )
        found.append(config.load_from(directory))
    return found


__getattr__ = loader(
    __name__,
    {},
    {
        "dump": "run: phalanx configure",
        "load": "use phalanx.runner.Runner().config, or apply(scheduler, cfg, dirs=[…])",
        "load_sections": "use get_configs(prefix, name)",
        "CONFIG_FILE": "it is '.phalanxconfig'",
        "ENV_TORCHXCONFIG": "it is 'PHALANXCONFIG'",
    },
)
