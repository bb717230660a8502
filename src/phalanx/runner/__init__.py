"""Apps onto schedulers: submit, follow, end; from any process.

with get_runner() as runner:
    handle = runner.run_component("utils.echo", ["--msg", "hi"], scheduler="local_cwd")
    status = runner.wait(handle)
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from phalanx.errors import ConfigError
from phalanx.registry import recorded, submitted
from phalanx.runner import catalog, config, handles
from phalanx.runner.config import Config, Value
from phalanx.schedulers import (
    LogLine,
    Scheduler,
    Stream,
    create_scheduler,
    default_scheduler,
)
from phalanx.schedulers.options import Option, make, options, parse
from phalanx.specs import AppDef, AppStatus, AppSummary, Role, macros, texts

__all__ = ["AppDryRunInfo", "Runner", "get_runner"]

_POLL = 0.02


@dataclass(frozen=True)
class AppDryRunInfo:
    """What would be submitted."""

    app: AppDef
    scheduler: str
    cfg: Any
    """The scheduler's options."""
    request: Any
    """What the scheduler itself makes of it."""

    def __str__(self) -> str:
        """The app and the exact request."""
        app = json.dumps(texts.to_dict(self.app), indent=2)
        request = json.dumps(_plain(self.request), indent=2, default=str)
        return f"=== APPLICATION ===\n{app}\n\n=== SCHEDULER REQUEST ===\n{request}"


def get_runner(name: str | None = None, **kwargs: Any) -> Runner:
    """A runner; a context manager. `name` is the session, the middle part of handles."""
    return Runner(name or handles.SESSION, **kwargs)


