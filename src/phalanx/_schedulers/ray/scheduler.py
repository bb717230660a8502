"""The `ray` scheduler: apps as jobs of a Ray cluster, whose metadata is their record."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterator
from typing import Any

from phalanx._channel import tokens
from phalanx._core.json_text import parse_json
from phalanx._images.context import BuildContext
from phalanx._rendezvous.tcp.tokens import VARIABLE as RENDEZVOUS_TOKEN
from phalanx._schedulers.authoring import check_script, files_needed, workspace_of
from phalanx._schedulers.leases import Lease, LeaseRequest
from phalanx._schedulers.patience import Patience
from phalanx._schedulers.ray import job_log
from phalanx._schedulers.ray.api.addresses import dashboard_of
from phalanx._schedulers.ray.api.dashboard import Dashboard
from phalanx._schedulers.ray.api.job import seconds_of, state_of, with_driver
from phalanx._schedulers.ray.api.package import (
    pack_driver,
    pack_project,
    plan_project,
    read_requirements,
)
from phalanx._schedulers.ray.apps.names import JobMetadata, RayApp
from phalanx._schedulers.ray.apps.request import RayRequest, make_request
from phalanx._schedulers.ray.apps.status import SeenRayApp
from phalanx._schedulers.ray.options import RayOptions
from phalanx._schedulers.scheduler import Capabilities, LogLine, Scheduler, Stream
from phalanx._specs import AppDef, AppState, AppStatus, AppSummary, RetryPolicy, Role
from phalanx._specs.app_def import SCRIPT
from phalanx.errors import ConfigError, SchedulerError, SchedulerUnreachable, UnknownApp

_NAME = "ray"
_DELETING = 60.0
"""Seconds for a job that was stopped to end."""
_WATCHED = 1.5
"""Seconds for which Ray watches over a job that has ended."""
_BEHIND = 0.5
"""Seconds between two readings of a small log, for those who follow it."""
_SHARE = 10
"""A log that takes a second to read is read every so many seconds."""


class RayScheduler(Scheduler[RayOptions, RayRequest]):
    """Runs apps on a Ray cluster, through the job API of its dashboard."""

    options = RayOptions
    capabilities = Capabilities(
        streams=True,
        times=True,
        several_roles=True,
        host_files=True,
        keeps_apps=True,
        lends_hosts=True,
        retry_policies=frozenset(RetryPolicy),
    )
    poll_interval = 1.0

    # ── submitting ────────────────────────────────────────────────────────────

    def dryrun(self, app: AppDef, options: RayOptions) -> RayRequest:
        """The job, and what its driver is told."""
        if name := options.for_lent_hosts:
            raise ConfigError(
                f"{_NAME}: {name} is for hosts that are lent to launches. For an app, set the "
                "resource of its role."
            )
        projects: dict[str, BuildContext] = {}
        directories = {role.name: self._directory(role, options) for role in app.roles}
        if not options.has_remote_directory:
            only = {} if options.working_dir is not None else files_needed(app.roles)
            projects = {p: plan_project(p, only.get(p)) for p in set(directories.values())}
        return make_request(
            app,
            dashboard_of(options, os.environ),
            self.session_name,
            _user(),
            options,
            self.rank0_env,
            projects,
            directories,
            read_requirements(options.requirements),
        )

    def _directory(self, role: Role, options: RayOptions) -> str:
        if options.working_dir is None:
            directory = workspace_of(role)
        elif options.has_remote_directory:
            return options.working_dir
        else:
            directory = os.path.abspath(os.path.expanduser(options.working_dir))
            if not os.path.isdir(directory):
                raise ConfigError(f"{_NAME}: working_dir {directory} is not a directory.")
        script = role.metadata.get(SCRIPT)
        if isinstance(script, str) and not os.path.isabs(script):
            check_script(script, directory)
        return directory

    def submit(self, request: RayRequest) -> str:
        """Send the project and the driver, and submit the job.

        Raises `SchedulerError` with the cluster's own reason.
        """
        dashboard = Dashboard(request.app.dashboard)
        uris = {
            path: pack_project(one).provide(dashboard) for path, one in request.projects.items()
        }
        hidden = {RENDEZVOUS_TOKEN: tokens.make_token()}
        driver = {
            **request.driver,
            "token": tokens.make_token(),
            "replicas": [
                {
                    **one,
                    "working_dir": uris.get(one["working_dir"], one["working_dir"]),
                    "env": {**hidden, **one["env"]},
                }
                for one in request.driver["replicas"]
            ],
        }
        dashboard.submit(with_driver(request.job, pack_driver(driver).provide(dashboard)))
        return str(request.app)

    # ── how apps stand ────────────────────────────────────────────────────────

    def _find(self, app_id: str) -> tuple[Dashboard, str, JobMetadata, dict[str, Any]] | None:
        app = RayApp.parse(app_id)
        if app is None:
            return None
        dashboard = Dashboard(app.dashboard)
        job = dashboard.job(app.name)
        metadata = JobMetadata.parse((job or {}).get("metadata") or {})
        if job is None or metadata is None or metadata.session != self.session_name:
            return None
        return dashboard, app.name, metadata, job

    def describe(self, app_id: str) -> AppStatus | None:
        """How an app stands."""
        found = self._find(app_id)
        if found is None:
            return None
        dashboard, name, metadata, job = found
        state = state_of(job)
        said, log = _said(dashboard, name, job), ""
        if state.is_final and (said is None or not said.get("final")):
            log = dashboard.log(name)
            said = job_log.last_status(log) or said
        return SeenRayApp(app_id, metadata, job, said, log).status(time.time())

    def list(self) -> list[AppSummary]:
        """All apps of this session and user, on the cluster that the environment names."""
        address = dashboard_of(RayOptions(), os.environ)
        found = []
        for job in Dashboard(address).jobs():
            metadata = JobMetadata.parse(job.get("metadata") or {})
            if metadata is None or not job.get("submission_id"):
                continue
            if (metadata.session, metadata.user) == (self.session_name, _user()):
                app = RayApp(address, job["submission_id"])
                found.append((metadata.lifecycle.created, app, metadata, job))
        found.sort(key=lambda one: one[0])
        return [
            AppSummary(
                str(app),
                state_of(job),
                metadata.name,
                f"{_NAME}://{self.session_name}/{app}",
                seconds_of(job, time.time()),
            )
            for _, app, metadata, job in found
        ]

    # ── logs ──────────────────────────────────────────────────────────────────

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
        """What a replica has printed, all of its attempts."""
        found = self._find(app_id)
        if found is None:
            raise UnknownApp(f"no such app: {app_id!r}")
        dashboard, name, metadata, _ = found
        counts = {part.name: part.replicas for part in metadata.lifecycle.roles}
        if role not in counts:
            raise LookupError(f"{app_id} has no role {role!r}; choose one of {', '.join(counts)}")
        if not 0 <= replica < counts[role]:
            raise LookupError(f"{role} of {app_id} has {counts[role]} replicas, no {replica}")
        lines = _follow(dashboard, name, role, replica) if follow else None
        for line in lines or job_log.lines_of(dashboard.log(name), role, replica):
            moment = line.time or 0.0
            if until is not None and moment >= until:
                return
            is_wanted = stream in (Stream.COMBINED, line.stream)
            if is_wanted and (since is None or moment >= since):
                yield line

    # ── ends ──────────────────────────────────────────────────────────────────

    def cancel(self, app_id: str) -> None:
        """Have Ray stop the job: replicas get SIGTERM, and SIGKILL after `stop_grace`."""
        found = self._find(app_id)
        if found is not None:
            dashboard, name, _, job = found
            if not state_of(job).is_final:
                dashboard.stop(name)

    def delete(self, app_id: str) -> None:
        """Cancel it, wait for its end, and have Ray forget it."""
        found = self._find(app_id)
        if found is None:
            return
        dashboard, name, _, job = found
        limit = time.monotonic() + _DELETING
        while not state_of(job).is_final:
            dashboard.stop(name)
            if time.monotonic() > limit:
                raise SchedulerError(f"{app_id} does not end: it was not deleted.")
            time.sleep(0.2)
            job = dashboard.job(name) or {"status": "STOPPED"}
        # Who watches over jobs would write it down once more, as one that has failed.
        since = time.time() - (job.get("end_time") or 0) / 1000
        time.sleep(min(max(0.0, _WATCHED - since), _WATCHED))
        dashboard.delete(name)

    # ── hosts for launches ────────────────────────────────────────────────────

    def lend(self, request: LeaseRequest) -> Lease:
        """Ask for a placement group; does not wait."""
        from phalanx._schedulers.ray.hosts.lease import lend

        return lend(request)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def _said(dashboard: Dashboard, name: str, job: dict[str, Any]) -> dict[str, Any] | None:
    """What a driver has last said of its app."""
    node = job.get("driver_node_id")
    if not node or state_of(job) is AppState.PENDING:
        return None
    text = dashboard.file(node, job_log.status_file(name))
    try:
        found = parse_json(text[text.index("{") :]) if text and "{" in text else None
    except ValueError:
        found = None
    if found is None and text is None:
        found = job_log.last_status(dashboard.log(name))
    return found if isinstance(found, dict) else None


def _follow(dashboard: Dashboard, name: str, role: str, replica: int) -> Iterator[LogLine]:
    """All lines, as they come, until the job has ended."""
    seen, took, patience = 0, 0.0, Patience()
    while True:
        try:
            job = dashboard.job(name)
            is_last = job is None or state_of(job).is_final
            began = time.monotonic()
            lines = list(job_log.lines_of(dashboard.log(name), role, replica))
            took = time.monotonic() - began
        except SchedulerUnreachable as error:
            patience.bear(error)
            time.sleep(_BEHIND)
            continue
        patience.answered()
        yield from lines[seen:]
        seen = max(seen, len(lines))
        if is_last:
            return
        time.sleep(max(_BEHIND, took * _SHARE))
