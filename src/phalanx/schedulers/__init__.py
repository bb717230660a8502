"""Schedulers: one interface, one module for each, and what plugins add.

A scheduler takes an app and gives an id; from the id alone, perhaps in another process, it tells
how the app stands, what it has printed, and ends it. `phalanx.testing.SchedulerSuite` is what each
must pass.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

from phalanx import plugins
from phalanx.errors import PluginError, UnknownScheduler
from phalanx.schedulers.authoring import make_app_id, need, replicas, workspace_files
from phalanx.schedulers.options import option, options
from phalanx.specs import AppDef, AppStatus, AppSummary, RetryPolicy

__all__ = [
    "Capabilities",
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
    "local_cwd": "phalanx.schedulers.local_cwd",
    "ssh": "phalanx.schedulers.ssh",
}
"""The module of each scheduler that comes with Phalanx; the first is the default."""


class Stream(Enum):
    """Which of a replica's streams."""

    COMBINED = "combined"
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True)
class LogLine:
    """One line that a replica printed, without its end."""

    role: str
    replica: int
    text: str
    time: float | None = None
    """When it came, in seconds since 1970, as far as that is known."""
    stream: Stream = Stream.COMBINED
    """Which stream it came from, where they are kept apart."""


@dataclass(frozen=True)
class Capabilities:
    """What a scheduler can do; what it cannot is refused before anything is submitted."""

    streams: bool = False
    """stdout and stderr can be told apart."""
    times: bool = False
    """Lines have times: `since` and `until` work."""
    mounts: bool = False
    grace: bool = False
    """`cancel` takes a `grace`: the seconds between asking replicas to end and making them."""
    retry_policies: frozenset[RetryPolicy] = frozenset()
    """The policies by which it starts a role again; without any, no role may have retries."""
    several_roles: bool = False
    workspace: bool = True
    """Replicas run with the files of a directory: `Role.workspace`, which is always set then."""


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
        """`session_name` is the middle part of handles, and may set apps apart."""
        self.session_name = session_name

    @abstractmethod
    def dryrun(self, app: AppDef, options: Options) -> Request:
        """What would be submitted. Pure: it creates nothing and changes nothing.

        Raises `ConfigError` for an app that it cannot run.
        """

    @abstractmethod
    def submit(self, request: Request) -> str:
        """Submit it; gives the app's id, which has no slash. Returns as soon as that is done."""

    @abstractmethod
    def describe(self, app_id: str) -> AppStatus | None:
        """How an app stands; None for one that is not there."""

    @abstractmethod
    def list(self) -> list[AppSummary]:
        """The apps it knows, the latest last."""

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
        """What a replica has printed; with `follow`, on until nothing more can come. Times are in
        seconds since 1970.

        Raises `LookupError` for an app, role or replica that is not there.
        """

    def unfinished_line(
        self, app_id: str, role: str, replica: int, *, stream: Stream = Stream.COMBINED
    ) -> str:
        """What a replica has printed of a line that has not ended, such as a progress bar.

        For those who follow it on a terminal; empty where only whole lines are known.
        """
        return ""

    @abstractmethod
    def cancel(self, app_id: str) -> None:
        """Have an app end. Idempotent; one that has ended, or is not there, is left as it is."""

    @abstractmethod
    def delete(self, app_id: str) -> None:
        """Forget an app; one that runs is cancelled first. Idempotent."""

    def close(self) -> None:
        """Let go of connections. Apps go on."""


def get_scheduler_factories() -> dict[str, Factory]:
    """What makes each scheduler, by name: ours and those of plugins, without loading any.

    A factory is called with the session's name. It raises `PluginError` for a plugin that is
    broken, `ConfigError` for a scheduler that needs a package that is not installed.
    """
    factories: dict[str, Factory] = {name: _built_in(module) for name, module in BUILT_IN.items()}
    for plugin in plugins.of(GROUP):
        factories.setdefault(plugin.name, _of_plugin(plugin))
    return factories


def problems() -> list[str]:
    """Names that are taken more than once."""
    taken = [plugin for plugin in plugins.of(GROUP) if plugin.name in BUILT_IN]
    return plugins.clashes(GROUP) + [
        f"the plugin {plugin} has the name of a scheduler of ours, which is used"
        for plugin in taken
    ]


def default_scheduler() -> str:
    """The one that is used when none is named."""
    return next(iter(BUILT_IN))


def create_scheduler(name: str, session_name: str, **kwargs: object) -> Scheduler[Any, Any]:
    """The scheduler of this name. Raises `ConfigError`, `PluginError`."""
    factories = get_scheduler_factories()
    if name not in factories:
        near = difflib.get_close_matches(name, factories, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(factories)}."
        raise UnknownScheduler(f"there is no scheduler {name!r}. {hint}")
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
            raise PluginError(plugin, f"it gave {made!r}, which is no phalanx.schedulers.Scheduler")
        with plugins.guarded(plugin):
            options(made.options)
        return made

    return create
