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

from phalanx import _wire as wire
from phalanx._core import environment, ranks
from phalanx._core.rounds import Member
from phalanx._launcher.planning.hosts import Dials, HostFacts, ListedHost
from phalanx._launcher.planning.hosts import counts as count_workers
from phalanx._launcher.planning.hosts import find as find_places
from phalanx._launcher.planning.validation import check, check_bounds, need_torch
from phalanx._launcher.project.shared_directories import SharedDirectories
from phalanx._logs.spec import DefaultLogSpec
from phalanx._system import machine
from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from phalanx._launcher.launcher import Launcher
    from phalanx._launcher.planning.imports import Needs
    from phalanx._launcher.project.workspace import Workspace
    from phalanx._launcher.transport.dial import RemoteSetup
    from phalanx._launcher.transport.targets import Target

_OF_AN_INTERPRETER = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX")


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before anything starts."""

    app: str
    members: tuple[Member, ...]
    prepare: tuple[wire.Prepare, ...]
    """The first frame for each member."""
    places: tuple[ListedHost, ...]
    """Where each member is."""
    dials: Dials
    """The hosts that had to be dialled for the plan to be made."""
    remote_setup: RemoteSetup | None
    """What agents on other hosts need first; None when all are here."""
    workspace: Workspace | None
    """The project, if it may have to be sent."""
    tokens: SharedDirectories
    env_file: str | None
    settings: Launcher
    make_frame: Callable[[ListedHost, Member], wire.Prepare]
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
    launcher: Launcher,
    needs: Needs,
    title: str,
    known: Mapping[str, HostFacts] = MappingProxyType({}),
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
    remote = room or any(place.target is not None for place in places)
    if launcher.start_method == "inline" and remote:
        raise ConfigError('start_method="inline" runs in this process, not on other hosts.')
    if launcher.backend not in (None, "auto") and not remote:
        need_torch(str(launcher.backend))
    env_file = None if launcher.env_file is None else str(Path(launcher.env_file).absolute())
    remote_setup = _remote_setup(launcher, env_file) if remote else None
    workspace = _workspace(launcher, needs) if remote else None
    if launcher.fetch and remote:
        _check_fetch(launcher, workspace)
    tokens = SharedDirectories(
        {} if workspace is None else {n: r.path for n, r in workspace.roots.items()}
    )
    app = f"{_slug(launcher.name or title)}-{secrets.token_hex(4)}"
    here = _prepare(launcher, needs, title, app)
    counts, dials = count_workers(launcher, places, remote_setup, known)
    try:
        members = ranks.members([place.name for place in places], counts)
        remote_preload = _RemoteFrames(launcher, needs, workspace, wire.RemoteContext(tokens.roots))
        make_frame = functools.partial(
            _for_place, here, remote_preload=remote_preload, networked=remote
        )
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
        remote_setup=remote_setup,
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
class _RemoteFrames:
    """What the first frame for an agent on another host is made from."""

    launcher: Launcher
    needs: Needs
    workspace: Workspace | None
    remote: wire.RemoteContext

    def frame(self, frame: wire.Prepare, target: Target, own: Mapping[str, str]) -> wire.Prepare:
        """The frame for this machine as one for that."""
        launcher, preload = self.launcher, frame.preload
        if launcher.preload == "auto":
            preload += self.needs.remote_preload
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
            remote=self.remote,
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
    here: wire.Prepare,
    place: ListedHost,
    member: Member,
    remote_preload: _RemoteFrames,
    *,
    networked: bool,
) -> wire.Prepare:
    own = _own_variables(remote_preload.launcher, place)
    frame = dataclasses.replace(here, workers=member.workers, networked=networked)
    if place.target is None:
        return dataclasses.replace(frame, environment={**here.environment, **own})
    return remote_preload.frame(frame, place.target, own)


def _own_variables(launcher: Launcher, place: ListedHost) -> dict[str, str]:
    return {**launcher.extra_env_vars, **launcher.host_env_vars.get(place.name, {})}


def _is_users(path: str) -> bool:
    """A place of the user's own code, not one that every interpreter has of its own."""
    return not machine.is_installed(path + os.sep) and not path.endswith(".zip")


def _remote_setup(launcher: Launcher, env_file: str | None) -> RemoteSetup:
    from phalanx._launcher.transport.bundle import make_bundle
    from phalanx._launcher.transport.dial import RemoteSetup

    text = None
    if env_file is not None:
        text = Path(env_file).read_bytes().decode("utf-8", "surrogateescape")
    file = None if text is None else {"path": str(env_file), "text": text}
    return RemoteSetup(make_bundle(), file, launcher.start_timeout)


def _workspace(launcher: Launcher, needs: Needs) -> Workspace | None:
    from phalanx._launcher.project import workspace

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
