"""From what the user asked for to what will be started: pure checks and the tables that follow.

Nothing here starts a process, and nothing torch is imported. Every mistake is a `ConfigError`.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx import environment, hosts, ranks, wire
from phalanx.errors import ConfigError
from phalanx.rounds import Member

if TYPE_CHECKING:
    from phalanx.launcher import Launcher
    from phalanx.launcher.imports import Needs

BACKENDS = ("auto", "nccl", "gloo", "mpi", "ucc")
START_METHODS = ("zygote", "spawn", "inline")
_TIMES = ("start_timeout", "process_group_timeout", "host_timeout", "orphan_timeout")


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before anything starts."""

    app: str
    members: tuple[Member, ...]
    prepare: tuple[wire.Prepare, ...]
    """The first frame for each member."""
    env_file: str | None
    settings: Launcher


def make_plan(launcher: Launcher, needs: Needs, title: str) -> Plan:
    """Check a launcher's fields and lay out the launch."""
    check(launcher)
    members = place_members(launcher)
    app = f"{_slug(launcher.name or title)}-{secrets.token_hex(4)}"
    env_file = None if launcher.env_file is None else str(Path(launcher.env_file).absolute())
    return Plan(
        app=app,
        members=members,
        prepare=tuple(_prepare(launcher, needs, title, app, member) for member in members),
        env_file=env_file,
        settings=launcher,
    )


def _prepare(
    launcher: Launcher, needs: Needs, title: str, app: str, member: Member
) -> wire.Prepare:
    main = sys.modules.get("__main__")
    main_file = getattr(main, "__file__", None)
    return wire.Prepare(
        app=app,
        preload=_preload(launcher, needs),
        late=needs.late if launcher.preload == "auto" else None,
        python_path=tuple(path or os.curdir for path in sys.path if isinstance(path, str)),
        environment={
            **(environment.passing(os.environ) if launcher.env_file is None else {}),
            **launcher.extra_env_vars,
        },
        passing=launcher.env_file is None,
        argv=tuple(map(str, sys.argv)),
        cwd=_working_directory(),
        main_file=os.path.abspath(main_file) if main_file else None,
        title=title,
        spawn=launcher.start_method == "spawn",
        workers=member.workers,
        heartbeat=min(5.0, launcher.host_timeout / 4),
        orphan_timeout=launcher.orphan_timeout,
        stop_grace=launcher.stop_grace,
    )


def _preload(launcher: Launcher, needs: Needs) -> tuple[wire.Import, ...]:
    if launcher.preload == "auto":
        return needs.preload
    return tuple(wire.Import(name) for name in launcher.preload)


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # deleted under us: the workers inherit it as it is


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.") or "app"


# ── hosts and workers ─────────────────────────────────────────────────────────


def place_members(launcher: Launcher) -> tuple[Member, ...]:
    """The rank table: which host has which ranks."""
    names = _host_names(launcher.hostnames)
    return ranks.members(names, _worker_counts(launcher.workers_per_host, names))


def _host_names(hostnames: object) -> tuple[str, ...]:
    if hostnames in ("auto", ["auto"]):
        return ("localhost",)
    if hostnames in ("slurm", ["slurm"]):
        raise ConfigError(
            'hostnames="slurm" is not supported by this version yet. Use "auto" for this machine.'
        )
    if isinstance(hostnames, str):
        raise ConfigError(
            f'hostnames={hostnames!r} is neither "auto" nor a list. '
            f"Write hostnames=[{hostnames!r}]."
        )
    names = tuple(hostnames) if isinstance(hostnames, Sequence) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"hostnames={hostnames!r}: give a list of at least one host name, or leave it out for "
            "this machine."
        )
    for name in dict.fromkeys(names):
        if not hosts.is_this_machine(name):
            raise ConfigError(
                f"host {name!r} is not this machine, and other hosts are not supported by this "
                'version yet. Use "localhost" or leave hostnames out.'
            )
    return names


def _worker_counts(workers: object, names: Sequence[str]) -> list[int]:
    if isinstance(workers, Sequence) and not isinstance(workers, str):
        counts = list(workers)
    else:
        counts = [workers] * len(names)
    return [_worker_count(count) for count in counts]


