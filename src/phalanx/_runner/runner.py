"""Apps onto schedulers: submit, follow, end; from any process.

with get_runner() as runner:
    handle = runner.run_component("utils.echo", ["--msg", "hi"], scheduler="local_cwd")
    status = runner.wait(handle)
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

from phalanx._core.lazy import attribute_hints
from phalanx._registry import recorded_app, submission
from phalanx._runner import catalog, config, handles
from phalanx._runner.config import Config, ConfigValue
from phalanx._runner.dryrun import check_capabilities, prepare
from phalanx._runner.runner_schedulers import RunnerSchedulers
from phalanx._runner.submitted_app import SubmittedApp, completed, to_stream
from phalanx._schedulers.factories import Factory
from phalanx._schedulers.options import Option, options, parse
from phalanx._schedulers.scheduler import Capabilities, LogLine, Scheduler, Stream
from phalanx._schedulers.scheduler_calls import asking, expect
from phalanx._schedulers.torchx.dryrun_info import AppDryRunInfo, plain
from phalanx._specs import AppDef, AppState, AppStatus, AppSummary, macros, serialization
from phalanx._specs.mutable import frozen
from phalanx.errors import ConfigError, SchedulerError

__all__ = ["AppDryRunInfo", "Runner", "get_runner"]


def get_runner(
    name: str | None = None,
    component_defaults: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    settings: Config | None = None,
    **scheduler_params: object,
) -> Runner:
    """A runner; a context manager.

    Args:
        name: The session, the middle part of handles; by default `phalanx`.
        component_defaults: Arguments of components, by the component's name.
        settings: By default what applies in the current directory.
        **scheduler_params: What every scheduler is created with.

    Raises:
        ConfigError: The name cannot be a session's.
    """
    return Runner(
        name or "",
        component_defaults=component_defaults,
        scheduler_params=scheduler_params,
        settings=settings,
    )


_INSTEAD = {
    "stop": "use cancel",
    "_scheduler_instances": "to use a scheduler of your own, give what creates it: "
    'Runner(name, {"ray": lambda session_name, **params: scheduler})',
}
"""TorchX's names for what has another here."""


