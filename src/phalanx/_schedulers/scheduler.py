"""Schedulers: one interface, one module for each, and what plugins add.

A scheduler takes an app and gives an id; from the id alone, perhaps in another process, it tells
how the app stands, what it has printed, and ends it. `phalanx.testing.SchedulerSuite` is what each
must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from phalanx._logs.lines import LogLine, Stream
from phalanx._schedulers.authoring import make_app_id, need, replicas, workspace_files
from phalanx._schedulers.options import option
from phalanx._specs import AppDef, AppStatus, AppSummary, RetryPolicy
from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from phalanx._schedulers.leases import Lease, LeaseRequest

__all__ = [
    "Capabilities",
    "LogLine",
    "Scheduler",
    "Stream",
    "make_app_id",
    "need",
    "option",
    "replicas",
    "workspace_files",
]

Options = TypeVar("Options")
Request = TypeVar("Request")

BUILT_IN = {
    "local_cwd": "phalanx._schedulers.supervised.local_cwd",
    "ssh": "phalanx._schedulers.supervised.ssh",
    "slurm": "phalanx._schedulers.slurm",
    "local_docker": "phalanx._schedulers.docker",
    "kubernetes": "phalanx._schedulers.kubernetes",
    "ray": "phalanx._schedulers.ray",
    "aws_batch": "phalanx._schedulers.aws_batch",
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
    host_files: bool = False
    """Replicas see their host's files as they are: mounts are left out, with a warning."""
    grace: bool = False
    """`cancel` takes a `grace`: the seconds between asking replicas to end and making them."""
    retry_policies: frozenset[RetryPolicy] = frozenset()
    """The policies by which it starts a role again; without any, no role may have retries."""
    several_roles: bool = False
    """Apps may have more than one role."""
    workspace: bool = True
    """Replicas run with the files of a directory: `Role.workspace`, which is always set then."""
    runs_images: bool = False
    """Replicas run in their role's image, with the workspace copied over it; `Role.workspace` is
    None where the image is to run as it is."""
    keeps_apps: bool = False
    """Apps that have ended take up room there, until they are deleted: `phalanx clean` does it."""
    lends_hosts: bool = False
    """`lend` gives hosts to launches: `Launcher(scheduler=…)`."""


class Scheduler(ABC, Generic[Options, Request]):
    """What runs apps. Subclass it, and register what makes one under `phalanx.schedulers`."""

    options: ClassVar[type[Any]]
    """A dataclass, its fields made with `option(default, help=…)`: flags, config keys and help
    come from it."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    rank0_env: str = "PHALANX_RANK0_HOST"
    """The variable in which a replica finds the address of its role's first."""

    rights: ClassVar[str] = ""
    """What an administrator applies so that users may use it, where that is needed."""

    takes_dry_run: ClassVar[bool] = False
    """`submit` is given the whole dry run, not only the request, as TorchX's schedulers have it."""

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

    def expect(self, app_id: str) -> None:
        """Hear that an app is about to be described, perhaps among many. Does not block.

        For those that can ask for the states of many at once.

        Args:
            app_id: What `submit` gave, perhaps in another process.
        """

    @abstractmethod
    def list(self) -> list[AppSummary]:
        """The apps that it knows, the latest last."""

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
            NotImplementedError: It has no logs; that is said to whoever asks for them.
        """
        raise NotImplementedError("it has no logs")

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

    def lines_back(
        self, app_id: str, role: str, replica: int, *, stream: Stream = Stream.COMBINED
    ) -> Iterator[LogLine] | None:
        """What a replica has printed so far, from its last line to the first.

        For those who want the last lines of a long log.

        Args:
            app_id: What `submit` gave.
            role: The role's name.
            replica: The replica's number in its role.
            stream: Which stream.

        Returns:
            Lines; None where they can only be read from the beginning.

        Raises:
            LookupError: There is no such app, role or replica.
        """
        return None

    @abstractmethod
    def cancel(self, app_id: str) -> None:
        """Cancel an app. Idempotent; one that has ended, or is not there, is left as it is.

        Args:
            app_id: What `submit` gave.
        """

    def delete(self, app_id: str) -> None:
        """Delete an app; one that runs is cancelled first. Idempotent.

        Args:
            app_id: What `submit` gave.

        Raises:
            NotImplementedError: It cannot delete apps; that is said to whoever wants it.
        """
        raise NotImplementedError("it cannot delete apps")

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
