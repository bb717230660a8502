"""The `aws_batch` scheduler: apps as jobs, whose tags are their record."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterator
from typing import Any

from phalanx._channel import tokens
from phalanx._images.plan import ImagePlan, plan_image
from phalanx._rendezvous.tcp.tokens import VARIABLE as RENDEZVOUS_TOKEN
from phalanx._schedulers.authoring import check_script, need, workspace_of
from phalanx._schedulers.aws_batch.logs import ReplicaLog, last_output
from phalanx._schedulers.aws_batch.names import DELETED, AppTags, BatchAppId, JobKind, tag_value
from phalanx._schedulers.aws_batch.options import AwsBatchOptions
from phalanx._schedulers.aws_batch.request import AwsBatchRequest, make_request
from phalanx._schedulers.aws_batch.rights import RIGHTS
from phalanx._schedulers.aws_batch.service import EXTRA, Denied, Service
from phalanx._schedulers.aws_batch.status import CANCEL_REASON, SeenJobs, seconds_of, state_of
from phalanx._schedulers.aws_batch.wait_reasons import why_waiting
from phalanx._schedulers.replicas.error_text import in_text, shown
from phalanx._schedulers.scheduler import Capabilities, LogLine, Scheduler, Stream
from phalanx._specs import AppDef, AppState, AppStatus, AppSummary, RetryPolicy
from phalanx._specs.app_def import SCRIPT
from phalanx.errors import ConfigError, UnknownApp

_NAME = "aws_batch"
_LISTED_DAYS = 14
"""The service forgets jobs a week after their end, or later."""
_MOST_ERRORS = 4
"""Failed replicas whose last words are read: each costs a request."""


class AwsBatchScheduler(Scheduler[AwsBatchOptions, AwsBatchRequest]):
    """Runs apps as jobs of a queue of AWS Batch."""

    options = AwsBatchOptions
    rights = RIGHTS
    capabilities = Capabilities(
        times=True,
        mounts=True,
        several_roles=True,
        retry_policies=frozenset(RetryPolicy),
        runs_images=True,
    )
    poll_interval = 5.0

    def __init__(self, session_name: str, **kwargs: object) -> None:
        """Remember the session. Nothing is asked yet."""
        super().__init__(session_name, **kwargs)
        self._services: dict[tuple[str | None, ...], Service] = {}

    def close(self) -> None:
        """Let go of connections. Apps go on."""
        for service in self._services.values():
            service.close()
        self._services.clear()

    def _service(
        self, region: str | None = None, profile: str | None = None, endpoint: str | None = None
    ) -> Service:
        key = region, profile, endpoint
        if key not in self._services:
            self._services[key] = Service(region, profile, endpoint)
        return self._services[key]

    # ── submitting ────────────────────────────────────────────────────────────

    def dryrun(self, app: AppDef, options: AwsBatchOptions) -> AwsBatchRequest:
        """The job definition and the job. Asks nobody."""
        need("boto3", EXTRA)
        plans: dict[str, ImagePlan] = {}
        for role in app.roles:
            if not role.workspace or not role.image:
                continue
            workspace = workspace_of(role)
            script = role.metadata.get(SCRIPT)
            if isinstance(script, str) and not os.path.isabs(script):
                check_script(script, workspace)
            if options.image_repo is None:
                raise ConfigError(
                    f"{_NAME}: {workspace} travels in an image: say where to push it with "
                    "-cfg image_repo=…, or run the image as it is with --workspace ''."
                )
            plans[role.name] = plan_image(role.image, workspace, image_repo=options.image_repo)
        return make_request(app, self.session_name, _user(), options, self.rank0_env, plans)

    def submit(self, request: AwsBatchRequest) -> str:
        """Have the images and the definition, and submit the job.

        Raises `ConfigError`, and `SchedulerError` with the service's own reason.
        """
        app = request.app
        service = self._service(app.region, app.profile, app.endpoint)
        definition = service.have_definition(request.with_images(_build_images(request)))
        several = request.kind is JobKind.NODES
        hidden = {RENDEZVOUS_TOKEN: tokens.make_token()} if several else {}
        service.submit(request.submission(definition, hidden))
        return str(app)

    # ── how apps stand ────────────────────────────────────────────────────────

    def _find(self, app_id: str) -> tuple[Service, AppTags, dict[str, Any]] | None:
        app = BatchAppId.parse(app_id)
        if app is None:
            return None
        service = self._service(app.region, app.profile, app.endpoint)
        jobs = service.jobs(service.find_jobs(app.queue, "JOB_NAME", app.name)[-1:])
        for job in jobs.values():
            tags = AppTags.parse(job.get("tags") or {})
            if tags is not None and tags.session == tag_value(self.session_name):
                return service, tags, job
        return None

    def describe(self, app_id: str) -> AppStatus | None:
        """How an app stands."""
        found = self._find(app_id)
        if found is None:
            return None
        service, tags, job = found
        children: dict[str, dict[str, Any]] = {}
        if tags.kind is not JobKind.CONTAINER:
            numbers = range(tags.num_replicas)
            children = service.jobs([tags.kind.child(job["jobId"], i) for i in numbers])
        seen = SeenJobs(app_id, tags, job, children)
        waits = "" if state_of(job) is not AppState.PENDING else _why(service, job)
        return seen.status(waits, _errors(service, seen), service.page_of(job["jobId"]))

    def list(self) -> list[AppSummary]:
        """All apps of this session and user of the last two weeks, in the current region."""
        service = self._service()
        after = str(round((time.time() - _LISTED_DAYS * 86400) * 1000))
        found = []
        for queue in service.queues():
            name = queue["jobQueueName"]
            for job in service.jobs(service.find_jobs(name, "AFTER_CREATED_AT", after)).values():
                tags = AppTags.parse(job.get("tags") or {})
                own = tag_value(self.session_name), tag_value(_user())
                if tags is not None and (tags.session, tags.user) == own:
                    found.append((job, tags, BatchAppId(name, job["jobName"])))
        found.sort(key=lambda one: one[0].get("createdAt") or 0)
        return [
            AppSummary(
                str(app),
                state_of(job),
                tags.name,
                f"{_NAME}://{self.session_name}/{app}",
                seconds_of(job),
            )
            for job, tags, app in found
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
        service, tags, job = found
        words = [part.name for part in tags.roles]
        if tag_value(role) not in words:
            raise LookupError(f"{app_id} has no role {role!r}; choose one of {', '.join(words)}")
        index = words.index(tag_value(role))
        if not 0 <= replica < tags.roles[index].replicas:
            count = tags.roles[index].replicas
            raise LookupError(f"{role} of {app_id} has {count} replicas, no {replica}")
        job_id = str(job["jobId"])
        child = tags.kind.child(job_id, tags.first(index) + replica)

        def has_ended() -> bool:
            now = service.jobs([job_id]).get(job_id)
            return now is None or state_of(now).is_final

        log = ReplicaLog(
            service, role, replica, lambda: service.jobs([child]).get(child), has_ended
        )
        return log.read(since, until, follow=follow)

    # ── ends ──────────────────────────────────────────────────────────────────

    def cancel(self, app_id: str) -> None:
        """Have the service end it: a job that waits never begins, one that runs gets SIGTERM."""
        found = self._find(app_id)
        if found is not None:
            service, _, job = found
            _cancel(service, job)

    def delete(self, app_id: str) -> None:
        """Cancel it, and hide it: the service forgets jobs by itself, and only then."""
        found = self._find(app_id)
        if found is not None:
            service, _, job = found
            _cancel(service, job)
            service.tag(job["jobArn"], {DELETED: _user_tag()})


def _cancel(service: Service, job: dict[str, Any]) -> None:
    if not state_of(job).is_final:
        service.terminate(job["jobId"], f"{CANCEL_REASON} by {_user_tag()}")


def _user() -> str:
    """Who submits."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def _user_tag() -> str:
    return tag_value(_user())


def _build_images(request: AwsBatchRequest) -> dict[int, str]:
    """Build and push the images of roles with a workspace, by the number of their role."""
    if not request.plans:
        return {}
    from phalanx._images.builder import provide
    from phalanx._schedulers.docker.engine import Engine

    with Engine() as engine:
        return {number: provide(plan, engine.api) for number, plan in request.plans.items()}


def _why(service: Service, job: dict[str, Any]) -> str:
    """Why a job waits; who may not look at the queue hears less."""
    try:
        queues = service.queues([job["jobQueue"]])
        order = queues[0].get("computeEnvironmentOrder") or [] if queues else []
        environments = service.compute_environments([one["computeEnvironment"] for one in order])
    except Denied:
        return why_waiting(job, None, ())
    return why_waiting(job, queues[0] if queues else None, environments)


def _errors(service: Service, seen: SeenJobs) -> dict[int, str]:
    """The last words of failed replicas; who may not read logs does without."""
    found: dict[int, str] = {}
    try:
        for number in seen.failed_replicas()[:_MOST_ERRORS]:
            job = seen.replica(number)
            if job is not None:
                found[number] = shown(in_text(last_output(service, job)))
    except Denied:
        return found
    return found
