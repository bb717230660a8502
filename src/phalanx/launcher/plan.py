"""From what the user asked for to what will be started: pure checks and the tables that follow.

Nothing torch is imported. Nothing is started, but for hosts that have to be asked how many workers
they take. Every mistake is a `ConfigError`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from phalanx import environment, hosts, ranks, wire
from phalanx.errors import ConfigError
from phalanx.launcher.places import Dials, Facts, Place
from phalanx.launcher.places import counts as count_workers
from phalanx.launcher.places import find as find_places
from phalanx.launcher.tokens import Tokens
from phalanx.logs.spec import DefaultLogSpec
from phalanx.rounds import Member

if TYPE_CHECKING:
    from phalanx.launcher import Launcher
    from phalanx.launcher.dialing import Errand
    from phalanx.launcher.imports import Needs
    from phalanx.launcher.targets import Target
    from phalanx.launcher.workspace import Workspace

BACKENDS = ("auto", "nccl", "gloo", "mpi", "ucc")
START_METHODS = ("zygote", "spawn", "inline")
_OF_AN_INTERPRETER = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
_TIMES = ("start_timeout", "process_group_timeout", "host_timeout", "orphan_timeout")


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before anything starts."""

    app: str
    members: tuple[Member, ...]
    prepare: tuple[wire.Prepare, ...]
    """The first frame for each member."""
    places: tuple[Place, ...]
    """Where each member is."""
    dials: Dials
    """The hosts that had to be dialled for the plan to be made."""
    errand: Errand | None
    """What agents on other hosts need first; None when all are here."""
    workspace: Workspace | None
    """The project, if it may have to be sent."""
    tokens: Tokens
    env_file: str | None
    settings: Launcher

    def own_variables(self, index: int) -> Mapping[str, str]:
        """The variables that were given for a member, rather than copied."""
        return _own_variables(self.settings, self.places[index])


def make_plan(
    launcher: Launcher, needs: Needs, title: str, known: Mapping[str, Facts] = MappingProxyType({})
) -> Plan:
    """Check a launcher's fields and lay out the launch.

    `known` are the facts of hosts that have an agent already. Hosts whose number of workers has to
    be found out are dialled; `Plan.dials` has to be used, or given up.
    """
    check(launcher)
    places = find_places(launcher, os.environ)
    away = any(place.target is not None for place in places)
    if launcher.start_method == "inline" and away:
        raise ConfigError('start_method="inline" runs in this process, not on other hosts.')
    if launcher.backend not in (None, "auto") and not away:
        _need_torch(str(launcher.backend))
    env_file = None if launcher.env_file is None else str(Path(launcher.env_file).absolute())
    errand = _errand(launcher, env_file) if away else None
    workspace = _workspace(launcher, needs) if away else None
    tokens = Tokens({} if workspace is None else {n: r.path for n, r in workspace.roots.items()})
    app = f"{_slug(launcher.name or title)}-{secrets.token_hex(4)}"
    here = _prepare(launcher, needs, title, app)
    counts, dials = count_workers(launcher, places, errand, known)
    try:
        members = ranks.members([place.name for place in places], counts)
        elsewhere = _Elsewhere(launcher, needs, workspace, wire.Away(tokens.roots))
        frames = tuple(
            _for_place(here, place, member, elsewhere, networked=away)
            for place, member in zip(places, members, strict=True)
        )
    except BaseException:
        dials.give_up()
        raise
    return Plan(
        app=app,
        members=members,
        prepare=frames,
        places=tuple(places),
        dials=dials,
        errand=errand,
        workspace=workspace,
        tokens=tokens,
        env_file=env_file,
        settings=launcher,
    )


def _prepare(launcher: Launcher, needs: Needs, title: str, app: str) -> wire.Prepare:
    """The first frame for an agent on this machine, but for the number of its workers."""
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
        main_file=_main_file(),
        title=title,
        spawn=launcher.start_method == "spawn",
        workers=1,
        heartbeat=min(5.0, launcher.host_timeout / 4),
        orphan_timeout=launcher.orphan_timeout,
        stop_grace=launcher.stop_grace,
        interface=launcher.interface or "",
    )


