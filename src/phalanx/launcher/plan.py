"""From what the user asked for to what will be started: pure checks and the tables that follow.

Nothing torch is imported. Nothing is started, but for hosts that have to be asked how many workers
they take. Every mistake is a `ConfigError`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from phalanx import environment, hosts, ranks, wire
from phalanx.errors import ConfigError
from phalanx.launcher.fields import check, check_bounds, need_torch
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

_OF_AN_INTERPRETER = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX")


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
    make_frame: Callable[[Place, Member], wire.Prepare]
    """The first frame for a member at a place."""
    meets_others: bool = False
    """It is one host of an app whose other hosts are others' concern."""
    run_id: str = ""
    """What workers know the app by; its own id if empty."""
    role: str = "default"
    exits: bool = False
    """The workers are programs: how each exits is how it ended."""

    def member(self, agent: int) -> Member:
        """An agent's host, at the ranks that it would have with all of them."""
        return next(member for member in self.members if member.agent == agent)

    @property
    def is_elastic(self) -> bool:
        """A lost host, or a failed worker, need not be the end."""
        settings = self.settings
        fewest = settings.min_hosts or len(self.members)
        most = settings.max_hosts or len(self.members)
        changes = fewest < len(self.members) or most != len(self.members)
        return settings.max_restarts > 0 or changes or self.meets_others

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
    check_bounds(launcher, len(places))
    # With room for more hosts than are listed, others may be added.
    room = (launcher.max_hosts or 0) > len(places)
    away = room or any(place.target is not None for place in places)
    if launcher.start_method == "inline" and away:
        raise ConfigError('start_method="inline" runs in this process, not on other hosts.')
    if launcher.backend not in (None, "auto") and not away:
        need_torch(str(launcher.backend))
    env_file = None if launcher.env_file is None else str(Path(launcher.env_file).absolute())
    errand = _errand(launcher, env_file) if away else None
    workspace = _workspace(launcher, needs) if away else None
    if launcher.fetch and away:
        _check_fetch(launcher, workspace)
    tokens = Tokens({} if workspace is None else {n: r.path for n, r in workspace.roots.items()})
    app = f"{_slug(launcher.name or title)}-{secrets.token_hex(4)}"
    here = _prepare(launcher, needs, title, app)
    counts, dials = count_workers(launcher, places, errand, known)
    try:
        members = ranks.members([place.name for place in places], counts)
        elsewhere = _Elsewhere(launcher, needs, workspace, wire.Away(tokens.roots))
        make_frame = functools.partial(_for_place, here, elsewhere=elsewhere, networked=away)
        frames = tuple(map(make_frame, places, members))
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
        make_frame=make_frame,
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
        preempt=signal.Signals[launcher.preempt_signal],
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
        copied = environment.copied(environment.users(os.environ), patterns)
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


def _check_fetch(launcher: Launcher, workspace: Workspace | None) -> None:
    """Where workers do not run in the project, nobody could say what they wrote."""
    cwd = _working_directory()
    roots = [] if workspace is None else [root.path for root in workspace.roots.values()]
    if cwd is None or not any(f"{cwd}/".startswith(f"{root.rstrip('/')}/") for root in roots):
        raise ConfigError(
            "fetch is for files of the project that hosts are sent, and workspace="
            f"{launcher.workspace!r} leaves the working directory out. Change one of the two."
        )


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
