"""TorchX's configuration: `.torchxconfig`, in INI."""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Any

from phalanx._core.lazy import loader
from phalanx._runner import torchx_config
from phalanx._schedulers.factories import create_scheduler
from phalanx._schedulers.options import options

CONFIG_FILE = torchx_config.FILE
ENV_TORCHXCONFIG = "TORCHXCONFIG"

__all__ = ["CONFIG_FILE", "ENV_TORCHXCONFIG", "apply", "find_configs", "get_config", "get_configs"]

_KINDS = {"cli": "command"}


def apply(scheduler: str, cfg: MutableMapping[str, Any], dirs: Iterable[str] | None = None) -> None:
    """Fill in options of a scheduler that are configured and not given.

    Args:
        scheduler: Its name.
        cfg: The options that are given, which are kept; the others are added to it.
        dirs: The directories whose files count, the first most; by default home and the current.
    """
    known = {option.name: option for option in options(create_scheduler(scheduler, "").options)}
    for path in find_configs(dirs):
        found = torchx_config.read(Path(path)).get("scheduler", {}).get(scheduler, {})
        for key, value in found.items():
            if key in known:
                cfg.setdefault(key, known[key].decode(value))


def get_configs(prefix: str, name: str, dirs: Iterable[str] | None = None) -> dict[str, str]:
    """What is configured for a component or command.

    Args:
        prefix: `component` or `cli`.
        name: Its name.
        dirs: The directories whose files count, the first most; by default home and the current.
    """
    found: dict[str, str] = {}
    for path in find_configs(dirs):
        sections = torchx_config.read(Path(path)).get(_KINDS.get(prefix, prefix), {})
        for key, value in sections.get(name, {}).items():
            found.setdefault(key, value)
    return found


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
        return [named] if os.path.isfile(named) else []
    places = [str(Path.home()), os.getcwd()] if dirs is None else dirs
    files = [os.path.join(place, CONFIG_FILE) for place in places]
    return [file for file in dict.fromkeys(files) if os.path.isfile(file)]


__getattr__ = loader(
    __name__,
    {},
    {
        "dump": "run: phalanx configure",
        "load": "use apply(scheduler, cfg, dirs=[…])",
        "load_sections": "use get_configs(prefix, name)",
    },
)