@dataclass(frozen=True)
class _Elsewhere:
    """What the first frame for an agent on another host is made from."""

    launcher: Launcher
    needs: Needs
    workspace: Workspace | None
    away: wire.Away

    def frame(self, frame: wire.Prepare, target: Target, own: Mapping[str, str]) -> wire.Prepare:
        """The frame for this machine as one for that."""
        launcher, preload = self.launcher, frame.preload
        if launcher.preload == "auto":
            preload += self.needs.elsewhere
        path = [place for place in frame.python_path if _is_users(place)]
        if self.workspace is not None:
            # Such as an editable install, which need not be in sys.path here.
            outside = [root.path for root in self.workspace.roots.values() if root.is_outside]
            path += [place for place in outside if place not in path]
        return dataclasses.replace(
            frame,
            preload=preload,
            python_path=tuple(path),
            environment={**self._copied(target), **own},
            passing=False,
            away=self.away,
        )

    def _copied(self, target: Target) -> dict[str, str]:
        patterns = self.launcher.env_vars
        copied = environment.copied(os.environ, patterns)
        # Where this interpreter is, theirs need not be; what leads to it is no use with another.
        chosen = target.pythons[0] != sys.executable
        for name in ("PYTHONHOME", *(_OF_AN_INTERPRETER if chosen else ())):
            if name not in patterns or patterns == environment.COPIED_BY_DEFAULT:
                copied.pop(name, None)
        return copied


def _for_place(
    here: wire.Prepare, place: Place, member: Member, elsewhere: _Elsewhere, *, networked: bool
) -> wire.Prepare:
    own = _own_variables(elsewhere.launcher, place)
    frame = dataclasses.replace(here, workers=member.workers, networked=networked)
    if place.target is None:
        return dataclasses.replace(frame, environment={**here.environment, **own})
    return elsewhere.frame(frame, place.target, own)


def _own_variables(launcher: Launcher, place: Place) -> dict[str, str]:
    return {**launcher.extra_env_vars, **launcher.host_env_vars.get(place.name, {})}


def _is_users(path: str) -> bool:
    """A place of the user's own code, not one that every interpreter has of its own."""
    return not hosts.is_installed(path + os.sep) and not path.endswith(".zip")


def _errand(launcher: Launcher, env_file: str | None) -> Errand:
    from phalanx.launcher.bundle import make_bundle
    from phalanx.launcher.dialing import Errand

    text = None
    if env_file is not None:
        text = Path(env_file).read_bytes().decode("utf-8", "surrogateescape")
    file = None if text is None else {"path": str(env_file), "text": text}
    return Errand(make_bundle(), file, launcher.start_timeout)


def _workspace(launcher: Launcher, needs: Needs) -> Workspace | None:
    from phalanx.launcher import workspace

    found = workspace.find(launcher.workspace, _working_directory(), needs.files)
    logs = getattr(launcher.log_spec or DefaultLogSpec(), "log_dir", None)
    if found is None or logs is None or _working_directory() is None:
        return found
    return found.leaving_out(os.path.abspath(logs))


def _main_file() -> str | None:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(path) if path else None


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
    _check_hosts(launcher)
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
    for field in ("extra_env_vars", "host_env_vars"):
        if not isinstance(getattr(launcher, field), Mapping):
            raise ConfigError(f"{field} is a dict, not {getattr(launcher, field)!r}.")
    for variables in (launcher.extra_env_vars, *launcher.host_env_vars.values()):
        if not isinstance(variables, Mapping):
            raise ConfigError(f"host_env_vars: {variables!r} is not a dict of a host's variables.")
        for name, value in variables.items():
            environment.check(name, value)
            if name in ranks.RANK_VARIABLES:
                raise ConfigError(f"extra_env_vars: {name} is set by phalanx for every worker.")
    if launcher.env_file is not None:
        try:
            with open(launcher.env_file, "rb"):
                pass
        except OSError as error:
            raise ConfigError(f"env_file {launcher.env_file}: {error.strerror}.") from None


def _check_hosts(launcher: Launcher) -> None:
    python = launcher.python
    if python is not None and not isinstance(python, str | Mapping | os.PathLike):
        raise ConfigError(f"python={python!r} is neither a path nor a dict of paths by host.")
    listed = launcher.hostnames if isinstance(launcher.hostnames, Sequence) else ()
    for field, by_host in (("python", python), ("host_env_vars", launcher.host_env_vars)):
        if isinstance(by_host, Mapping) and not isinstance(listed, str):
            for name in by_host.keys() - set(listed):
                near = difflib.get_close_matches(str(name), listed, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"{field} names {name!r}, which is not among hostnames.{hint}")
    count = launcher.parallel_logins
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(f"parallel_logins={count!r}: give a number, at least 1.")
    config = launcher.ssh_config_file
    if config is not None and not os.path.isfile(os.path.expanduser(config)):
        raise ConfigError(f"ssh_config_file {config}: there is no such file.")


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