class Runner:
    """Submits apps, and knows those that were submitted, by whichever process."""

    def __init__(self, name: str = handles.SESSION, *, settings: Config | None = None) -> None:
        """`settings` are by default what applies in the current directory."""
        if not name or "/" in name:
            raise ConfigError(f"{name!r} cannot be a session's name.")
        self._name = name
        self._config = settings
        self._schedulers: dict[tuple[str, str], Scheduler[Any, Any]] = {}

    def __enter__(self) -> Self:
        """Nothing is started."""
        return self

    def __exit__(self, *_: object) -> None:
        """As `close`."""
        self.close()

    def close(self) -> None:
        """Let go of schedulers' connections. Apps go on."""
        for scheduler in self._schedulers.values():
            scheduler.close()
        self._schedulers.clear()

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
        """Submit the app that a component makes of its arguments; gives its handle."""
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
        """What would be submitted; nothing is."""
        found = catalog.find(component)
        defaults = self.config.section("component", found.name, found.parameters)
        values = {key: value.value for key, value in defaults.items()}
        app = found.build(component_args, values)
        return self.dryrun(app, scheduler, cfg, workspace, parent_run_id)

    def run(
        self,
        app: AppDef,
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | str | None = None,
        workspace: str | None = None,
        parent_run_id: str | None = None,
    ) -> str:
        """Submit an app; gives its handle."""
        return self.schedule(self.dryrun(app, scheduler, cfg, workspace, parent_run_id))

    def dryrun(
        self,
        app: AppDef,
        scheduler: str | None = None,
        cfg: Mapping[str, Any] | str | None = None,
        workspace: str | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo:
        """What would be submitted; nothing is. Raises `ConfigError` for what cannot be."""
        name = scheduler or self.default_scheduler
        found = self._scheduler(name)
        given = parse(cfg) if isinstance(cfg, str) else dict(cfg or {})
        chosen = self._options(name, found, given)
        _check_capabilities(name, found, app)
        handle = str(handles.Handle(name, self._name, macros.app_id))
        roles = [_with_surroundings(role, handle, workspace, parent_run_id) for role in app.roles]
        prepared = dataclasses.replace(app, roles=roles)
        return AppDryRunInfo(prepared, name, chosen, found.dryrun(prepared, chosen))

    def schedule(self, info: AppDryRunInfo) -> str:
        """Submit what a dry run has given; gives the handle."""
        app_id = self._scheduler(info.scheduler).submit(info.request)
        handle = handles.Handle(info.scheduler, self._name, app_id)
        definition = {"app": texts.to_dict(info.app), "options": _plain(info.cfg)}
        submitted.define(info.scheduler, self._name, app_id, definition)
        return str(handle)

    # ── what was submitted ────────────────────────────────────────────────────

    def status(self, app_handle: str) -> AppStatus | None:
        """How an app stands; None for one that is not there."""
        handle = handles.parse(app_handle)
        return self._scheduler(handle.scheduler, handle.session).describe(handle.app_id)

    def wait(self, app_handle: str, wait_interval: float = _POLL) -> AppStatus | None:
        """Wait for an app's end; None for one that is not there."""
        while (status := self.status(app_handle)) is not None and not status.state.is_final:
            time.sleep(wait_interval)
        return status

    def cancel(self, app_handle: str) -> None:
        """Have an app end. One that has ended, or is not there, is left as it is."""
        handle = handles.parse(app_handle)
        self._scheduler(handle.scheduler, handle.session).cancel(handle.app_id)

    def delete(self, app_handle: str) -> None:
        """Forget an app; one that runs is cancelled first. Idempotent."""
        handle = handles.parse(app_handle)
        self._scheduler(handle.scheduler, handle.session).delete(handle.app_id)
        app = recorded.get(handle.app_id)
        if app is not None and app.handle == str(handle):
            app.remove(logs=True)

    def list(self, scheduler: str | None = None) -> list[AppSummary]:
        """The apps that a scheduler knows; without one, those that were submitted from here."""
        if scheduler is not None:
            known = self._scheduler(scheduler)
            return [_with_handle(app, scheduler, self._name) for app in known.list()]
        found = []
        for app in recorded.apps():
            if not app.is_launch:
                status = self.status(app.handle)
                state = app.state if status is None else status.state
                found.append(AppSummary(app.id, state, str(app.facts["name"]), app.handle))
        return found

    def describe(self, app_handle: str) -> AppDef | None:
        """What an app was made from, if it was submitted from here."""
        handle = handles.parse(app_handle)
        app = recorded.get(handle.app_id)
        definition = app.definition() if app is not None and app.handle == str(handle) else {}
        return texts.from_dict(definition["app"]) if "app" in definition else None

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
    ) -> Iterator[str]:
        """The lines that a replica has printed; of the first role, unless one is named.

        With `follow`, on until it has ended; otherwise those that are there. Raises `LookupError`.
        """
        handle = handles.parse(app_handle)
        found = self._scheduler(handle.scheduler, handle.session)
        if role is None:
            role = self._first_role(app_handle)
        stream = streams if isinstance(streams, Stream) else _stream(streams)
        if stream is not Stream.COMBINED and not found.capabilities.streams:
            raise ConfigError(f"{handle.scheduler} keeps stdout and stderr together.")
        lines = self.lines(
            app_handle, role, replica, stream=stream, since=since, until=until, follow=follow
        )
        wanted = re.compile(regex) if regex is not None else None
        return (line.text for line in lines if wanted is None or wanted.search(line.text))

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
        """As `log_lines`, with whose they are and when they came."""
        handle = handles.parse(app_handle)
        return self._scheduler(handle.scheduler, handle.session).logs(
            handle.app_id,
            role,
            replica,
            stream=stream,
            since=_seconds(since),
            until=_seconds(until),
            follow=follow,
        )

    def replicas(self, app_handle: str) -> dict[str, int]:
        """How many replicas each role of an app has. Raises `LookupError`."""
        handle = handles.parse(app_handle)
        app = recorded.get(handle.app_id)
        if app is not None and app.handle == str(handle):
            return {role["name"]: len(role["replicas"]) for role in app.facts["roles"]}
        status = self.status(app_handle)
        if status is None:
            raise LookupError(f"there is no app {app_handle}")
        return {role.role: len(role.replicas) for role in status.roles}

    def _first_role(self, app_handle: str) -> str:
        roles = self.replicas(app_handle)
        if not roles:
            raise LookupError(f"say which role of {app_handle}: its scheduler does not tell")
        return next(iter(roles))

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
        configured = self.config.section("command", "run", {"scheduler": None}).get("scheduler")
        return default_scheduler() if configured is None else str(configured.value)

    def scheduler_run_opts(self, scheduler: str) -> Sequence[Option]:
        """The options of a scheduler."""
        return options(self._scheduler(scheduler).options)

    def effective_options(
        self, scheduler: str, given: Mapping[str, Any] | None = None
    ) -> dict[str, Value]:
        """Every option of a scheduler, as it would be, and where each came from."""
        known = self.scheduler_run_opts(scheduler)
        found = {o.name: Value(o.default, config.DEFAULT) for o in known if not o.required}
        found |= self.config.section("scheduler", scheduler, {o.name: None for o in known})
        cli = {key.replace("-", "_"): value for key, value in (given or {}).items()}
        return found | {key: Value(value, config.COMMAND_LINE) for key, value in cli.items()}

    def _options(self, name: str, scheduler: Scheduler[Any, Any], given: Mapping[str, Any]) -> Any:
        effective = self.effective_options(name, given)
        known = {o.name for o in options(scheduler.options)}
        for key, value in effective.items():
            if key not in known and value.origin != config.COMMAND_LINE:
                raise ConfigError(f"{value.origin}: {name} has no option {key!r}.")
        chosen = {k: v.value for k, v in effective.items() if v.origin != config.DEFAULT}
        return make(name, scheduler.options, chosen)

    def _scheduler(self, name: str, session: str | None = None) -> Scheduler[Any, Any]:
        key = name, session or self._name
        if key not in self._schedulers:
            self._schedulers[key] = create_scheduler(*key)
        return self._schedulers[key]


