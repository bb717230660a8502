"""Schedulers whose apps are run by a supervisor of ours, and found in the registry."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shutil
import signal
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from phalanx._core.ranks import REPLICA
from phalanx._registry import directory, owner, replace, reserve
from phalanx._registry.recorded_app import RecordedApp, apps, by_handle
from phalanx._registry.submission import facts_of, make_directory
from phalanx._schedulers.authoring import check_script, workspace_of
from phalanx._schedulers.replicas.log_files import (
    ReplicaStream,
    find_replica,
    read_streams,
    read_streams_back,
    replica_streams,
    unfinished_line,
)
from phalanx._schedulers.replicas.recorded_status import recorded_status, recorded_summary
from phalanx._schedulers.replicas.request import ROLE, STREAMS, AppRequest, ReplicaRequest
from phalanx._schedulers.scheduler import (
    Capabilities,
    LogLine,
    Scheduler,
    Stream,
    make_app_id,
    replicas,
)
from phalanx._schedulers.supervised import supervisor
from phalanx._schedulers.supervised.supervisor import LOG
from phalanx._schedulers.supervised.supervisor_process import supervisor_of, title_of
from phalanx._specs import (
    AppDef,
    AppState,
    AppStatus,
    AppSummary,
    RetryPolicy,
    Role,
)
from phalanx._specs.app_def import SCRIPT
from phalanx._system import shortage
from phalanx.errors import ConfigError, SchedulerError, UnknownApp


def check_grace(seconds: float) -> None:
    """Refuse what is not a span of time."""
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"stop_grace={seconds}: must be a number of seconds, 0 or more.")


class SupervisedScheduler(Scheduler[Any, AppRequest]):
    """Apps under a detached supervisor on this machine, which outlives the command."""

    name: ClassVar[str]
    starter: ClassVar[str]
    """`module:class` of who starts the replicas."""
    root: ClassVar[str | None] = None
    """What `${img_root}` stands for; by default the workspace."""
    capabilities = Capabilities(
        streams=True,
        times=True,
        grace=True,
        several_roles=True,
        retry_policies=frozenset(RetryPolicy),
    )
    poll_interval = 0.02

    def dryrun(self, app: AppDef, options: Any) -> AppRequest:
        """The programs that would be started, and where."""
        app_id = make_app_id(app.name)
        logs = _log_root(options.log_dir, self.session_name, app_id)
        meant = replicas(app, app_id, rank0_env=self.rank0_env, root=self.root)
        requests = [self._replica_request(role, number, logs, options) for role, number in meant]
        return AppRequest(
            app_id=app_id,
            name=app.name,
            scheduler=self.name,
            session=self.session_name,
            starter=self.starter,
            stop_grace=options.stop_grace,
            roles=AppRequest.roles_of(app, self.arrange(requests)),
            starter_options=self.starter_options(options),
        )

    def _replica_request(self, role: Role, number: int, logs: Path, options: Any) -> ReplicaRequest:
        own = logs / role.name / str(number)
        replica = ReplicaRequest(
            role=role.name,
            id=number,
            argv=(role.entrypoint, *role.args),
            env={ROLE: role.name, REPLICA: str(number), **role.env},
            cwd=workspace_of(role),
            hostname="localhost",
            gpus=max(0, role.resource.gpu),
            logs={stream: str(own / f"{stream}.log") for stream in STREAMS},
            script=self._script(role),
        )
        return self.fill_in(replica, options)

    def _script(self, role: Role) -> str | None:
        """The file that must be here. One named by its full path may be on a host alone."""
        script = role.metadata.get(SCRIPT)
        if not isinstance(script, str) or (os.path.isabs(script) and self.root is not None):
            return None
        return script

    @abstractmethod
    def fill_in(self, replica: ReplicaRequest, options: Any) -> ReplicaRequest:
        """A replica with what depends on where it runs: interpreter, environment, host."""

    def arrange(self, replicas: Sequence[ReplicaRequest]) -> Sequence[ReplicaRequest]:
        """All replicas, with what depends on the others."""
        return replicas

    def starter_options(self, options: Any) -> dict[str, Any]:
        """What the starter needs besides."""
        return {}

    def submit(self, request: AppRequest) -> str:
        """Record the app and start its supervisor. Raises `SchedulerError`, `ConfigError`."""
        for script, cwd in {(r.script, r.cwd) for r in request.replicas}:
            if script is not None:
                check_script(script, cwd)
        try:
            path = make_directory(request.app_id)
        except FileExistsError:
            raise SchedulerError(f"{request.app_id} has already been submitted.") from None
        except (OSError, RuntimeError) as error:
            raise SchedulerError(f"cannot record apps: {error}") from error
        supervisor = None
        try:
            _make_log_directories(request)
            replace(path / "request.json", request.to_dict())
            replace(path / "status.json", _pending(request))
            reserve(path / "status.json", len(request.replicas))
            facts = facts_of(
                request.app_id, request.name, request.scheduler, request.session, _roles(request)
            )
            # It is ours until the supervisor has it: if we are killed before, it has failed.
            facts |= {"owner": owner(), "stop_grace": request.stop_grace}
            replace(path / "app.json", facts)
            supervisor = _start(path)
            replace(path / "app.json", {**facts, "owner": supervisor_of(supervisor)})
        except BaseException as error:
            if supervisor is not None:
                os.kill(supervisor, signal.SIGKILL)
            shutil.rmtree(path, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            text = f"cannot start {request.app_id}: {shortage.describe(error)}"
            raise SchedulerError(text) from error
        return request.app_id

    def describe(self, app_id: str) -> AppStatus | None:
        """How an app stands."""
        app = self._find(app_id)
        return None if app is None else recorded_status(app)

    def list(self) -> list[AppSummary]:
        """All apps of this scheduler and session that are recorded."""
        mine = [app for app in apps() if self._is_ours(app)]
        return [recorded_summary(app) for app in mine]

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
        """What a replica has printed, in the order of time as far as it is known."""
        app, streams = self._streams(app_id, role, replica, stream)

        def has_ended() -> bool:
            return app.state.is_final or not app.path.is_dir()

        return read_streams(streams, has_ended, since, until, follow=follow)

    def lines_back(
        self, app_id: str, role: str, replica: int, *, stream: Stream = Stream.COMBINED
    ) -> Iterator[LogLine]:
        """From the end of its files."""
        return read_streams_back(self._streams(app_id, role, replica, stream)[1])

    def _streams(
        self, app_id: str, role: str, replica: int, stream: Stream
    ) -> tuple[RecordedApp, Sequence[ReplicaStream]]:
        app = self._find(app_id)
        if app is None:
            raise UnknownApp(f"no such app: {app_id!r}")
        return app, replica_streams(app, app.path, role, replica, stream)

    def unfinished_line(
        self, app_id: str, role: str, replica: int, *, stream: Stream = Stream.COMBINED
    ) -> str:
        """From the end of its files, while it runs: what has ended is among the lines."""
        app = self._find(app_id)
        if app is None or app.state.is_final:
            return ""
        return unfinished_line(find_replica(app, role, replica), stream)

    def cancel(self, app_id: str, grace: float | None = None) -> None:
        """Ask the supervisor for the end, and wait for it, at most the grace and a little more."""
        app = self._find(app_id)
        if app is not None and not app.state.is_final:
            try:
                app.cancel(grace)
            except OSError as error:
                raise SchedulerError(f"cannot cancel {app_id}: {error}") from error

    def delete(self, app_id: str) -> None:
        """Forget an app, with its logs. Raises `SchedulerError` for one that does not end."""
        self.cancel(app_id)
        app = self._find(app_id)
        if app is None:
            return
        if not app.state.is_final:
            raise SchedulerError(f"{app_id} has been cancelled but is still running: not deleted.")
        app.remove(logs=True)

    def _find(self, app_id: str) -> RecordedApp | None:
        return by_handle(self.name, self.session_name, app_id)

    def _is_ours(self, app: RecordedApp) -> bool:
        session = app.facts.get("session")
        return app.scheduler == self.name and session == self.session_name


def _log_root(log_dir: str | None, session: str, app_id: str) -> Path:
    """Where the logs of an app are. Raises `SchedulerError` where they cannot be created."""
    if log_dir is None:
        try:
            return directory() / app_id / "logs"
        except RuntimeError as error:
            raise SchedulerError(f"cannot record apps: {error}") from error
    return Path(log_dir).expanduser().absolute() / session / app_id


def _make_log_directories(request: AppRequest) -> None:
    """Raises `SchedulerError` where the output could not go."""
    for replica in request.replicas:
        directory = os.path.dirname(replica.logs["stdout"])
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        except OSError as error:
            raise SchedulerError(f"cannot create the log directory {directory}: {error}") from error


def _pending(request: AppRequest) -> dict[str, Any]:
    replicas = [
        {"role": r.role, "id": r.id, "state": "PENDING", "hostname": r.hostname}
        for r in request.replicas
    ]
    return {"state": AppState.PENDING.value, "replicas": replicas}


def _roles(request: AppRequest) -> list[dict[str, Any]]:
    return [
        {
            "name": role.name,
            "replicas": [
                {
                    "id": replica.id,
                    "hostname": replica.hostname,
                    "ranks": [],
                    "logs": {},
                    "log": None,
                    "streams": dict(replica.logs),
                    "cwd": replica.cwd,
                }
                for replica in role.replicas
            ],
        }
        for role in request.roles
    ]


_supervisors: set[int] = set()
"""Children of this process that may have ended; they are buried when the next is started."""
_BURYING = threading.Lock()


def _start(path: Path) -> int:
    """Start the supervisor, with nothing of ours but the environment."""
    from phalanx._system import sessions
    from phalanx._system.machine import python_command

    with _BURYING:
        for pid in list(_supervisors):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            _supervisors.discard(pid)
    log = str(path / LOG)
    if sessions.can_fork_session():
        run = functools.partial(supervisor.run_app, path)
        pid = sessions.fork_session(run, title_of(path.name), log)
    else:
        null, append = os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = sessions.spawn_session(
            python_command(supervisor.__name__, str(path)),
            [
                (os.POSIX_SPAWN_OPEN, 0, null, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, append, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )
    _supervisors.add(pid)
    return pid
