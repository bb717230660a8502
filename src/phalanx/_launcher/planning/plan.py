"""From what the user asked for to what will be started: checks, and the plan that follows.

Nothing torch is imported, and nothing is started. Every mistake is a `ConfigError`. `draft_plan`
does what needs no host; with facts of the hosts that depend on them, `Draft.finish` makes the plan.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx import _wire as wire
from phalanx._core import environment, ranks
from phalanx._core.host_bounds import host_bounds
from phalanx._core.ids import AgentId, HostIndex
from phalanx._core.rounds import Member
from phalanx._launcher.planning.listed_hosts import HostFacts, ListedHost, count_workers, list_hosts
from phalanx._launcher.planning.validation import check, check_host_count, need_torch
from phalanx._launcher.project.shared_directories import SharedDirectories
from phalanx._logs.spec import DefaultLogSpec
from phalanx._system.installed_files import is_installed
from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from phalanx._launcher.launch_options import LaunchOptions
    from phalanx._launcher.planning.imports import Needs
    from phalanx._launcher.project.project_files import Project
    from phalanx._launcher.transport.dial import RemoteSetup
    from phalanx._launcher.transport.targets import Target
    from phalanx._logs.spec import LogSpec

_OF_AN_INTERPRETER = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX")


@dataclass(frozen=True)
class HostPlan:
    """One host of a launch: which it is, how to get there, and what its agent is told first."""

    member: Member
    target: Target | None
    """How to get there; None for this machine."""
    prepare: wire.Prepare
    own_variables: Mapping[str, str]
    """The environment variables that were given for it, rather than copied."""


@dataclass(frozen=True)
class HostPart:
    """What a host brings to an app whose other hosts are others' concern."""

    agent: AgentId
    hostname: str
    run_id: str = ""
    """What workers know the app by; its own id if empty."""
    role: str = "default"
    exits: bool = False
    """The workers are programs: how each exits is how it ended."""
    is_alone: bool = False
    """No other host can come."""
    frame: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the first frame that are otherwise than this process's own."""


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before anything starts. Data: nothing in it is open or running."""

    app: str
    hosts: tuple[HostPlan, ...]
    frames: FrameMaker
    remote_setup: RemoteSetup | None
    """What agents on other hosts need first; None when all are local."""
    project: Project | None
    """The project, if it may have to be sent."""
    shared: SharedDirectories
    env_file: str | None
    options: LaunchOptions
    part: HostPart | None = None
    """What this host is, where it meets others by itself."""

    @functools.cached_property
    def members(self) -> tuple[Member, ...]:
        """The hosts, at the ranks that they would have with all of them."""
        return tuple(host.member for host in self.hosts)

    def member(self, agent: AgentId) -> Member:
        """An agent's host, at the ranks that it would have with all of them."""
        return self.members[self.index(agent)]

    def index(self, agent: AgentId) -> HostIndex:
        """The position of an agent's host in the plan."""
        return self._indices[agent]

    @functools.cached_property
    def _indices(self) -> dict[AgentId, HostIndex]:
        return {member.agent: HostIndex(i) for i, member in enumerate(self.members)}

    @property
    def directory(self) -> str | None:
        """The launcher's working directory; None if it was deleted."""
        return self.hosts[0].prepare.cwd

    @property
    def title(self) -> str:
        """What the app is called in titles."""
        return self.hosts[0].prepare.title

    @property
    def meets_others(self) -> bool:
        """It is one host of an app whose other hosts are others' concern."""
        return self.part is not None

    @property
    def role(self) -> str:
        """What its workers are together."""
        return "default" if self.part is None else self.part.role

    @property
    def exits(self) -> bool:
        """The workers are programs: how each exits is how it ended."""
        return self.part is not None and self.part.exits

    @property
    def bounds(self) -> tuple[int, int]:
        """The fewest and the most hosts that a round may have."""
        return host_bounds(len(self.hosts), self.options.min_hosts, self.options.max_hosts)

    @property
    def is_elastic(self) -> bool:
        """A lost host, or a failed worker, need not be the end."""
        count = len(self.hosts)
        changes = self.bounds != (count, count)
        return self.options.max_restarts > 0 or changes or self.meets_others


