"""One app that was submitted, as its scheduler and our record know it.

It knows neither components nor the configuration.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from phalanx._registry import recorded_app
from phalanx._registry.recorded_app import RecordedApp
from phalanx._runner.handles import Handle
from phalanx._schedulers.patience import Patience
from phalanx._schedulers.scheduler import LogLine, Scheduler, Stream
from phalanx._schedulers.scheduler_calls import asking, expect, guarded
from phalanx._specs import AppDef, AppState, AppStatus, AppSummary, serialization
from phalanx.errors import ConfigError, SchedulerUnreachable, UnknownApp, UnknownScheduler


class SubmittedApp:
    """An app by its handle. Nothing is asked before a method is called."""

    def __init__(
        self, handle: Handle, get_scheduler: Callable[[str, str], Scheduler[Any, Any]]
    ) -> None:
        """`get_scheduler` takes a scheduler's name and a session."""
        self._handle = handle
        self._get_scheduler = get_scheduler

    @property
    def _scheduler(self) -> Scheduler[Any, Any]:
        return self._get_scheduler(self._handle.scheduler, self._handle.session)

    def status(self) -> AppStatus | None:
        """How it stands; None if there is no such app."""
        scheduler = self._scheduler
        with asking(self._handle.scheduler):
            status = scheduler.describe(self._handle.app_id)
            return None if status is None else expect(status, AppStatus)

    def watch(
        self, interval: float | None, *, submitted: bool = False
    ) -> Iterator[AppStatus | None]:
        """The status again and again until the app has ended; by default less and less often.

        Of a scheduler that does not answer any more it is what it was, for a while; `submitted`: it
        has just taken the app.
        """
        pause = self._scheduler.poll_interval
        longest = pause * 10
        if interval is not None:
            pause = longest = interval
        patience, status = Patience(), None
        if submitted:
            status = AppStatus(self._handle.app_id, AppState.SUBMITTED)
        while True:
            try:
                status = self.status()
            except SchedulerUnreachable as error:
                if status is None:
                    raise
                patience.bear(error)
            else:
                patience.answered()
            yield status
            if status is None or status.state.is_final:
                return
            time.sleep(pause)
            pause = min(pause * 1.1, longest)

    def cancel(self, grace: float | None) -> None:
        """Cancel it, if it has not ended."""
        scheduler = self._scheduler
        if grace is not None and not scheduler.capabilities.grace:
            raise ConfigError(f"{self._handle.scheduler} does not support a grace period.")
        more = {} if grace is None else {"grace": grace}
        with asking(self._handle.scheduler):
            scheduler.cancel(self._handle.app_id, **more)

    def delete(self) -> None:
        """Cancel it and delete all of it; without its scheduler, what is recorded."""
        app = recorded(self._handle)
        try:
            scheduler = self._scheduler
        except UnknownScheduler:
            if app is None:
                raise
        else:
            with asking(self._handle.scheduler):
                scheduler.delete(self._handle.app_id)
        if app is not None:
            app.remove(logs=True)

    def definition(self) -> AppDef | None:
        """What it was made from, if that is recorded."""
        app = recorded(self._handle)
        definition = {} if app is None else app.definition()
        return serialization.from_dict(definition["app"]) if "app" in definition else None

    def replicas(self) -> dict[str, int]:
        """How many replicas each role has, as recorded, or as the scheduler says."""
        app = recorded(self._handle)
        if app is not None:
            return {role["name"]: len(role["replicas"]) for role in app.facts["roles"]}
        status = self.status()
        if status is None:
            raise UnknownApp(f"no such app: {self._handle}")
        return {role.role: len(role.replicas) for role in status.roles}

    def first_role(self) -> str:
        """The role whose output is meant when none is named. Raises `LookupError`."""
        roles = self.replicas()
        if not roles:
            raise LookupError(f"name a role of {self._handle}: its scheduler does not list them")
        return next(iter(roles))

    def lines(
        self,
        role: str,
        replica: int,
        *,
        stream: Stream,
        since: float | datetime | None,
        until: float | datetime | None,
        follow: bool,
    ) -> Iterator[LogLine]:
        """What a replica has printed; refused where the scheduler cannot choose like this."""
        name = self._handle.scheduler
        self._check_choice(stream, timed=(since, until) != (None, None))
        with asking(name):
            lines = self._scheduler.logs(
                self._handle.app_id,
                role,
                replica,
                stream=stream,
                since=_seconds(since),
                until=_seconds(until),
                follow=follow,
            )
            return guarded(name, iter(lines))

    def lines_back(
        self,
        role: str,
        replica: int,
        *,
        stream: Stream,
        since: float | datetime | None,
        until: float | datetime | None,
    ) -> Iterator[LogLine] | None:
        """What a replica has printed, the last line first; None where that cannot be had."""
        name = self._handle.scheduler
        self._check_choice(stream, timed=(since, until) != (None, None))
        with asking(name):
            lines = self._scheduler.lines_back(self._handle.app_id, role, replica, stream=stream)
            if lines is None:
                return None
            first, last = _seconds(since), _seconds(until)
            # One whose time was not noted is not left out.
            recent = itertools.takewhile(
                lambda line: first is None or line.time is None or line.time >= first,
                guarded(name, iter(lines)),
            )
            return (x for x in recent if last is None or x.time is None or x.time < last)

    def _check_choice(self, stream: Stream, *, timed: bool) -> None:
        name, capabilities = self._handle.scheduler, self._scheduler.capabilities
        if stream is not Stream.COMBINED and not capabilities.streams:
            raise ConfigError(f"{name} does not separate stdout and stderr.")
        if timed and not capabilities.times:
            raise ConfigError(f"{name} does not record the times of lines.")

    def unfinished_line(self, role: str, replica: int, stream: Stream) -> str:
        """What a replica has printed of a line that has not ended."""
        with asking(self._handle.scheduler):
            app_id = self._handle.app_id
            line = self._scheduler.unfinished_line(app_id, role, replica, stream=stream)
            return expect(line, str)


def recorded(handle: Handle) -> RecordedApp | None:
    """Our record of an app, if there is one."""
    return recorded_app.by_handle(handle.scheduler, handle.session, handle.app_id)


def completed(app: AppSummary, scheduler: str, session: str) -> AppSummary:
    """With the handle, and with the name that was recorded, where the scheduler has none."""
    handle = Handle(scheduler, session, app.app_id)
    name = app.name
    if not name and (known := recorded(handle)) is not None:
        name = str(known.facts["name"])
    return dataclasses.replace(app, name=name, app_handle=app.app_handle or str(handle))


def to_stream(text: str | None) -> Stream:
    """The stream of this name; None: both. Raises `ConfigError`."""
    try:
        return Stream.COMBINED if text is None else Stream(text)
    except ValueError:
        known = ", ".join(stream.value for stream in Stream)
        raise ConfigError(f"unknown stream {text!r}; choose one of {known}.") from None


def _seconds(moment: float | datetime | None) -> float | None:
    return moment.timestamp() if isinstance(moment, datetime) else moment