class Runner:
    """Submits apps, and knows those that were submitted, by whichever process."""

    def __init__(
        self,
        name: str = handles.SESSION,
        scheduler_factories: Mapping[str, Factory] | None = None,
        component_defaults: Mapping[str, Mapping[str, Any]] | None = None,
        scheduler_params: Mapping[str, object] | None = None,
        *,
        settings: Config | None = None,
    ) -> None:
        """A runner of a session. Nothing is started or read yet.

        Args:
            name: The session, the middle part of handles; an empty one is `phalanx`.
            scheduler_factories: What creates each scheduler, by its name; by default
                `phalanx.schedulers.get_scheduler_factories()`.
            component_defaults: Arguments of components, by the component's name; the configuration
                wins over them.
            scheduler_params: What every scheduler is created with.
            settings: By default what applies in the current directory.

        Raises:
            ConfigError: The name cannot be a session's.
        """
        if "/" in name:
            raise ConfigError(f"invalid session name {name!r}.")
        self._name = name or handles.SESSION
        self._config = settings
        self._component_defaults = component_defaults or {}
        self._submitted: set[str] = set()
        """Handles of what this runner has submitted."""
        self._schedulers = RunnerSchedulers(
            scheduler_factories, scheduler_params or {}, lambda: self.config
        )

    __getattr__ = attribute_hints(_INSTEAD)

    def __enter__(self) -> Self:
        """Nothing is started."""
        return self

    def __exit__(self, *_: object) -> None:
        """As `close`."""
        self.close()

    def close(self) -> None:
        """Let go of schedulers' connections. Apps go on."""
        self._schedulers.close()

    # ── submitting ────────────────────────────────────────────────────────────

    def run_component(
        self,
        component: str,
        component_args: Sequence[str] | Mapping[str, Any] = (),
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | str | None = None,
        workspace: str | None = None,
        parent_run_id: str | None = None,
    ) -> str:
        """Submit the app that a component makes of its arguments.

        Args:
            component: `dist.ddp`, `FILE.py:FUNCTION`, or the name that a package has registered.
            component_args: As on a command line, or by name.
            scheduler: By default the configured one, or `local_cwd`.
            cfg: The scheduler's options, by name or as `"key=value,key2=value2"`.
            workspace: The directory whose files the app runs with; by default that of each role, or
                the current one. Where roles run in images it is copied over them; "" for none.
            parent_run_id: What started this, for the app's `PHALANX_PARENT_RUN_ID`.

        Returns:
            The app's handle.

        Raises:
            ComponentError: There is no such component, or it is broken.
            UsageError: It does not take these arguments.
            UnknownScheduler: There is no such scheduler.
            ConfigError: The scheduler does not take such an app, or such options.
            SchedulerError: The scheduler could not submit it.
        """
        return self.schedule(
            self.dryrun_component(
                component, component_args, scheduler, cfg, workspace, parent_run_id
            )
        )

    def dryrun_component(
        self,
        component: str,
        component_args: Sequence[str] | Mapping[str, Any] = (),
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | str | None = None,
        workspace: str | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo:
        """Show what `run_component` would submit. Nothing is submitted or changed.

        Args:
            component: As for `run_component`.
            component_args: As on a command line, or by name.
            scheduler: By default the configured one, or `local_cwd`.
            cfg: The scheduler's options, by name or as `"key=value,key2=value2"`.
            workspace: The directory whose files the app runs with; by default that of each role, or
                the current one. Where roles run in images it is copied over them; "" for none.
            parent_run_id: What started this, for the app's `PHALANX_PARENT_RUN_ID`.

        Returns:
            The app, and the scheduler's own request; `str()` of it can be read.

        Raises:
            ConfigError: As `run_component`.
        """
        found = catalog.find(component)
        own = {} if found.problem else self._component_defaults.get(found.name, {})
        defaults = {key: ConfigValue(value, "component_defaults") for key, value in own.items()}
        if not found.problem:
            defaults |= self.config.section("component", found.name, found.configurable)
        app = found.build(component_args, defaults)
        return self.dryrun(app, scheduler, cfg, workspace, parent_run_id)

    def run(
        self,
        app: AppDef,
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | str | None = None,
        workspace: str | None = None,
        parent_run_id: str | None = None,
    ) -> str:
        """Submit an app.

        Args:
            app: What to run.
            scheduler: By default the configured one, or `local_cwd`.
            cfg: The scheduler's options, by name or as `"key=value,key2=value2"`.
            workspace: The directory whose files the app runs with; by default that of each role, or
                the current one. Where roles run in images it is copied over them; "" for none.
            parent_run_id: What started this, for the app's `PHALANX_PARENT_RUN_ID`.

        Returns:
            The app's handle.

        Raises:
            UnknownScheduler: There is no such scheduler.
            ConfigError: The scheduler does not take such an app, or such options.
            SchedulerError: The scheduler could not submit it.
        """
        return self.schedule(self.dryrun(app, scheduler, cfg, workspace, parent_run_id))

    def dryrun(
        self,
        app: AppDef,
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | str | None = None,
        workspace: str | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo:
        """Show what `run` would submit. Nothing is submitted or changed.

        Args:
            app: What to run.
            scheduler: By default the configured one, or `local_cwd`.
            cfg: The scheduler's options, by name or as `"key=value,key2=value2"`.
            workspace: The directory whose files the app runs with; by default that of each role, or
                the current one. Where roles run in images it is copied over them; "" for none.
            parent_run_id: What started this, for the app's `PHALANX_PARENT_RUN_ID`.

        Returns:
            The app, and the scheduler's own request; `schedule` submits it.

        Raises:
            UnknownScheduler: There is no such scheduler.
            ConfigError: The scheduler does not take such an app, or such options.
        """
        name = self.default_scheduler if scheduler is None else scheduler
        found = self._scheduler(name)
        app = frozen(app)
        given = parse(cfg) if isinstance(cfg, str) else dict(cfg or {})
        foreign = self.foreign_options(name, given)
        own = {key: value for key, value in given.items() if key not in foreign}
        chosen = self._schedulers.make_options(name, found, own)
        check_capabilities(name, found, app, workspace)
        env = {"PHALANX_JOB_ID": str(handles.Handle(name, self._name, macros.app_id))}
        if parent_run_id is not None:
            env["PHALANX_PARENT_RUN_ID"] = parent_run_id
        prepared = prepare(app, env, workspace, found.capabilities)
        with asking(name):
            made = found.dryrun(prepared, chosen)
        info = made if isinstance(made, AppDryRunInfo) else AppDryRunInfo(made)
        info._app, info._scheduler, info._cfg = prepared, name, chosen
        return info

    def schedule(self, info: AppDryRunInfo) -> str:
        """Submit what a dry run has given.

        Args:
            info: What `dryrun` or `dryrun_component` gave.

        Returns:
            The app's handle.

        Raises:
            SchedulerError: The scheduler could not submit it.
        """
        found = self._scheduler(info.scheduler)
        with asking(info.scheduler):
            app_id = found.submit(info if found.takes_dry_run else info.request)
        if not isinstance(app_id, str) or not re.fullmatch(r"[^/\s]+", app_id):
            raise SchedulerError(
                f"{info.scheduler} submitted the app but returned {app_id!r}, which is not a valid "
                "id: it cannot be followed."
            )
        handle = handles.Handle(info.scheduler, self._name, app_id)
        definition = {"app": serialization.to_dict(info.app), "options": plain(info.cfg)}
        submission.define(info.scheduler, self._name, app_id, definition)
        self._submitted.add(str(handle))
        return str(handle)

    # ── what was submitted ────────────────────────────────────────────────────

    def status(self, app_handle: str) -> AppStatus | None:
        """The status of an app.

        Args:
            app_handle: What `run` gave, `SCHEDULER://SESSION/APP`.

        Returns:
            The status; None if there is no such app.

        Raises:
            ConfigError: It is not a handle, or there is no such scheduler.
            SchedulerError: The scheduler could not be asked.
        """
        return self._app(app_handle).status()

    def wait(
        self, app_handle: str, wait_interval: float | None = None, timeout: float | None = None
    ) -> AppStatus | None:
        """Wait for an app's end.

        Args:
            app_handle: What `run` gave, `SCHEDULER://SESSION/APP`.
            wait_interval: Seconds between two questions to the scheduler; by default its own.
            timeout: Seconds to wait at most; by default until the end.

        Returns:
            The status then; None if there is no such app.

        Raises:
            ConfigError: As `status`.
            SchedulerError: As `status`.
        """
        limit = math.inf if timeout is None else time.monotonic() + timeout
        status = None
        for status in self.watch(app_handle, wait_interval):  # noqa: B007 the last one counts
            if time.monotonic() >= limit:
                break
        return status

    def watch(self, app_handle: str, interval: float | None = None) -> Iterator[AppStatus | None]:
        """The status of an app, again and again until it has ended.

        Args:
            app_handle: What `run` gave, `SCHEDULER://SESSION/APP`.
            interval: Seconds between two questions to the scheduler; by default its own, growing.

        Yields:
            The status; None, as the last, if there is no such app.

        Raises:
            ConfigError: As `status`.
            SchedulerError: As `status`.
        """
        return self._app(app_handle).watch(interval, submitted=app_handle in self._submitted)

    def cancel(self, app_handle: str, grace: float | None = None) -> None:
        """Cancel an app. One that has ended, or is not there, is left as it is.

        Args:
            app_handle: What `run` gave, `SCHEDULER://SESSION/APP`.
            grace: Seconds between asking its replicas to end and killing them, for schedulers that
                take one.

        Raises:
            ConfigError: It is not a handle, or the scheduler takes no `grace`.
            SchedulerError: The scheduler could not cancel it.
        """
        self._app(app_handle).cancel(grace)

    def delete(self, app_handle: str) -> None:
        """Delete an app with its logs; one that runs is cancelled first. Idempotent.

        Of one whose scheduler is not installed any more, the record is deleted.

        Args:
            app_handle: What `run` gave, `SCHEDULER://SESSION/APP`.

        Raises:
            UnknownScheduler: There is no such scheduler, and no record of the app.
            SchedulerError: The scheduler could not delete it.
        """
        self._app(app_handle).delete()

    def list(self, scheduler: str | None = None) -> list[AppSummary]:
        """List apps.

        Args:
            scheduler: Those that this one knows; by default those that were submitted from here.

        Raises:
            UnknownScheduler: There is no such scheduler.
            SchedulerError: The scheduler could not be asked.
        """
        if scheduler is not None:
            return list(self.known_by(scheduler, self._name))
        from phalanx._runner.overview import overview

        return [
            AppSummary(
                app.id,
                AppState(status["state"]),
                str(app.facts["name"]),
                app.handle,
                status.get("seconds"),
            )
            for app, status in overview(self, recorded_app.apps())
            if not app.is_launch
        ]

    def describe(self, app_handle: str) -> AppDef | None:
        """What an app was made from, if it was submitted from here.

        Args:
            app_handle: What `run` gave, `SCHEDULER://SESSION/APP`.

        Returns:
            The definition; None if it is not known.

        Raises:
            ConfigError: It is not a handle.
        """
        return self._app(app_handle).definition()

    def log_lines(
        self,
        app_handle: str,
        role: str | None = None,
        replica: int = 0,
        regex: str | re.Pattern[str] | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        follow: bool = False,  # noqa: FBT001, FBT002 the name and place that users know
        streams: Stream | str | None = None,
        *,
        role_name: str | None = None,
        k: int | None = None,
        should_tail: bool | None = None,
    ) -> Iterator[str]:
        """The lines that a replica has printed.

        Args:
            app_handle: What `run` gave, `SCHEDULER://SESSION/APP`.
            role: The role's name; by default the first.
            replica: The replica's number in its role.
            regex: Only lines in which this is found.
            since: Only lines since then: seconds since 1970, or a datetime.
            until: Only lines until then.
            follow: Also yield new lines, until the replica has ended.
            streams: `"stdout"`, `"stderr"`, or by default both.
            role_name: TorchX's name for `role`; with it, `k` or `should_tail`, lines have their
                ends, as there.
            k: TorchX's name for `replica`.
            should_tail: TorchX's name for `follow`.

        Yields:
            Lines without their ends.

        Raises:
            LookupError: There is no such app, role or replica.
            ConfigError: The scheduler cannot tell streams or times apart.
        """
        end = "" if (role_name, k, should_tail) == (None, None, None) else "\n"
        role = role if role_name is None else role_name
        replica = replica if k is None else k
        follow = follow if should_tail is None else should_tail
        if role is None:
            role = self._app(app_handle).first_role()
        stream = streams if isinstance(streams, Stream) else to_stream(streams)
        lines = self.lines(
            app_handle, role, replica, stream=stream, since=since, until=until, follow=follow
        )
        wanted = re.compile(regex) if regex is not None else None
        return (line.text + end for line in lines if wanted is None or wanted.search(line.text))

    def unfinished_line(
        self,
        app_handle: str,
        role: str,
        replica: int,
        *,
        stream: Stream = Stream.COMBINED,
    ) -> str:
        """What a replica has printed of a line that has not ended, such as a progress bar.

        Args:
            app_handle: What `run` gave, `SCHEDULER://SESSION/APP`.
            role: The role's name.
            replica: The replica's number in its role.
            stream: Which stream; by default both.

        Returns:
            The text so far; empty where it is not known.
        """
        return self._app(app_handle).unfinished_line(role, replica, stream)

    def lines(
        self,
        app_handle: str,
        role: str,
        replica: int,
        *,
        stream: Stream = Stream.COMBINED,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        follow: bool = False,
    ) -> Iterator[LogLine]:
        """As `log_lines`, each line with its replica, stream and time.

        Args:
            app_handle: What `run` gave, `SCHEDULER://SESSION/APP`.
            role: The role's name.
            replica: The replica's number in its role.
            stream: Which stream; by default both.
            since: Only lines since then: seconds since 1970, or a datetime.
            until: Only lines until then.
            follow: Also yield new lines, until the replica has ended.

        Yields:
            Lines.

        Raises:
            LookupError: There is no such app, role or replica.
            ConfigError: The scheduler cannot tell streams or times apart.
        """
        return self._app(app_handle).lines(
            role, replica, stream=stream, since=since, until=until, follow=follow
        )

    def lines_back(
        self,
        app_handle: str,
        role: str,
        replica: int,
        *,
        stream: Stream = Stream.COMBINED,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
    ) -> Iterator[LogLine] | None:
        """As `lines`, from the last line to the first, without reading the rest.

        Args:
            app_handle: What `run` gave, `SCHEDULER://SESSION/APP`.
            role: The role's name.
            replica: The replica's number in its role.
            stream: Which stream; by default both.
            since: Only lines since then: seconds since 1970, or a datetime.
            until: Only lines until then.

        Returns:
            Lines; None where the scheduler can only read from the beginning.

        Raises:
            LookupError: There is no such app, role or replica.
            ConfigError: The scheduler cannot tell streams or times apart.
        """
        return self._app(app_handle).lines_back(
            role, replica, stream=stream, since=since, until=until
        )

    def replicas(self, app_handle: str) -> dict[str, int]:
        """How many replicas each role of an app has.

        Args:
            app_handle: What `run` gave, `SCHEDULER://SESSION/APP`.

        Raises:
            LookupError: There is no such app.
        """
        return self._app(app_handle).replicas()

    # ── schedulers and their options ──────────────────────────────────────────

    @property
    def config(self) -> Config:
        """What files and the environment say."""
        if self._config is None:
            self._config = config.load()
        return self._config

    @property
    def default_scheduler(self) -> str:
        """The one that is used when none is named."""
        return self._schedulers.default

    def scheduler_run_opts(self, scheduler: str) -> Sequence[Option]:
        """The options of a scheduler.

        Args:
            scheduler: Its name.

        Raises:
            UnknownScheduler: There is no such scheduler.
        """
        return options(self._scheduler(scheduler).options)

    def capabilities(self, scheduler: str) -> Capabilities:
        """What a scheduler can do.

        Args:
            scheduler: Its name.

        Raises:
            UnknownScheduler: There is no such scheduler.
        """
        return self._scheduler(scheduler).capabilities

    def effective_options(
        self, scheduler: str, given: Mapping[str, Any] | None = None
    ) -> dict[str, ConfigValue]:
        """Every option of a scheduler with its value, and where that came from.

        Args:
            scheduler: Its name.
            given: Options as on the command line, which win over the configuration.

        Raises:
            UnknownScheduler: There is no such scheduler.
        """
        known = options(self._scheduler(scheduler).options)
        return self._schedulers.effective_options(scheduler, known, given or {})

    def option_problems(self, scheduler: str) -> Sequence[str]:
        """What is wrong with the configured options of a scheduler, and where each stands.

        Args:
            scheduler: Its name.

        Raises:
            UnknownScheduler: There is no such scheduler.
        """
        from phalanx._runner.config_check import scheduler_problems

        kind = self._scheduler(scheduler).options
        effective = self.effective_options(scheduler)
        return tuple(scheduler_problems(scheduler, kind, options(kind), effective))

    def known_by(self, scheduler: str, session: str) -> Sequence[AppSummary]:
        """The apps that a scheduler knows in a session.

        Args:
            scheduler: Its name.
            session: The session's name.

        Raises:
            UnknownScheduler: There is no such scheduler.
            SchedulerError: The scheduler could not be asked.
        """
        found = self._scheduler(scheduler, session)
        with asking(scheduler):
            apps = [expect(app, AppSummary) for app in found.list()]
        return [completed(app, scheduler, session) for app in apps]

    def foreign_options(self, scheduler: str, given: Mapping[str, Any]) -> dict[str, str]:
        """Which options are another scheduler's: one dict may have those of several.

        Args:
            scheduler: The name of the one that they are given to.
            given: The options.

        Returns:
            The name of a scheduler that has it, by option.
        """
        return self._schedulers.find_foreign(scheduler, self._name, given)

    def scheduler_backends(self) -> Sequence[str]:
        """The names of the available schedulers, the default one first."""
        return self._schedulers.names()

    def _scheduler(self, name: str, session: str | None = None) -> Scheduler[Any, Any]:
        return self._schedulers.get(name, session or self._name)

    def _app(self, app_handle: str) -> SubmittedApp:
        return SubmittedApp(handles.parse(app_handle), self._schedulers.get)