def _worker_count(count: object) -> int:
    if not isinstance(count, bool) and hasattr(count, "__index__"):
        return operator.index(count)
    match count:
        case "auto":
            return hosts.gpus() or 1
        case "cpu":
            return hosts.processors()
        case "gpu":
            found = hosts.gpus()
            if not found:
                visible = os.environ.get("CUDA_VISIBLE_DEVICES")
                why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
                raise ConfigError(
                    f'workers_per_host="gpu": no NVIDIA GPU is visible on this machine{why}. '
                    'Give a number, or "cpu".'
                )
            return found
    raise ConfigError(
        f"workers_per_host: {count!r} is not a number of workers. "
        'Give a number, "cpu", "gpu" or "auto", or a list with one number for each host.'
    )


# ── checks ────────────────────────────────────────────────────────────────────


def check(launcher: Launcher) -> None:
    """Check the fields that need no table."""
    _one_of("backend", launcher.backend, (None, *BACKENDS))
    _one_of("start_method", launcher.start_method, START_METHODS)
    for name in _TIMES:
        _seconds(name, getattr(launcher, name), minimum_excluded=True)
    for name in ("stop_grace", "keep_warm"):
        _seconds(name, getattr(launcher, name), minimum_excluded=False)
    _check_environment(launcher)
    if launcher.preload != "auto" and not _is_list_of_names(launcher.preload):
        raise ConfigError(
            f'preload={launcher.preload!r} is neither "auto" nor a list of modules. '
            "Write preload=['torch'], or preload=[] for none."
        )
    if launcher.name is not None and not isinstance(launcher.name, str):
        raise ConfigError(f"name={launcher.name!r} is not a string.")
    spec = launcher.log_spec
    if spec is not None and (isinstance(spec, type) or not hasattr(spec, "get_map")):
        raise ConfigError(f"log_spec={spec!r} is not an instance of a LogSpec with a get_map().")
    if launcher.backend not in (None, "auto"):
        _need_torch(str(launcher.backend))


def _is_list_of_names(value: object) -> bool:
    names = isinstance(value, Sequence) and not isinstance(value, str)
    return names and all(isinstance(name, str) and name for name in value)  # type: ignore[attr-defined]


def _check_environment(launcher: Launcher) -> None:
    if isinstance(launcher.env_vars, Mapping):
        raise ConfigError(
            "env_vars takes patterns of names to copy, not a dict. "
            "Give the values as extra_env_vars={...}."
        )
    if isinstance(launcher.env_vars, str):
        raise ConfigError(
            f"env_vars is a list of patterns. Write env_vars=[{launcher.env_vars!r}]."
        )
    if not isinstance(launcher.extra_env_vars, Mapping):
        raise ConfigError(f"extra_env_vars is a dict, not {launcher.extra_env_vars!r}.")
    for name, value in launcher.extra_env_vars.items():
        environment.check(name, value)
        if name in ranks.RANK_VARIABLES:
            raise ConfigError(f"extra_env_vars: {name} is set by phalanx for every worker.")
    if launcher.env_file is not None:
        try:
            with open(launcher.env_file, "rb"):
                pass
        except OSError as error:
            raise ConfigError(f"env_file {launcher.env_file}: {error.strerror}.") from None


def _need_torch(backend: str) -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            f"backend={backend!r} needs torch, which is not installed. "
            "Install it with: pip install torch, or use backend=None."
        )


def _one_of(field: str, value: object, allowed: Sequence[object]) -> None:
    if value in allowed:
        return
    names = [str(a) for a in allowed]
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else f" Choose from: {', '.join(names)}."
    raise ConfigError(f"{field}={value!r} is not one that there is.{hint}")


def _seconds(field: str, value: object, *, minimum_excluded: bool) -> None:
    least = "more than 0" if minimum_excluded else "0 or more"
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        if value > 0 or (value == 0 and not minimum_excluded):
            return
    raise ConfigError(f"{field}={value!r}: give a number of seconds, {least}.")
