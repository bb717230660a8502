"""A scheduler with TorchX's methods, as one of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

from phalanx._logs.lines import LogLine, Stream
from phalanx._schedulers.scheduler import Capabilities, Scheduler
from phalanx._schedulers.torchx.dryrun_info import AppDryRunInfo
from phalanx._schedulers.torchx.interface import (
    NONE,
    DescribeAppResponse,
    ListAppResponse,
    TorchxScheduler,
)
from phalanx._schedulers.torchx.runopts import as_dataclass, as_dict
from phalanx._specs import AppDef, AppStatus, AppSummary, ReplicaStatus, RetryPolicy, RoleStatus
from phalanx._specs.mutable import thawed

T = TypeVar("T")


class TorchxAdapter(Scheduler[Any, AppDryRunInfo]):
    """What the runner asks, put to a scheduler with TorchX's methods.

    What it gives is held against TorchX's types: a plugin that gives something else is named.
    """

    rank0_env = "TORCHX_RANK0_HOST"
    takes_dry_run = True

    def __init__(self, inner: TorchxScheduler[Any]) -> None:
        super().__init__(inner.session_name)
        self.inner = inner
        builds = hasattr(inner, "build_workspace_and_update_role")
        self.options = as_dataclass(inner.run_opts())  # type: ignore[misc]
        self.capabilities = Capabilities(  # type: ignore[misc]
            streams=True,
            times=True,
            mounts=True,
            retry_policies=frozenset(RetryPolicy),
            several_roles=True,
            workspace=builds,
            runs_images=builds,
        )

    def dryrun(self, app: AppDef, options: Any) -> AppDryRunInfo:
        """What the plugin would submit; it gets specs that it may change."""
        given, cfg = thawed(app), as_dict(options)
        if self.capabilities.workspace:
            for role in given.roles:
                if not role.workspace:  # it runs its image as it is
                    continue
                self.inner.build_workspace_and_update_role(  # type: ignore[attr-defined]
                    role, role.workspace, cfg
                )
        return _expect(self.inner.submit_dryrun(given, cfg), AppDryRunInfo)

    def submit(self, request: AppDryRunInfo) -> str:
        """Submit what `dryrun` gave."""
        return self.inner.schedule(request)

    def describe(self, app_id: str) -> AppStatus | None:
        """Its answer as a status."""
        found = self.inner.describe(app_id)
        if found is None:
            return None
        told = _expect(found, DescribeAppResponse)
        return AppStatus(
            app=app_id,
            state=told.state,
            message=_text(told.msg) or _text(told.structured_error_msg),
            num_restarts=max(0, told.num_restarts),
            ui_url=told.ui_url,
            roles=tuple(map(_role, told.roles_statuses)),
        )

    def list(self) -> list[AppSummary]:
        """Its apps."""
        return [
            AppSummary(app.app_id, app.state, app.name)
            for app in (_expect(item, ListAppResponse) for item in self.inner.list())
        ]

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
        """Its lines, without their ends."""
        if not self.inner.exists(app_id):
            raise LookupError(f"no such app: {app_id!r}")
        lines = self.inner.log_iter(
            app_id,
            role,
            replica,
            None,
            _moment(since),
            _moment(until),
            should_tail=follow,
            streams=None if stream is Stream.COMBINED else stream,
        )
        for line in lines:
            yield LogLine(role, replica, _expect(line, str).removesuffix("\n"), stream=stream)

    def cancel(self, app_id: str) -> None:
        """Cancel an app."""
        self.inner.cancel(app_id)

    def delete(self, app_id: str) -> None:
        """Delete an app, where the plugin can."""
        delete = getattr(self.inner, "delete", None)
        if delete is None:
            super().delete(app_id)
        else:
            delete(app_id)

    def close(self) -> None:
        """Let go of connections."""
        self.inner.close()


def _expect(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"it gave {value!r}, not a {kind.__name__}")
    return value


def _text(value: Any) -> str:
    return "" if value in (NONE, None) else str(value)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _role(role: Any) -> RoleStatus:
    replicas = tuple(_expect(replica, ReplicaStatus) for replica in role.replicas)
    return dataclasses.replace(_expect(role, RoleStatus), replicas=replicas)