def _with_surroundings(
    role: Role, handle: str, workspace: str | None, parent_run_id: str | None
) -> Role:
    env = {"PHALANX_JOB_ID": handle}
    if parent_run_id is not None:
        env["PHALANX_PARENT_RUN_ID"] = parent_run_id
    place = role.workspace
    if place is None and workspace is not None:
        place = os.path.abspath(os.path.expanduser(workspace))
    if place is not None and not os.path.isdir(os.path.expanduser(place)):
        raise ConfigError(f"the workspace {place} is not a directory.")
    return dataclasses.replace(role, env={**env, **role.env}, workspace=place)


def _check_capabilities(name: str, scheduler: Scheduler[Any, Any], app: AppDef) -> None:
    """Refuse what a scheduler would otherwise have to ignore."""
    can = scheduler.capabilities
    if len(app.roles) > 1 and not can.several_roles:
        raise ConfigError(f"{name} runs apps of one role; {app.name!r} has {len(app.roles)}.")
    for role in app.roles:
        if role.mounts and not can.mounts:
            raise ConfigError(f"{name} cannot mount anything; role {role.name!r} has mounts.")
        if role.max_retries and role.retry_policy not in can.retry_policies:
            known = ", ".join(sorted(p.value for p in can.retry_policies)) or "none"
            raise ConfigError(
                f"{name} does not start again by {role.retry_policy.value}, as role {role.name!r} "
                f"wants; its retry policies: {known}."
            )


def _with_handle(app: AppSummary, scheduler: str, session: str) -> AppSummary:
    if app.app_handle:
        return app
    handle = handles.Handle(scheduler, session, app.app_id)
    return dataclasses.replace(app, app_handle=str(handle))


def _stream(text: str | None) -> Stream:
    try:
        return Stream.COMBINED if text is None else Stream(text)
    except ValueError:
        known = ", ".join(stream.value for stream in Stream)
        raise ConfigError(f"there is no stream {text!r}; there are: {known}.") from None


def _seconds(moment: float | datetime | None) -> float | None:
    return moment.timestamp() if isinstance(moment, datetime) else moment


def _plain(value: Any) -> Any:
    """A request or options, as far as JSON can show them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    return value
