"""Schedulers: one interface, one module for each, and what plugins add.

A scheduler takes an app and gives an id; from the id alone, perhaps in another process, it tells
how the app stands, what it has printed, and ends it. `phalanx.testing.SchedulerSuite` is what each
must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

from phalanx import _plugins as plugins
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._logs.lines import LogLine, Stream
from phalanx._schedulers.authoring import make_app_id, need, replicas, workspace_files
from phalanx._schedulers.lending import Lease, LeasePhase, LeaseRequest, LeaseStatus, LentHost
from phalanx._schedulers.options import option, options
from phalanx._specs import AppDef, AppStatus, AppSummary, RetryPolicy
from phalanx.errors import ConfigError, PluginError, UnknownScheduler

__all__ = [
    "Capabilities",
    "Lease",
    "LeasePhase",
    "LeaseRequest",
    "LeaseStatus",
    "LentHost",
    "LogLine",
    "Scheduler",
    "Stream",
    "create_scheduler",
    "default_scheduler",
    "get_scheduler_factories",
    "make_app_id",
    "need",
    "option",
    "replicas",
    "workspace_files",
]

GROUP = "phalanx.schedulers"

Options = TypeVar("Options")
Request = TypeVar("Request")
Factory = Callable[..., "Scheduler[Any, Any]"]

BUILT_IN = {
    "local_cwd": "phalanx._schedulers.local_cwd",
    "ssh": "phalanx._schedulers.ssh",
    "slurm": "phalanx._schedulers.slurm",
}
"""The module of each scheduler that comes with Phalanx; the first is the default."""


@dataclass(frozen=True)
class Capabilities:
    """What a scheduler can do; what it cannot is refused before anything is submitted."""

    streams: bool = False
    """stdout and stderr can be told apart."""
    times: bool = False
    """Lines have times: `since` and `until` work."""
    mounts: bool = False
    """Roles may have mounts."""
    grace: bool = False
    """`cancel` takes a `grace`: the seconds between asking replicas to end and making them."""
    retry_policies: frozenset[RetryPolicy] = frozenset()
    """The policies by which it starts a role again; without any, no role may have retries."""
    several_roles: bool = False
    """Apps may have more than one role."""
    workspace: bool = True
    """Replicas run with the files of a directory: `Role.workspace`, which is always set then."""
    lends_hosts: bool = False
    """`lend` gives hosts to launches: `Launcher(scheduler=…)`."""


class Scheduler(ABC, Generic[Options, Request]):
    """What runs apps. Subclass it, and register what makes one under `phalanx.schedulers`."""

    options: ClassVar[type[Any]]
    """A dataclass, its fields made with `option(default, help=…)`: flags, config keys and help
    come from it."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    rank0_env: ClassVar[str] = "PHALANX_RANK0_HOST"
    """The variable in which a replica finds the address of its role's first."""

    poll_interval: ClassVar[float] = 2.0
    """Seconds between two questions of how an app stands, for those who wait."""

    def __init__(self, session_name: str, **_: object) -> None:
        """Remember the session; connect when something is asked.

        Args:
            session_name: The middle part of handles, which may set apps apart.
        """
        self.session_name = session_name

    @abstractmethod
    def dryrun(self, app: AppDef, options: Options) -> Request:
        """What would be submitted. Pure: creates nothing, changes nothing.

        Args:
            app: What to run, with its macros in place.
            options: An instance of the class `options`.

        Returns:
            A request, for `submit`; `--dryrun` prints it.

        Raises:
            ConfigError: It cannot run such an app.
        """

    @abstractmethod
    def submit(self, request: Request) -> str:
        """Submit a request. Return as soon as that is done.

        Args:
            request: What `dryrun` gave.

        Returns:
            The app's id, which has no slash.
        """

    @abstractmethod
    def describe(self, app_id: str) -> AppStatus | None:
        """The status of an app.

        Args:
            app_id: What `submit` gave, perhaps in another process.

        Returns:
            The status; None if there is no such app.
        """

    @abstractmethod
    def list(self) -> list[AppSummary]:
        """The apps that it knows, the latest last."""

    @abstractmethod
    def logs(
        self,
        app_id: str,
        role: str,
        replica: int,
        *,
        stream: Stream = Stream.COMBINED,
        since: float | None = None,
        until: float | None = None,
        follow: bool = False,
    ) -> Iterator[LogLine]:
        """What a replica has printed.

        Args:
            app_id: What `submit` gave.
            role: The role's name.
            replica: The replica's number in its role.
            stream: Which stream, if `capabilities.streams`.
            since: Only lines since then, in seconds since 1970, if `capabilities.times`.
            until: Only lines until then.
            follow: Also yield new lines, until nothing more can come.

        Yields:
            Lines.

        Raises:
            LookupError: There is no such app, role or replica.
        """

    def unfinished_line(
        self, app_id: str, role: str, replica: int, *, stream: Stream = Stream.COMBINED
    ) -> str:
        """What a replica has printed of a line that has not ended, such as a progress bar.

        For those who follow it on a terminal.

        Args:
            app_id: What `submit` gave.
            role: The role's name.
            replica: The replica's number in its role.
            stream: Which stream.

        Returns:
            The text so far; empty where only whole lines are known.
        """
        return ""

    @abstractmethod
    def cancel(self, app_id: str) -> None:
        """Cancel an app. Idempotent; one that has ended, or is not there, is left as it is.

        Args:
            app_id: What `submit` gave.
        """

    @abstractmethod
    def delete(self, app_id: str) -> None:
        """Delete an app; one that runs is cancelled first. Idempotent.

        Args:
            app_id: What `submit` gave.
        """

    def lend(self, request: LeaseRequest) -> Lease:
        """Ask for hosts, for a launch, if `capabilities.lends_hosts`. Return without waiting.

        Args:
            request: How many, and the options.

        Returns:
            A lease, which says how the request stands.

        Raises:
            ConfigError: It cannot lend such hosts.
            SchedulerError: It refuses.
        """
        raise ConfigError(f"{type(self).__name__} does not lend hosts.")

    def close(self) -> None:
        """Let go of connections. Apps go on."""


