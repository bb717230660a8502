"""Configuration: `.phalanxconfig`, in TOML, of the project and of the user; and the environment.

A value is looked for in the environment, then in the project's file (the nearest one upward from
the current directory, or the one that $PHALANXCONFIG names), then in the one in the home directory.
Sections are `[scheduler.NAME]`, `[component."NAME"]` and `[command.NAME]`.

A file that is only found does not count if another user may have written it: it names programs.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx import _aliases
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._logs import logger
from phalanx._runner import torchx_config
from phalanx._schedulers.options import Option
from phalanx._system.user_directories import is_own
from phalanx.errors import ConfigError

FILE = ".phalanxconfig"
SECTIONS = ("scheduler", "component", "command")
DEFAULT, COMMAND_LINE = "default", "command line"


@dataclass(frozen=True)
class ConfigValue:
    """A value, and where it came from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Config:
    """What files and the environment say."""

    files: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """What is in them, by their paths; the last one counts most."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def section(
        self, kind: str, name: str, keys: Iterable[str] | None = None
    ) -> dict[str, ConfigValue]:
        """What is set for a scheduler, component or command. `keys` are those that there can be:
        the environment is asked for them.
        """
        found: dict[str, ConfigValue] = {}
        for path, data in self.files:
            for key, value in _table(data, kind, name).items():
                found[key.replace("-", "_")] = ConfigValue(value, path)
        for key in keys or ():
            variable = variable_name(name, key)
            if variable in self.environ:
                found[key] = ConfigValue(self.environ[variable], f"${variable}")
        return found

    def names(self, kind: str) -> list[str]:
        """The names that have a section of this kind."""
        tables = [data.get(kind, {}) for _, data in self.files]
        return list(dict.fromkeys(name for table in tables for name in table))


def option_problems(
    scheduler: str, options: Sequence[Option], effective: Mapping[str, ConfigValue]
) -> Iterator[str]:
    """What is wrong with configured options of a scheduler, and where it stands."""
    known = {option.name: option for option in options}
    for key, value in effective.items():
        if value.origin in (DEFAULT, COMMAND_LINE):
            continue
        if key not in known:
            hint = did_you_mean(closest(key, known))
            yield f"{value.origin}: {scheduler} has no option {key!r}.{hint}"
            continue
        try:
            known[key].decode(value.value)
        except (ValueError, TypeError) as error:
            yield f"{value.origin}: {scheduler}: option {key!r}: {error}."


def variable_name(name: str, key: str) -> str:
    """The environment variable for a key of a section: `PHALANX_LOCAL_CWD_LOG_DIR`."""
    return "PHALANX_" + re.sub(r"[^A-Z0-9]+", "_", f"{name}_{key}".upper())


def load(
    directory: str | None = None,
    environ: Mapping[str, str] = os.environ,
    problems: list[str] | None = None,
) -> Config:
    """What applies in a directory. Raises `ConfigError` for a file that cannot be read.

    With `problems`, those are added to it instead, and what can be read is.
    """
    read: dict[str, Mapping[str, Any]] = {}
    for is_project in (False, True):
        try:
            path = project_file(directory, environ) if is_project else home_file(environ)
            if path is None or str(path) in read or (not is_project and _is_anothers(path)):
                continue
            if _is_file(path):
                read[str(path)] = _read(path, problems)
        except ConfigError as error:
            if problems is None:
                raise
            problems.append(str(error))
    return Config((*_torchx_files(directory, environ), *read.items()), environ)


def _torchx_files(
    directory: str | None, environ: Mapping[str, str]
) -> list[tuple[str, Mapping[str, Any]]]:
    """TorchX's own files, for programs written for it; there the home directory's counts more."""
    if "torchx" not in environ.get(_aliases.VARIABLE, "").split(","):
        return []
    if named := environ.get("TORCHXCONFIG"):
        paths = [Path(named)]
    else:
        home = environ.get("HOME")
        paths = [Path(directory or "."), *([Path(home)] if home else [])]
        paths = [each / torchx_config.FILE for each in paths]
        paths = [path for path in paths if not _is_anothers(path)]
    return [(str(path), torchx_config.read(path)) for path in paths if _is_file(path)]


def unread_torchx_file(directory: str | None = None) -> Path | None:
    """A `.torchxconfig` in a directory for which there is no configuration of ours."""
    try:
        path = Path(directory or os.getcwd()) / torchx_config.FILE
        has_ours = project_file(directory) is not None
    except (OSError, ConfigError):
        return None
    compat = "torchx" in os.environ.get(_aliases.VARIABLE, "").split(",")
    return path if path.is_file() and not has_ours and not compat else None


def load_from(directory: str) -> Config:
    """What the file of one directory says, if it has one. Raises `ConfigError`."""
    path = Path(directory).expanduser().absolute() / FILE
    return Config(((str(path), _read(path)),) if _is_file(path) else (), {})


def home_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The user's own file, whether it is there or not."""
    home = environ.get("HOME")
    return Path(home) / FILE if home else None