@dataclass(frozen=True)
class Draft:
    """A launch that was checked, but for how many workers each of its hosts has."""

    options: LaunchOptions
    hosts: tuple[ListedHost, ...]
    remote_setup: RemoteSetup | None
    project: Project | None
    env_file: str | None
    needs: Needs
    title: str
    directory: str | None
    app: str = ""
    """The app's id, where it has one already."""

    def only(self, indexes: Sequence[int], log_spec: LogSpec | None) -> Draft:
        """The same launch on some of its hosts, with its output elsewhere."""
        workers = self.options.workers_per_host
        if isinstance(workers, list | tuple):
            workers = [workers[i] for i in indexes]
        options = dataclasses.replace(self.options, workers_per_host=workers, log_spec=log_spec)
        hosts = tuple(self.hosts[i] for i in indexes)
        return dataclasses.replace(self, options=options, hosts=hosts, app="")

    def finish(self, facts: Mapping[str, HostFacts], part: HostPart | None = None) -> Plan:
        """The plan, by what is known of hosts whose number of workers depends on that.

        Raises `ConfigError`.
        """
        options, title = self.options, self.title
        counts = count_workers(options, self.hosts, facts)
        members = ranks.members([host.name for host in self.hosts], counts)
        if part is not None:
            members = ranks.lay_out([(part.agent, part.hostname, counts[0], part.role)])
        roots = {} if self.project is None else self.project.roots
        shared = SharedDirectories({name: root.path for name, root in roots.items()})
        app = self.app or make_launch_id(options.name or title)
        frames = FrameMaker(
            options=options,
            needs=self.needs,
            project=self.project,
            remote=wire.RemoteContext(shared.roots),
            local=_prepare(options, self.needs, title, app, self.directory),
            is_networked=self.remote_setup is not None,
        )
        hosts = tuple(map(frames.host_plan, self.hosts, members))
        if part is not None:
            frame = dataclasses.replace(
                hosts[0].prepare, **{"networked": not part.is_alone, **part.frame}
            )
            hosts = (dataclasses.replace(hosts[0], prepare=frame),)
        return Plan(
            app=app,
            hosts=hosts,
            frames=frames,
            remote_setup=self.remote_setup,
            project=self.project,
            shared=shared,
            env_file=self.env_file,
            options=options,
            part=part,
        )


def draft_plan(
    options: LaunchOptions,
    needs: Needs,
    title: str,
    directory: str | None = None,
    hosts: Sequence[ListedHost] | None = None,
) -> Draft:
    """Check what was asked for, as far as that can be done without any host. Raises `ConfigError`.

    `directory` is the one that workers run in, by default the current one; `hosts` are those to
    run on, by default the ones that the options list.
    """
    options = dataclasses.replace(options)
    check(options)
    if hosts is None:
        hosts = list_hosts(options, os.environ)
    check_host_count(options, len(hosts))
    # With room for more hosts than are listed, others may be added.
    room = host_bounds(len(hosts), options.min_hosts, options.max_hosts)[1] > len(hosts)
    remote = room or any(host.target is not None for host in hosts)
    if options.start_method == "inline" and remote:
        raise ConfigError('start_method="inline" runs in this process, not on other hosts.')
    if options.backend not in (None, "auto") and not remote:
        need_torch(str(options.backend))
    env_file = None if options.env_file is None else str(Path(options.env_file).absolute())
    cwd = directory or _working_directory()
    project = _find_project(options, needs, cwd) if remote else None
    if options.fetch and remote:
        _check_fetch(options, project, cwd)
    return Draft(
        options=options,
        hosts=tuple(hosts),
        remote_setup=_remote_setup(options, env_file) if remote else None,
        project=project,
        env_file=env_file,
        needs=needs,
        title=title,
        directory=cwd,
    )


def make_plan(options: LaunchOptions, needs: Needs, title: str) -> Plan:
    """The plan of a launch none of whose hosts has to be asked. Raises `ConfigError`."""
    return draft_plan(options, needs, title).finish({})


def with_host(plan: Plan, host: ListedHost, workers: int) -> Plan:
    """The plan with a host in addition, as its last."""
    known = [(m.agent, m.hostname, m.workers, m.role) for m in plan.members]
    added = (AgentId(len(known)), host.name, workers, plan.role)
    *_, member = ranks.lay_out([*known, added])
    return dataclasses.replace(plan, hosts=(*plan.hosts, plan.frames.host_plan(host, member)))


def _prepare(
    options: LaunchOptions, needs: Needs, title: str, app: str, directory: str | None
) -> wire.Prepare:
    """The first frame for an agent on this machine, but for the number of its workers."""
    return wire.Prepare(
        app=app,
        preload=_preload(options, needs),
        late=needs.late if options.preload == "auto" else None,
        python_path=tuple(_python_path(directory)),
        environment={
            **(environment.passing(os.environ) if options.env_file is None else {}),
            **options.extra_env_vars,
        },
        passing=options.env_file is None,
        argv=tuple(map(str, sys.argv)),
        cwd=directory,
        main_file=_main_file(),
        title=title,
        spawn=options.start_method == "spawn",
        workers=1,
        heartbeat=min(5.0, options.host_timeout / 4),
        orphan_timeout=options.orphan_timeout,
        stop_grace=options.stop_grace,
        preempt=signal.Signals[options.preempt_signal],
        interface=options.interface or "",
    )