def get_scheduler_factories() -> dict[str, Factory]:
    """What creates each scheduler, by name: ours and those of plugins, without loading any.

    Returns:
        Functions of a session's name. They raise `PluginError` for a plugin that is broken, and
        `ConfigError` for a scheduler that needs a package that is not installed.
    """
    factories: dict[str, Factory] = {name: _built_in(module) for name, module in BUILT_IN.items()}
    for plugin in plugins.of(GROUP):
        factories.setdefault(plugin.name, _of_plugin(plugin))
    return factories


def problems() -> list[str]:
    """Names that are taken more than once."""
    taken = [plugin for plugin in plugins.of(GROUP) if plugin.name in BUILT_IN]
    return plugins.clashes(GROUP) + [
        f"the plugin {plugin} is ignored: phalanx has a scheduler of that name" for plugin in taken
    ]


def default_scheduler() -> str:
    """The name of the scheduler that is used when none is named."""
    return next(iter(BUILT_IN))


def create_scheduler(name: str, session_name: str, **kwargs: object) -> Scheduler[Any, Any]:
    """Create a scheduler by name.

    Args:
        name: `local_cwd`, `ssh`, `slurm`, or the name that a plugin has registered.
        session_name: The middle part of handles.
        **kwargs: For the scheduler's own constructor.

    Raises:
        UnknownScheduler: There is no such scheduler.
        ConfigError: It needs a package that is not installed.
        PluginError: The plugin that has it is broken.
    """
    factories = get_scheduler_factories()
    if name not in factories:
        hint = did_you_mean(closest(name, factories), f"Choose one of {', '.join(factories)}.")
        raise UnknownScheduler(f"unknown scheduler {name!r}.{hint}")
    return factories[name](session_name, **kwargs)


def _built_in(module: str) -> Factory:
    def create(session_name: str, **kwargs: object) -> Scheduler[Any, Any]:
        made: Scheduler[Any, Any] = import_module(module).create_scheduler(session_name, **kwargs)
        return made

    return create


def _of_plugin(plugin: plugins.Plugin) -> Factory:
    def create(session_name: str, **kwargs: object) -> Scheduler[Any, Any]:
        made = plugin.call(session_name, **kwargs)
        if not isinstance(made, Scheduler):
            raise PluginError(
                plugin, f"it returned {made!r}, which is not a phalanx.schedulers.Scheduler"
            )
        with plugins.guarded(plugin):
            options(made.options)
        return made

    return create
