"""The `local_docker` scheduler: apps as containers, which are their own record."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

from phalanx._channel import trust
from phalanx._images.builder import ensure_image, provide
from phalanx._images.plan import ImagePlan, plan_image
from phalanx._logs import logger
from phalanx._rendezvous.tcp.tokens import VARIABLE as RENDEZVOUS_TOKEN
from phalanx._schedulers.authoring import check_script, workspace_of
from phalanx._schedulers.docker import labels
from phalanx._schedulers.docker.carrying import carry_out, for_all, stop_all
from phalanx._schedulers.docker.course import REMOVED, Assessment, SeenApp, assess
from phalanx._schedulers.docker.engine import Engine
from phalanx._schedulers.docker.errors_of import error_of
from phalanx._schedulers.docker.logs import ReplicaOutput
from phalanx._schedulers.docker.options import DockerOptions
from phalanx._schedulers.docker.request import (
    CODE_PATH,
    ContainerRequest,
    DockerRequest,
    code_volume,
    make_request,
    user_name,
)
from phalanx._schedulers.docker.supervisor import start_supervisor
from phalanx._schedulers.scheduler import Capabilities, LogLine, Scheduler, Stream
from phalanx._schedulers.supervised.error_text import ReplicaError
from phalanx._schedulers.supervised.lifecycle import ReplicaKey
from phalanx._schedulers.supervised.request import RANK0_PORT
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
from phalanx.errors import SchedulerError, UnknownApp

_NAME = "local_docker"
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
        retry_policies=frozenset(RetryPolicy),
        runs_images=True,
    )
    poll_interval = 0.2

    def __init__(self, session_name: str, **kwargs: object) -> None:
        """Remember the session. Nothing is asked yet."""
        super().__init__(session_name, **kwargs)
        self._helped: set[str] = set()
        """Apps for which this object has started a supervisor."""

    # ── submitting ────────────────────────────────────────────────────────────

    def dryrun(self, app: AppDef, options: DockerOptions) -> DockerRequest:
        """The containers that would be created, and the images that would be built."""
        plans: dict[str, ImagePlan | None] = {}
        made: dict[tuple[str, str], ImagePlan] = {}
        for role in app.roles:
            if role.workspace and role.image:
                place = workspace_of(role)
                script = role.metadata.get(SCRIPT)
                if isinstance(script, str) and not os.path.isabs(script):
                    check_script(script, place)
                if (role.image, place) not in made:
                    made[role.image, place] = plan_image(
                        role.image, place, image_repo=options.image_repo
                    )
                plans[role.name] = made[role.image, place]
        return make_request(app, self.session_name, options, self.rank0_env, plans, os.environ)

    def submit(self, request: DockerRequest) -> str:
        """Have the images, create the containers, and start them.

        Raises `ConfigError`, and `SchedulerError` with the engine's own reason.
        """
        with Engine() as engine:
            images = _images(engine, request)
            if engine.find(request.app_id) is not None:
                raise SchedulerError(f"{request.app_id} has already been submitted.")
            try:
                made = _create(engine, request, images)
                for_all(engine.start, made)
            except BaseException:
                engine.remove_all(request.app_id)
                raise
            found = engine.find(request.app_id)
            if found is not None and found.cancelled is not None:
                carry_out(engine, found)  # while it was being submitted
        if request.course.needs_supervisor:
            start_supervisor(request.app_id)
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
        return [
            AppSummary(
                app.app_id,
                self._assess(app).state,
                app.name,
                f"{_NAME}://{app.session}/{app.app_id}",
            )
            for app in found
        ]

    def _assess(self, app: SeenApp) -> Assessment:
        """Where something is overdue, whoever was to do it is gone: another is started."""
        assessed = assess(app, time.time())
        is_overdue = assessed.is_due and time.time() - (assessed.since or 0.0) > _OVERDUE
        if is_overdue and time.time() - app.course.created > _OVERDUE:
            if app.app_id not in self._helped:
                self._helped.add(app.app_id)
                start_supervisor(app.app_id)
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
            course = engine.course(app_id, self.session_name)
        if course is None:
            raise UnknownApp(f"no such app: {app_id!r}")
        counts = {part.name: part.replicas for part in course.roles}
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
        """Note that it is cancelled, in the engine, and stop its containers. Blocks until then."""
        with Engine() as engine:
            app = engine.find(app_id, self.session_name)
            if app is not None:
                _cancel(engine, app, grace)

    def delete(self, app_id: str) -> None:
        """Remove all of an app from the engine: containers, network, volumes."""
        with Engine() as engine:
            app = engine.find(app_id, self.session_name)
            if app is None:
                return
            _cancel(engine, app, None)
            engine.remove_all(app_id)


# ── submitting ────────────────────────────────────────────────────────────────


def _images(engine: Engine, request: DockerRequest) -> dict[str, str]:
    """The image of each role: the project's own where it has a workspace."""
    found: dict[str, str] = {}
    for container in request.containers:
        if container.role in found:
            continue
        if container.workspace is None:
            ensure_image(engine.api, container.image, request.options.pull)
            found[container.role] = container.image
        else:
            plan = container.workspace
            found[container.role] = provide(plan, engine.api, pull=request.options.pull)
    return found