def project_file(
    directory: str | None = None, environ: Mapping[str, str] = os.environ
) -> Path | None:
    """The project's file, if there is one."""
    if named := environ.get("PHALANXCONFIG"):
        path = Path(named).expanduser()
        if not _is_file(path):
            raise ConfigError(f"$PHALANXCONFIG: no such file: {named}")
        return path.absolute()
    try:
        start = Path(directory or os.getcwd()).absolute()
    except OSError:
        return None
    for parent in (start, *start.parents):
        path = parent / FILE
        if not _is_anothers(path) and _is_file(path):
            return path
    return None


def _is_anothers(path: Path) -> bool:
    """Another user could have written a file, or have put a link there; this is said once.

    Directories such as /tmp are above those of many users.
    """
    try:
        found = [path.lstat(), path.stat()]
    except (OSError, ValueError):
        return False
    users = [info.st_uid for info in found if not _may_configure(info.st_uid)]
    mode = found[1].st_mode
    if not users and not (stat.S_ISREG(mode) and mode & stat.S_IWOTH):
        return False
    if str(path) not in _said:
        _said.add(str(path))
        who = f"it belongs to {_name_of(users[0])}" if users else "every user can write to it"
        variable = "PHALANXCONFIG" if path.name == FILE else "TORCHXCONFIG"
        logger.warning("phalanx: ignoring %s: %s. To use it: %s=%s", path, who, variable, path)
    return True


_said: set[str] = set()


def _may_configure(user: int) -> bool:
    if user == 0 or is_own(user):
        return True
    return os.geteuid() == 0 and os.environ.get("SUDO_UID") == str(user)  # as git has it


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _is_file(path: Path) -> bool:
    """There is such a file, as far as one may look. Raises `ConfigError` for what is none."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a file"
        raise ConfigError(f"{path} is {kind}; it must be a TOML file.")
    return True


def _read(path: Path, problems: list[str] | None = None) -> dict[str, Any]:
    """The tables of a file. Raises `ConfigError`; with `problems`, what is wrong with sections is
    added to it instead, and they are left out.
    """
    import tomllib

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: invalid TOML: {error}.") from None
    found = list(_section_problems(data))
    if found and problems is None:
        raise ConfigError(f"{path}: {found[0]}")
    if problems is not None:
        problems += [f"{path}: {problem}" for problem in found]
    return {
        kind: {name: table for name, table in tables.items() if isinstance(table, dict)}
        for kind, tables in data.items()
        if kind in SECTIONS and isinstance(tables, dict)
    }


def _section_problems(data: Mapping[str, Any]) -> Iterator[str]:
    for kind, tables in data.items():
        if kind not in SECTIONS:
            if (meant := closest(kind, SECTIONS)) is not None:
                hint = did_you_mean(f"[{meant}.NAME]", quoted=False)
                yield f"unknown section [{kind}].{hint}"
                continue
            shown = ", ".join(f"[{section}.{kind}]" for section in SECTIONS)
            yield f"unknown section [{kind}]; choose one of {shown}."
        elif not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
            yield f"write [{kind}.NAME], and keys below it."


def _table(data: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    tables = data.get(kind, {})
    if name in tables:
        return dict(tables[name])
    # [component.dist.ddp], without quotes, is a table within a table.
    found: Any = tables
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
