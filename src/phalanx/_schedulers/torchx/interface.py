"""TorchX's interface of schedulers, for plugins that were written for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from phalanx._logs.lines import Stream
from phalanx._schedulers.torchx.dryrun_info import AppDryRunInfo
from phalanx._schedulers.torchx.runopts import runopts
from phalanx._specs import NULL_RESOURCE, AppDef, AppState, Role, RoleStatus

NONE = "<NONE>"
NOT_SET = "<NOT_SET>"

T = TypeVar("T")


@dataclass
class DescribeAppResponse:
    """How an app stands, as TorchX's schedulers say it."""

    app_id: str = NOT_SET
    """Its id."""
    state: AppState = AppState.UNSUBMITTED
    """Where it stands."""
    num_restarts: int = -1
    """How often it was started anew; -1 where that is not known."""
    msg: str = NONE
    """What went wrong, or is waited for."""
    structured_error_msg: str = NONE
    """The first error."""
    ui_url: str | None = None
    """Where a browser shows it."""
    roles_statuses: list[RoleStatus] = field(default_factory=list)
    """Its replicas."""
    roles: list[Role] = field(default_factory=list)
    """What it was made from."""


@dataclass
class ListAppResponse:
    """An app in a listing, as TorchX's schedulers say it."""

    app_id: str
    """Its id."""
    state: AppState
    """Where it stands."""
    app_handle: str = NOT_SET
    """Its handle."""
    name: str = ""
    """Its name, where it is known."""

    def __hash__(self) -> int:
        return hash((self.app_id, self.app_handle, self.state))


class TorchxScheduler(ABC, Generic[T]):
    """A scheduler with TorchX's methods. A plugin subclasses it as it did TorchX's `Scheduler`."""

    def __init__(self, backend: str, session_name: str) -> None:
        """Remember both.

        Args:
            backend: The scheduler's name.
            session_name: The middle part of handles.
        """
        self.backend = backend
        self.session_name = session_name

    @abstractmethod
    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        """Submit a request.

        Args:
            dryrun_info: What `submit_dryrun` gave.

        Returns:
            The app's id.
        """

    @abstractmethod
    def _submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo:
        """What would be submitted."""

    @abstractmethod
    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """How an app stands; None if there is no such app.

        Args:
            app_id: What `schedule` gave.
        """

    @abstractmethod
    def _cancel_existing(self, app_id: str) -> None:
        """Cancel an app that is there."""

    def list(self) -> list[ListAppResponse]:
        """The apps that it knows.

        Raises:
            NotImplementedError: It does not list apps.
        """
        raise NotImplementedError(f"{type(self).__name__} does not list apps")

    def submit(self, app: AppDef, cfg: Any, workspace: str | None = None) -> str:
        """Submit an app, without a runner.

        Args:
            app: What to run.
            cfg: The options.
            workspace: The directory whose files it runs with, for schedulers that build images.

        Returns:
            The app's id.
        """
        resolved = self.run_opts().resolve(cfg)
        if workspace:
            self.build_workspace(app, workspace, resolved)
        return self.schedule(self.submit_dryrun(app, resolved))

    def build_workspace(self, app: AppDef, workspace: str, cfg: Mapping[str, Any]) -> None:
        """Have the first role run with the files of a directory, where this builds images.

        Args:
            app: What to run.
            workspace: The directory.
            cfg: The options.

        Raises:
            NotImplementedError: It builds no images.
        """
        build = getattr(self, "build_workspace_and_update_role", None)
        if build is None:
            raise NotImplementedError(f"{type(self).__name__} takes no workspace")
        build(app.roles[0], workspace, cfg)

    def submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo:
        """What would be submitted.

        Args:
            app: What to run.
            cfg: The options.
        """
        resolved = self.run_opts().resolve(cfg)
        info = self._submit_dryrun(app, resolved)
        if not isinstance(info, AppDryRunInfo):
            raise TypeError(f"_submit_dryrun gave {info!r}, not an AppDryRunInfo")
        for role in app.roles:
            change = getattr(role, "pre_proc", None)
            info = info if change is None else change(self.backend, info)
        info._app = app
        info._cfg = resolved
        return info

    def run_opts(self) -> runopts:
        """The options."""
        opts = self._run_opts()
        more = getattr(self, "workspace_opts", None)
        if more is not None:
            opts.update(more())
        return opts

    def _run_opts(self) -> runopts:
        return runopts()

    def exists(self, app_id: str) -> bool:
        """Whether there is such an app.

        Args:
            app_id: What `schedule` gave.
        """
        return self.describe(app_id) is not None

    def cancel(self, app_id: str) -> None:
        """Cancel an app; one that is not there is left so.

        Args:
            app_id: What `schedule` gave.
        """
        if self.exists(app_id):
            self._cancel_existing(app_id)

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,  # noqa: FBT001, FBT002 TorchX's
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """The lines that a replica has printed.

        Args:
            app_id: What `schedule` gave.
            role_name: The role's name.
            k: The replica's number in its role.
            regex: Only lines in which this is found.
            since: Only lines since then.
            until: Only lines until then.
            should_tail: Also new lines, until the app has ended.
            streams: Which stream.

        Raises:
            NotImplementedError: It has no logs.
        """
        raise NotImplementedError(f"{type(self).__name__} has no logs")

    def close(self) -> None:
        """Let go of connections. Apps go on."""

    def _validate(self, app: AppDef, scheduler: str, cfg: Any = None) -> None:
        """Refuse roles without a resource."""
        for role in app.roles:
            if role.resource == NULL_RESOURCE:
                raise ValueError(f"role {role.name!r} has no resource; {scheduler} needs one")
