"""TorchX's configuration: `.torchxconfig`, in INI."""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Any, TextIO

from phalanx._core import values
from phalanx._logs import logger
from phalanx._runner import torchx_config
from phalanx._schedulers.factories import unknown_scheduler
from phalanx._schedulers.options import Option
from phalanx._schedulers.torchx.runopts import runopts
from phalanx.compat.torchx.schedulers import get_scheduler_factories
from phalanx.errors import ConfigError

CONFIG_FILE = torchx_config.FILE
ENV_TORCHXCONFIG = "TORCHXCONFIG"
DEFAULT_CONFIG_DIRS = [str(Path.home()), str(Path.cwd())]
_SESSION = "config"
_NOTHING, _TO_DO = "None", "#FIXME"
"""How no value is written, and one that has to be filled in."""

__all__ = [
    "CONFIG_FILE",
    "DEFAULT_CONFIG_DIRS",
    "ENV_TORCHXCONFIG",
    "apply",
    "dump",
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
    known = _options(scheduler)
    for key, value in sections.get("scheduler", {}).get(scheduler, {}).items():
        opt = known.get(key)
        if opt is None:
            logger.warning("phalanx: %s has no option %r", scheduler, key)
        else:
            described = Option(key, opt.opt_type, opt.default, opt.is_required, opt.help)
            cfg.setdefault(key, described.decode(value))


def _options(scheduler: str) -> runopts:
    factories = get_scheduler_factories()
    if scheduler not in factories:
        raise unknown_scheduler(scheduler, factories)
    found: runopts = factories[scheduler](_SESSION).run_opts()
    return found


def dump(
    f: TextIO,
    schedulers: Iterable[str] | None = None,
    required_only: bool = False,  # noqa: FBT001, FBT002 TorchX's
) -> None:
    """Write a configuration with the options of schedulers, to be filled in.

    Args:
        f: The file.
        schedulers: Their names; by default all.
        required_only: Only options that have no default.

    Raises:
        ValueError: There is no such scheduler.
    """
    for name in get_scheduler_factories() if schedulers is None else schedulers:
        try:
            known = _options(name)
        except ConfigError:
            if schedulers is not None:
                raise
            continue  # a package that it needs is not installed
        print(f"[{name}]", file=f)
        for key, opt in known:
            if opt.is_required:
                print(f"{key} = {_TO_DO} ({values.name(opt.opt_type)}) {opt.help}", file=f)
            elif not required_only:
                print(f"{key} = {_text(opt.default)}", file=f)
        print(file=f)


def _text(default: Any) -> str:
    if isinstance(default, bool):
        return str(default)
    if default is None or default in ([], {}, ""):
        return _NOTHING
    return values.encode(default, pair=":").replace(",", ";")


def load_sections(prefix: str, dirs: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
    """What is configured for all components or commands, by name.

    Args:
        prefix: `component` or `cli`.
        dirs: The directories whose files count, the first most; by default home and the current.
    """
    found: dict[str, dict[str, str]] = {}
    for path in find_configs(dirs):
        sections = torchx_config.read(Path(path)).get(_KINDS.get(prefix, prefix), {})
        for name, section in sections.items():
            found[name] = {**section, **found.get(name, {})}
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