def _create(engine: Engine, request: DockerRequest, images: Mapping[str, str]) -> list[str]:
    """Everything that an app consists of; gives the ids of its containers."""
    if request.network is not None:
        engine.create_network(request.network, request.labels)
    first = request.containers[0]
    more_env = [*(f"{name}={value}" for name, value in request.copied_env.items())]
    more_env.append(f"{RENDEZVOUS_TOKEN}={trust.make_token()}")
    if request.options.network == "host":
        from phalanx._system.network import free_port

        more_env.append(f"{RANK0_PORT}={free_port()}")
    if request.ships_phalanx:
        _ship(engine, request, images[first.role])
    info = engine.info()
    made: dict[tuple[str, int], str] = {}

    def create(container: ContainerRequest) -> None:
        config = _config(engine, request, container, images[container.role], more_env, info)
        made[container.role, container.replica] = engine.create_container(container.name, config)

    for_all(create, request.containers)
    return [made[container.role, container.replica] for container in request.containers]


def _config(
    engine: Engine,
    request: DockerRequest,
    container: ContainerRequest,
    image: str,
    more_env: list[str],
    info: Mapping[str, Any],
) -> dict[str, Any]:
    """A container's request with what the engine knows."""
    host = {**container.config["HostConfig"]}
    processors = int(info.get("NCPU") or 0)
    if processors and host.get("NanoCpus", 0) > processors * 10**9:
        logger.warning(
            "phalanx: %s asks for %g CPUs; the engine has %d",
            container.role,
            host["NanoCpus"] / 1e9,
            processors,
        )
        del host["NanoCpus"]
    if "ShmSize" not in host:
        host["ShmSize"] = int(info.get("MemTotal") or 0) // 2 or 1 << 30
    # What is said for the app wins over what is copied from here.
    own = {entry.partition("=")[0] for entry in container.config["Env"]}
    env = [entry for entry in more_env if entry.partition("=")[0] not in own]
    if request.ships_phalanx:
        paths = [
            e.partition("=")[2] for e in engine.image_env(image) if e.startswith("PYTHONPATH=")
        ]
        env.append(f"PYTHONPATH={':'.join([CODE_PATH, *paths])}")
    return {
        **container.config,
        "Image": image,
        "Env": [*env, *container.config["Env"]],
        "HostConfig": host,
    }


def _ship(engine: Engine, request: DockerRequest, image: str) -> None:
    """Fill a volume with Phalanx. A container that never runs takes it in: any engine can do that,
    one on another machine too.
    """
    from phalanx._launcher.transport.bundle import make_bundle

    volume = code_volume(request.app_id)
    engine.create_volume(volume, request.labels)
    mount = {"Type": "volume", "Source": volume, "Target": CODE_PATH}
    helper = engine.create_container(
        f"{volume}-filling",
        {
            "Image": image,
            "Entrypoint": ["true"],
            "NetworkDisabled": True,
            "HostConfig": {"Mounts": [mount], "NetworkMode": "none"},
            "Labels": {labels.APP: f"{request.app_id} (filling)"},
        },
    )
    try:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, data in make_bundle().files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(data), 0o644
                tar.addfile(entry, io.BytesIO(data))
        engine.put_files(helper, CODE_PATH, buffer.getvalue())
    finally:
        engine.remove_container(helper)


# ── ends ──────────────────────────────────────────────────────────────────────


def _cancel(engine: Engine, app: SeenApp, grace: float | None) -> None:
    if assess(app, time.time()).state.is_final:
        return
    own = {labels.APP: app.app_id, labels.CANCELLED: repr(time.time())}
    engine.create_volume(f"{app.app_id}-cancelled", own)
    found = engine.find(app.app_id)
    while found is not None:
        assessed = assess(found, time.time())
        if assessed.state.is_final:
            return
        stop_all(engine, assessed.to_stop, app.course.stop_grace if grace is None else grace)
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
        place = errors[cause].describe_worker() if cause in errors else ""
        message = f"{cause[0]}/{cause[1]} {status.describe()}{place}"
    ends = [c.finished or 0.0 for c in app.containers]
    last = max(ends, default=0.0) if assessed.state.is_final else time.time()
    return AppStatus(
        app=app.app_id,
        state=assessed.state,
        message=message,
        seconds=max(0.0, last - app.course.created) if last else None,
        roles=tuple(
            RoleStatus(part.name, tuple(replicas[part.name, i] for i in range(part.replicas)))
            for part in app.course.roles
        ),
        num_restarts=life.restarts,
        exit_code=code,
    )


def _error(engine: Engine, assessed: Assessment, key: ReplicaKey) -> ReplicaError:
    container = assessed.current[key]
    if container is None:
        return ReplicaError(REMOVED if not assessed.message else "")
    return error_of(engine, container)


def _cause(assessed: Assessment, errors: Mapping[ReplicaKey, ReplicaError]) -> ReplicaKey | None:
    """The replica that the app's failure is told of: not one that has only heard of another's."""
    first = assessed.lifecycle.first_failure
    if first is not None and first in errors and errors[first].is_elsewhere:
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
