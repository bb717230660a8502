"""TorchX's runner: ours, with its defaults and with specs that may be changed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from phalanx._logs.lines import Stream
from phalanx._runner.config import Config
from phalanx._runner.handles import Handle, parse
from phalanx._runner.runner import Runner as OurRunner
from phalanx._runner.runner_schedulers import RunnerSchedulers
from phalanx._schedulers.factories import Factory, adapted
from phalanx._schedulers.scheduler import Scheduler
from phalanx._schedulers.torchx.adapter import TorchxAdapter
from phalanx._schedulers.torchx.dryrun_info import AppDryRunInfo, plain
from phalanx._schedulers.torchx.interface import ListAppResponse, TorchxScheduler
from phalanx._schedulers.torchx.runopts import as_dict, runopts
from phalanx._specs import AppDef, is_started, macros
from phalanx._specs.mutable import MutableAppDef, frozen, thawed
from phalanx.compat.torchx.components.dist import EXPERIMENT
from phalanx.compat.torchx.runner.config import get_config, get_configs
from phalanx.compat.torchx.schedulers import get_scheduler_factories
from phalanx.compat.torchx.schedulers._wrapped import options_of, unwrapped
from phalanx.compat.torchx.specs.api import (
    AppHandle,
    AppStatus,
    CfgVal,
    UnknownAppException,
    make_app_handle,
    parse_app_handle,
)
from phalanx.compat.torchx.specs.builders import materialize_appdef

__all__ = [
    "AppDryRunInfo",
    "AppHandle",
    "AppStatus",
    "CfgVal",
    "Runner",
    "Stream",
    "UnknownAppException",
    "get_configured_trackers",
    "get_runner",
    "make_app_handle",
    "materialize_appdef",
    "parse_app_handle",
]

TRACKERS, PARENT = "TORCHX_TRACKERS", "TORCHX_PARENT_RUN_ID"
_SESSION = "torchx"
_METHODS = ("schedule", "submit_dryrun", "describe", "log_iter", "run_opts")
"""What a scheduler has that is none by its class."""
_START_INTERVAL = 0.02
"""Seconds between two looks at whether a local app has started."""


def get_runner(
    name: str | None = None,
    component_defaults: Mapping[str, Mapping[str, Any]] | None = None,
    **scheduler_params: object,
) -> Runner:
    """A runner; a context manager.

    Args:
        name: The session; by default `torchx`.
        component_defaults: Arguments of components, by the component's name.
        **scheduler_params: What every scheduler is created with.
    """
    return Runner(name or "", None, component_defaults, scheduler_params)


def get_configured_trackers() -> dict[str, str | None]:
    """The trackers that `.torchxconfig` or the environment names, each with its configuration."""
    names = [*get_configs("torchx", "tracker")]
    if given := os.environ.get(TRACKERS):
        names = given.split(",")
    return {
        name: os.environ.get(_tracker_variable(name), get_config("tracker", name, "config"))
        for name in names
    }


def _tracker_variable(name: str) -> str:
    return f"TORCHX_TRACKER_{name.upper()}_CONFIG"


def _adapted(made: Any) -> Scheduler[Any, Any]:
    """What a factory has made, as a scheduler; one with TorchX's methods need not be one by class.

    Raises `TypeError`.
    """
    found = unwrapped(made)
    is_one = isinstance(found, Scheduler | TorchxScheduler)
    if not is_one and all(callable(getattr(found, method, None)) for method in _METHODS):
        return TorchxAdapter(found)
    scheduler = adapted(found)
    scheduler.rank0_env = TorchxAdapter.rank0_env
    return scheduler


class Runner(OurRunner):
    """Submits apps. As in TorchX, no configuration is read."""

    sends_workspace = False
    """The current directory is copied into images where no workspace is named: `torchx run`."""

    def __init__(
        self,
        name: str = "",
        scheduler_factories: Mapping[str, Factory] | None = None,
        component_defaults: Mapping[str, Mapping[str, Any]] | None = None,
        scheduler_params: Mapping[str, object] | None = None,
        *,
        settings: Config | None = None,
    ) -> None:
        """A runner of a session. Nothing is started yet.

        Args:
            name: The session; an empty one is `torchx`.
            scheduler_factories: What creates each scheduler, by its name.
            component_defaults: Arguments of components, by the component's name.
            scheduler_params: What every scheduler is created with.
            settings: The configuration of commands; by default none.
        """
        super().__init__(
            name or _SESSION,
            scheduler_factories,
            component_defaults,
            scheduler_params,
            settings=settings or Config((), {}),
        )
        factories = (
            get_scheduler_factories() if scheduler_factories is None else scheduler_factories
        )
        self._schedulers = RunnerSchedulers(
            factories, scheduler_params or {}, lambda: self.config, _adapted
        )

    def scheduler_run_opts(self, scheduler: str) -> runopts:  # type: ignore[override]
        """The options of a scheduler.

        Args:
            scheduler: Its name.

        Raises:
            KeyError: There is no such scheduler.
        """
        return options_of(self._scheduler(scheduler))

    def dryrun(
        self,
        app: AppDef,
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | str | None = None,
        workspace: str | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo:
        """Show what `run` would submit; replicas find TorchX's variables.

        Args:
            app: What to run.
            scheduler: The scheduler's name.
            cfg: The scheduler's options.
            workspace: The directory whose files the app runs with; without one, images run as they
                are.
            parent_run_id: What started this.
        """
        name = self.default_scheduler if scheduler is None else scheduler
        env = {"TORCHX_JOB_ID": str(Handle(name, self._name, macros.app_id))}
        parent_run_id = os.environ.get(PARENT, parent_run_id)
        if parent_run_id is not None:
            env[PARENT] = parent_run_id
        if trackers := get_configured_trackers():
            env[TRACKERS] = ",".join(trackers)
            env |= {_tracker_variable(name): text for name, text in trackers.items() if text}
        made = frozen(app)
        for role in made.roles:
            experiment = role.env.get("PHALANX_EXPERIMENT")
            own = {} if experiment is None else {EXPERIMENT: experiment}
            made = made.with_role(role.with_env({**env, **own, **role.env}))
        if workspace is None and not self.sends_workspace:
            images = self._scheduler(name).capabilities.runs_images
            workspace = "" if images else None
        info = super().dryrun(made, scheduler, cfg, workspace, parent_run_id)
        info._app = thawed(info.app)
        adapter = isinstance(self._scheduler(info.scheduler), TorchxAdapter)
        info._cfg = as_dict(info.cfg) if adapter else plain(info.cfg)
        return info

    def schedule(self, info: AppDryRunInfo) -> str:
        """Submit what a dry run has given; a local app has started then.

        Args:
            info: What `dryrun` or `dryrun_component` gave.
        """
        handle = super().schedule(info)
        if parse(handle).scheduler.startswith("local"):
            for status in self.watch(handle, _START_INTERVAL):
                if status is None or is_started(status.state):
                    break
        return handle

    def describe(self, app_handle: str) -> MutableAppDef | None:
        """What an app was made from, if it was submitted from here.

        Args:
            app_handle: What `run` gave.
        """
        found = super().describe(app_handle)
        return None if found is None else thawed(found)

    def stop(self, app_handle: str) -> None:
        """Cancel an app.

        Args:
            app_handle: What `run` gave.
        """
        self.cancel(app_handle)

    def list(self, scheduler: str | None = None) -> list[ListAppResponse]:  # type: ignore[override]
        """List apps.

        Args:
            scheduler: Those that this one knows.
        """
        return [
            ListAppResponse(app.app_id, app.state, app.app_handle, app.name)
            for app in super().list(scheduler)
        ]

    def log_lines(  # type: ignore[override]
        self,
        app_handle: str,
        role_name: str | None = None,
        k: int = 0,
        regex: str | re.Pattern[str] | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        should_tail: bool = False,  # noqa: FBT001, FBT002 TorchX's
        streams: Stream | str | None = None,
    ) -> Iterator[str]:
        """The lines that a replica has printed, with their ends.

        Args:
            app_handle: What `run` gave.
            role_name: The role's name.
            k: The replica's number in its role.
            regex: Only lines in which this is found.
            since: Only lines since then.
            until: Only lines until then.
            should_tail: Also new lines, until the replica has ended.
            streams: Which stream.
        """
        return super().log_lines(
            app_handle,
            role_name,
            regex=regex,
            since=since,
            until=until,
            streams=streams,
            k=k,
            should_tail=should_tail,
        )
