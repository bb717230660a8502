"""The `local_docker` scheduler: apps as containers, which are their own record."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping

from phalanx._images.plan import ImagePlan, plan_image
from phalanx._schedulers.authoring import check_script, workspace_of
from phalanx._schedulers.daemon import Successors
from phalanx._schedulers.docker import labels
from phalanx._schedulers.docker.actions import carry_out, stop_all
from phalanx._schedulers.docker.creation import create_containers, have_images
from phalanx._schedulers.docker.engine import Engine
from phalanx._schedulers.docker.logs import ReplicaOutput
from phalanx._schedulers.docker.options import DockerOptions
from phalanx._schedulers.docker.replica_errors import error_of
from phalanx._schedulers.docker.request import (
    DockerRequest,
    make_request,
    user_name,
)
from phalanx._schedulers.docker.supervisor import start_supervisor
from phalanx._schedulers.leases import Lease, LeaseRequest
from phalanx._schedulers.parallel import for_all
from phalanx._schedulers.replicas.assessment import REMOVED, Assessment, SeenApp, assess
from phalanx._schedulers.replicas.error_text import ReplicaError, describe_missed
from phalanx._schedulers.replicas.lifecycle import ReplicaKey
from phalanx._schedulers.scheduler import Capabilities, LogLine, Scheduler, Stream
from phalanx._specs import (
    AppDef,
    AppState,
    AppStatus,
    AppSummary,
    ReplicaStatus,
    RetryPolicy,
    RoleStatus,
)
from phalanx._specs.app_def import SCRIPT
from phalanx.errors import ConfigError, SchedulerError, UnknownApp

_NAME = "local_docker"
_ROOT = "root"
_OVERDUE = 3.0
"""Seconds after which what is to be done for an app has nobody who does it."""


class DockerScheduler(Scheduler[DockerOptions, DockerRequest]):
    """Runs apps as containers of the engine that the environment names."""

    options = DockerOptions
    capabilities = Capabilities(
        streams=True,
        times=True,
        mounts=True,
        grace=True,
        several_roles=True,
        keeps_apps=True,
        lends_hosts=True,
        retry_policies=frozenset(RetryPolicy),
        runs_images=True,
    )
    poll_interval = 0.2

    def __init__(self, session_name: str, **kwargs: object) -> None:
        """Remember the session. Nothing is asked yet."""
        super().__init__(session_name, **kwargs)
        self._successors = Successors(start_supervisor)

    # ── submitting ────────────────────────────────────────────────────────────

    def dryrun(self, app: AppDef, options: DockerOptions) -> DockerRequest:
        """The containers that would be created, and the images that would be built."""
        if name := options.for_lent_hosts:
            raise ConfigError(
                f"{_NAME}: {name} is for hosts that are lent to launches. For an app, set the "
                "resource of its role."
            )
        plans: dict[str, ImagePlan | None] = {}
        made: dict[tuple[str, str], ImagePlan] = {}
        for role in app.roles:
            if role.workspace and role.image:
                workspace = workspace_of(role)
                script = role.metadata.get(SCRIPT)
                if isinstance(script, str) and not os.path.isabs(script):
                    check_script(script, workspace)
                if (role.image, workspace) not in made:
                    made[role.image, workspace] = plan_image(
                        role.image, workspace, image_repo=options.image_repo
                    )
                plans[role.name] = made[role.image, workspace]
        return make_request(app, self.session_name, options, self.rank0_env, plans, os.environ)

    def submit(self, request: DockerRequest) -> str:
        """Have the images, create the containers, and start them.

        Raises `ConfigError`, and `SchedulerError` with the engine's own reason.
        """
        with Engine() as engine:
            images = have_images(engine, request)
            if engine.find(request.app_id) is not None:
                raise SchedulerError(f"{request.app_id} has already been submitted.")
            try:
                made = create_containers(engine, request, images)
                for_all(engine.start, made)
                found = engine.find(request.app_id)
                if found is not None and found.cancelled is not None:
                    carry_out(engine, found)  # while it was being submitted
                if request.lifecycle_record.needs_supervisor:
                    start_supervisor(request.app_id)
            except BaseException:  # nobody would know of it
                engine.remove_all(request.app_id)
                raise
        return request.app_id

    # ── how apps stand ────────────────────────────────────────────────────────

    def describe(self, app_id: str) -> AppStatus | None:
        """How an app stands."""
        with Engine() as engine:
            app = engine.find(app_id, self.session_name)
            if app is None:
                return None
            assessed = self._assess(app)
            return _status(engine, app, assessed)

    def list(self) -> list[AppSummary]:
        """All apps of this session and user."""
        wanted = {labels.SESSION: self.session_name, labels.USER: user_name()}
        with Engine() as engine:
            found = engine.find_all(wanted)
        assessed = [(app, self._assess(app).state) for app in found]
        return [
            AppSummary(
                app.app_id,
                state,
                app.name,
                f"{_NAME}://{app.session}/{app.app_id}",
                _seconds(app, state),
            )
            for app, state in assessed
        ]

    def _assess(self, app: SeenApp) -> Assessment:
        """Where something is overdue, whoever was to do it is gone: another is started."""
        assessed = assess(app, time.time())
        is_overdue = assessed.is_due and time.time() - (assessed.since or 0.0) > _OVERDUE
        if is_overdue and time.time() - app.lifecycle_record.created > _OVERDUE:
            self._successors.start(app.app_id)
        return assessed

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
        with Engine() as engine:
            record = engine.lifecycle_record(app_id, self.session_name)
        if record is None:
            raise UnknownApp(f"no such app: {app_id!r}")
        counts = {part.name: part.replicas for part in record.roles}
        if role not in counts:
            raise LookupError(f"{app_id} has no role {role!r}; choose one of {', '.join(counts)}")
        if not 0 <= replica < counts[role]:
            raise LookupError(f"{role} of {app_id} has {counts[role]} replicas, no {replica}")

        def has_ended(engine: Engine) -> bool:
            app = engine.find(app_id, self.session_name)
            return app is None or self._assess(app).state.is_final

        output = ReplicaOutput(app_id, self.session_name, (role, replica), has_ended)
        return output.read(stream, since, until, follow=follow)

    # ── ends ──────────────────────────────────────────────────────────────────

    def cancel(self, app_id: str, grace: float | None = None) -> None:
        """Note that it is cancelled, in the engine, and stop its containers. Blocks until then.

        Raises `SchedulerError` for another user's app; root may cancel any.
        """
        with Engine() as engine:
            app = engine.find(app_id, self.session_name)
            if app is not None:
                _check_owner(app, "cancel")
                _cancel(engine, app, grace)

    def delete(self, app_id: str) -> None:
        """Remove all of an app from the engine: containers, network, volumes.

        Raises `SchedulerError` for another user's app; root may delete any.
        """
        with Engine() as engine:
            app = engine.find(app_id, self.session_name)
            if app is None:
                return
            _check_owner(app, "delete")
            _cancel(engine, app, None)
            engine.remove_all(app_id)

    # ── hosts for launches ────────────────────────────────────────────────────

    def lend(self, request: LeaseRequest) -> Lease:
        """Create containers; does not wait."""
        from phalanx._schedulers.docker.lease import DockerLease

        return DockerLease(request, os.environ)


# ── ends ──────────────────────────────────────────────────────────────────────


def _check_owner(app: SeenApp, what: str) -> None:
    """The engine lets its users do everything to all containers: this guards against mistakes."""
    if user_name() not in (app.user, _ROOT):
        raise SchedulerError(
            f"{app.app_id} is {app.user}'s app. To {what} it all the same: sudo phalanx {what} "
            f"{_NAME}://{app.session}/{app.app_id}"
        )


def _cancel(engine: Engine, app: SeenApp, grace: float | None) -> None:
    if assess(app, time.time()).state.is_final:
        return
    own = {
        labels.APP: app.app_id,
        labels.USER: app.user,
        labels.CANCELLED: repr(time.time()),
    }
    engine.create_volume(f"{app.app_id}-cancelled", own)
    found = engine.find(app.app_id)
    while found is not None:
        assessed = assess(found, time.time())
        if assessed.state.is_final:
            return
        stop_all(
            engine, assessed.to_stop, app.lifecycle_record.stop_grace if grace is None else grace
        )
        if not assessed.to_stop:
            time.sleep(0.05)
        found = engine.find(app.app_id)


# ── status ────────────────────────────────────────────────────────────────────


def _status(engine: Engine, app: SeenApp, assessed: Assessment) -> AppStatus:
    life = assessed.lifecycle
    errors = {
        key: _error(engine, assessed, key)
        for key, state in life.states.items()
        if state is AppState.FAILED
    }
    replicas = {key: _replica(assessed, key, errors.get(key)) for key in life.states}
    cause = _cause(assessed, errors)
    message, code = assessed.message, None
    if assessed.state is AppState.SUCCEEDED:
        code = 0
    elif assessed.state is AppState.FAILED:
        container = None if cause is None else assessed.current[cause]
        code = 1 if container is None else container.end.code or 1
    if cause is not None and not message:
        status = replicas[cause]
        worker = errors[cause].describe_worker() if cause in errors else ""
        missed = describe_missed(errors.values())
        message = f"{cause[0]}/{cause[1]} {status.describe()}{worker}{missed}"
    return AppStatus(
        app=app.app_id,
        state=assessed.state,
        message=message,
        seconds=_seconds(app, assessed.state),
        roles=tuple(
            RoleStatus(part.name, tuple(replicas[part.name, i] for i in range(part.replicas)))
            for part in app.lifecycle_record.roles
        ),
        num_restarts=life.restarts,
        exit_code=code,
    )


def _seconds(app: SeenApp, state: AppState) -> float | None:
    """How long an app has run, or ran."""
    ends = [container.finished or 0.0 for container in app.containers]
    last = max(ends, default=0.0) if state.is_final else time.time()
    return max(0.0, last - app.lifecycle_record.created) if last else None


def _error(engine: Engine, assessed: Assessment, key: ReplicaKey) -> ReplicaError:
    container = assessed.current[key]
    if container is None:
        return ReplicaError(REMOVED if not assessed.message else "")
    return error_of(engine, container)


def _cause(assessed: Assessment, errors: Mapping[ReplicaKey, ReplicaError]) -> ReplicaKey | None:
    """The replica that the app's failure is told of: not one that has only heard of another's."""
    first = assessed.lifecycle.first_failure
    if first is not None and first in errors and errors[first].is_remote:
        return next((key for key, error in errors.items() if error.is_own), first)
    return first


def _replica(assessed: Assessment, key: ReplicaKey, error: ReplicaError | None) -> ReplicaStatus:
    container = assessed.current[key]
    state = assessed.lifecycle.states[key]
    end = container.end if container is not None and container.has_ended else None
    return ReplicaStatus(
        key[1],
        key[0],
        state,
        hostname="" if container is None else container.hostname,
        exit_code=None if end is None else end.exit_code,
        signal=None if end is None else end.signal,
        error="" if error is None else error.text,
        pid=None if container is None else container.pid,
        retries=assessed.lifecycle.retries[key],
        traceback="" if error is None else error.traceback,
    )
