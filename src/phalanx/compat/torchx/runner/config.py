"""TorchX's configuration: `.torchxconfig`, in INI."""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Any, TextIO

from phalanx._core.lazy import loader
from phalanx._logs import logger
from phalanx._runner import torchx_config
from phalanx._schedulers.factories import adapted, create_scheduler
from phalanx._schedulers.options import options

CONFIG_FILE = torchx_config.FILE
ENV_TORCHXCONFIG = "TORCHXCONFIG"
DEFAULT_CONFIG_DIRS = [str(Path.home()), str(Path.cwd())]
_SESSION = "config"

__all__ = [
    "CONFIG_FILE",
    "DEFAULT_CONFIG_DIRS",
    "ENV_TORCHXCONFIG",
    "apply",
    "find_configs",
    "get_config",
    "get_configs",
    "load",
    "load_sections",
]

_KINDS = {"cli": "command"}


def apply(scheduler: str, cfg: MutableMapping[str, Any], dirs: Iterable[str] | None = None) -> None:
    """Fill in options of a scheduler that are configured and not given.

    Args:
        scheduler: Its name.
        cfg: The options that are given, which are kept; the others are added to it.
        dirs: The directories whose files count, the first most; by default home and the current.
    """
    for path in find_configs(dirs):
        _fill(scheduler, torchx_config.read(Path(path)), cfg)


def load(scheduler: str, f: TextIO, cfg: MutableMapping[str, Any]) -> None:
    """Fill in options of a scheduler from a file.

    Args:
        scheduler: Its name.
        f: The file.
        cfg: The options that are given, which are kept; the others are added to it.
    """
    _fill(scheduler, torchx_config.parse(f.read(), getattr(f, "name", "the file")), cfg)


def _fill(scheduler: str, sections: torchx_config.Sections, cfg: MutableMapping[str, Any]) -> None:
    made = adapted(create_scheduler(scheduler, _SESSION))
    known = {option.name: option for option in options(made.options)}
    for key, value in sections.get("scheduler", {}).get(scheduler, {}).items():
        if key in known:
            cfg.setdefault(key, known[key].decode(value))
        else:
            logger.warning("phalanx: %s has no option %r", scheduler, key)


def load_sections(prefix: str, dirs: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
    """What is configured for all components or commands, by name.

    Args:
        prefix: `component` or `cli`.
        dirs: The directories whose files count, the first most; by default home and the current.
    """
    found: dict[str, dict[str, str]] = {}
    for path in find_configs(dirs):
        sections = torchx_config.read(Path(path)).get(_KINDS.get(prefix, prefix), {})
        for name, values in sections.items():
            found[name] = {**values, **found.get(name, {})}
    return found


def get_configs(prefix: str, name: str, dirs: Iterable[str] | None = None) -> dict[str, str]:
    """What is configured for a component or command.

    Args:
        prefix: `component` or `cli`.
        name: Its name.
        dirs: The directories whose files count, the first most; by default home and the current.
    """
    return load_sections(prefix, dirs).get(name, {})


def get_config(prefix: str, name: str, key: str, dirs: Iterable[str] | None = None) -> str | None:
    """One value of `get_configs`; None if it is not configured.

    Args:
        prefix: `component` or `cli`.
        name: Its name.
        key: The value's name.
        dirs: The directories whose files count, the first most; by default home and the current.
    """
    return get_configs(prefix, name, dirs).get(key)


def find_configs(dirs: Iterable[str] | None = None) -> list[str]:
    """The files that count, the first most.

    Args:
        dirs: The directories; by default home and the current one.
    """
    if named := os.environ.get(ENV_TORCHXCONFIG):
        if not os.path.isfile(named):
            raise FileNotFoundError(f"${ENV_TORCHXCONFIG}: no such file: {named}")
        return [named]
    directories = DEFAULT_CONFIG_DIRS if dirs is None else dirs
    files = [os.path.join(directory, CONFIG_FILE) for directory in directories]
    return [file for file in dict.fromkeys(files) if os.path.isfile(file)]


__getattr__ = loader(
    __name__,
    {},
    {
        "dump": "run: phalanx configure",
    },
)
