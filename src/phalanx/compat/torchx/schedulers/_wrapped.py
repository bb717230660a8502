"""A scheduler of ours with TorchX's methods, for programs that call them without a runner."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from phalanx._logs.lines import Stream
from phalanx._schedulers.factories import Factory, create_scheduler
from phalanx._schedulers.options import make, options
from phalanx._schedulers.scheduler import Scheduler
from phalanx._schedulers.torchx.adapter import TorchxAdapter
from phalanx._schedulers.torchx.dryrun_info import AppDryRunInfo
from phalanx._schedulers.torchx.interface import (
    DescribeAppResponse,
    ListAppResponse,
    TorchxScheduler,
)
from phalanx._schedulers.torchx.runopts import runopts
from phalanx._specs import AppDef
from phalanx._specs.mutable import frozen

__all__ = ["WrappedScheduler", "options_of", "unwrapped", "wrapped"]


def options_of(scheduler: Scheduler[Any, Any]) -> runopts:
    """The options of a scheduler, as TorchX describes them."""
    if isinstance(scheduler, TorchxAdapter):
        return scheduler.inner.run_opts()
    found = runopts()
    for option in options(scheduler.options):
        found.add(option.name, option.hint, option.help, option.default, option.required)
    return found


class WrappedScheduler(TorchxScheduler[Any]):
    """A scheduler of ours."""

    name = ""
    """Which one, in a subclass."""

    def __init__(
        self, session_name: str, *, inner: Scheduler[Any, Any] | None = None, **more: Any
    ) -> None:
        """Create it.

        Args:
            session_name: The middle part of handles.
            inner: The scheduler; by default a new one.
            **more: What a new one is created with.
        """
        super().__init__(self.name, session_name)
        self.inner = create_scheduler(self.name, session_name, **more) if inner is None else inner
        self.inner.rank0_env = TorchxAdapter.rank0_env

    def _run_opts(self) -> runopts:
        return options_of(self.inner)

    def _submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo:
        given = {key: value for key, value in cfg.items() if value is not None}
        return AppDryRunInfo(
            self.inner.dryrun(frozen(app), make(self.backend, self.inner.options, given))
        )

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        """Submit a request.

        Args:
            dryrun_info: What `submit_dryrun` gave.
        """
        return self.inner.submit(dryrun_info.request)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """How an app stands; None if there is no such app.

        Args:
            app_id: What `schedule` gave.
        """
        status = self.inner.describe(app_id)
        if status is None:
            return None
        return DescribeAppResponse(
            app_id=app_id,
            state=status.state,
            num_restarts=status.num_restarts,
            msg=status.message,
            structured_error_msg=status.structured_error_msg,
            ui_url=status.ui_url,
            roles_statuses=[*status.roles],
        )

    def list(self) -> builtins.list[ListAppResponse]:
        """The apps that it knows."""
        return [ListAppResponse(a.app_id, a.state, name=a.name) for a in self.inner.list()]

    def _cancel_existing(self, app_id: str) -> None:
        self.inner.cancel(app_id)

    def delete(self, app_id: str) -> None:
        """Delete an app with its logs.

        Args:
            app_id: What `schedule` gave.
        """
        self.inner.delete(app_id)

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
        """The lines that a replica has printed, with their ends.

        Args:
            app_id: What `schedule` gave.
            role_name: The role's name.
            k: The replica's number in its role.
            regex: Only lines in which this is found.
            since: Only lines since then.
            until: Only lines until then.
            should_tail: Also new lines, until the app has ended.
            streams: Which stream.
        """
        lines = self.inner.logs(
            app_id,
            role_name,
            k,
            stream=streams or Stream.COMBINED,
            since=None if since is None else since.timestamp(),
            until=None if until is None else until.timestamp(),
            follow=should_tail,
        )
        return (f"{ln.text}\n" for ln in lines if regex is None or re.search(regex, ln.text))

    def close(self) -> None:
        """Let go of connections. Apps go on."""
        self.inner.close()


def unwrapped(made: Any) -> Any:
    """The scheduler of ours that is behind what a factory has made, or that as it is."""
    return made.inner if isinstance(made, WrappedScheduler) else made


def wrapped(name: str, factory: Factory) -> Callable[..., TorchxScheduler[Any]]:
    """A factory of schedulers with TorchX's methods."""

    def create(session_name: str, **more: Any) -> TorchxScheduler[Any]:
        made = factory(session_name, **more)
        if isinstance(made, TorchxAdapter):
            return made.inner
        found = WrappedScheduler(session_name, inner=made)
        found.backend = name
        return found

    return create