@dataclass(frozen=True)
class FrameMaker:
    """Makes the first frame for a host, from what they all have in common."""

    options: LaunchOptions
    needs: Needs
    project: Project | None
    remote: wire.RemoteContext
    local: wire.Prepare
    """The frame for this machine, but for the number of workers."""
    is_networked: bool

    def host_plan(self, host: ListedHost, member: Member) -> HostPlan:
        """A host's part of the plan."""
        options = self.options
        own = {**options.extra_env_vars, **options.host_env_vars.get(host.name, {})}
        others = self.is_networked
        frame = dataclasses.replace(
            self.local, workers=member.workers, networked=others, probed=others
        )
        if host.target is None:
            frame = dataclasses.replace(frame, environment={**self.local.environment, **own})
        else:
            frame = self._for_remote(frame, host.target, own)
        return HostPlan(member, host.target, frame, own)

    def _for_remote(
        self, frame: wire.Prepare, target: Target, own: Mapping[str, str]
    ) -> wire.Prepare:
        preload = frame.preload
        if self.options.preload == "auto":
            preload += self.needs.remote_preload
        path = [entry for entry in frame.python_path if _is_users(entry)]
        if self.project is not None:
            # Such as an editable install, which need not be in sys.path here.
            outside = [root.path for root in self.project.roots.values() if root.is_outside]
            path += [entry for entry in outside if entry not in path]
        reconnect_timeout = target.reconnect_timeout or 0.0
        if target.reconnect_timeout is not None and self.options.reconnect_timeout is not None:
            reconnect_timeout = self.options.reconnect_timeout
        return dataclasses.replace(
            frame,
            preload=preload,
            python_path=tuple(path),
            environment={**self._copied(target), **own},
            passing=False,
            remote=self.remote,
            reconnect_timeout=reconnect_timeout,
            reconnect_key=secrets.token_hex(32) if reconnect_timeout else "",
        )

    def _copied(self, target: Target) -> dict[str, str]:
        patterns = self.options.env_vars
        copied = environment.copied(environment.users(os.environ), patterns)
        # Where this interpreter is, theirs need not be; what leads to it is no use with another.
        chosen = target.pythons[0] != sys.executable
        for name in ("PYTHONHOME", *(_OF_AN_INTERPRETER if chosen else ())):
            if name not in patterns or patterns == environment.COPIED_BY_DEFAULT:
                copied.pop(name, None)
        return copied


def _python_path(directory: str | None) -> Iterator[str]:
    """Where imports are looked for. In a directory that was deleted nothing can be: Python itself
    passes over it by the name "", and fails by any other.
    """
    for entry in sys.path:
        if isinstance(entry, str) and (directory is not None or entry not in ("", os.curdir)):
            yield entry or os.curdir


def _is_users(path: str) -> bool:
    """An entry for the user's own code, not one that every interpreter has of its own."""
    return not is_installed(path + os.sep) and not path.endswith(".zip")


def _remote_setup(options: LaunchOptions, env_file: str | None) -> RemoteSetup:
    from phalanx._launcher.transport.bundle import make_bundle
    from phalanx._launcher.transport.dial import RemoteSetup

    text = None
    if env_file is not None:
        text = Path(env_file).read_bytes().decode("utf-8", "surrogateescape")
    file = None if text is None else {"path": str(env_file), "text": text}
    return RemoteSetup(make_bundle(), file, options.start_timeout)


def _find_project(options: LaunchOptions, needs: Needs, directory: str | None) -> Project | None:
    from phalanx._launcher.project import project_files

    found = project_files.find(options.workspace, directory, needs.files)
    logs = getattr(options.log_spec or DefaultLogSpec(), "log_dir", None)
    if found is None or logs is None or directory is None:
        return found
    return found.leaving_out(os.path.normpath(os.path.join(directory, logs)))


def _check_fetch(options: LaunchOptions, project: Project | None, cwd: str | None) -> None:
    """Where workers do not run in the project, nobody could say what they wrote."""
    roots = [] if project is None else [root.path for root in project.roots.values()]
    if cwd is None or not any(f"{cwd}/".startswith(f"{root.rstrip('/')}/") for root in roots):
        raise ConfigError(
            "fetch copies files of the project that is sent to hosts, but workspace="
            f"{options.workspace!r} does not include the working directory. Change one of them."
        )


def _main_file() -> str | None:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return os.path.abspath(path) if path else None
    except OSError:
        return None  # in a directory that was deleted


def _preload(options: LaunchOptions, needs: Needs) -> tuple[wire.Import, ...]:
    if options.preload != "auto":
        return tuple(wire.Import(name) for name in options.preload)
    if not needs.preload or "cloudpickle" in (needs.late or ()):
        return needs.preload
    # What most functions are unpickled with: beside packages it costs nothing, in each worker
    # hundreds of pages.
    return tuple(dict.fromkeys((*needs.preload, wire.Import("cloudpickle"))))


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # deleted under us: the workers inherit it as it is


def make_launch_id(name: str) -> str:
    """A new id for a launch, which begins with its name."""
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.") or "app"
    return f"{slug}-{secrets.token_hex(4)}"
