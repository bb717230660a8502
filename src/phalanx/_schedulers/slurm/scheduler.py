"""The `slurm` scheduler: apps as jobs, found again by their directories."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from phalanx._registry import directory, replace, reserve
from phalanx._registry.recorded_app import RecordedApp, apps, by_handle
from phalanx._registry.submission import facts_of, make_directory
from phalanx._remote import slurm_replica
from phalanx._schedulers.authoring import check_script, files_needed, make_app_id, workspace_of
from phalanx._schedulers.leases import Lease, LeaseRequest
from phalanx._schedulers.replicas.log_files import (
    ReplicaStream,
    find_replica,
    read_streams,
    read_streams_back,
    replica_streams,
    unfinished_line,
)
from phalanx._schedulers.replicas.recorded_status import recorded_status, recorded_summary
from phalanx._schedulers.replicas.request import ROLE, with_python
from phalanx._schedulers.scheduler import Capabilities, LogLine, Scheduler, Stream
from phalanx._schedulers.slurm.controller import ControllerUnreachable, JobState, controller
from phalanx._schedulers.slurm.layout import (
    JOB_FILE,
    REPLICAS,
    SCRIPT_FILE,
    TOKEN,
    WORKSPACE,
    JobDirectory,
)
from phalanx._schedulers.slurm.options import SlurmOptions
from phalanx._schedulers.slurm.script import ScriptRole, SlurmRequest, make_script
from phalanx._schedulers.slurm.status import RecordedRole, SeenSlurmJob, assess
from phalanx._specs import AppDef, AppState, AppStatus, AppSummary, RetryPolicy, Role
from phalanx._specs.app_def import HOSTS, SCRIPT
from phalanx._specs.substitution import Values
from phalanx.errors import ConfigError, SchedulerError, UnknownApp

_NAME = "slurm"
_LOOK = 0.25
"""Seconds between two looks at whether an app that is followed has ended."""
_END = 60.0
"""Seconds for a cancelled job to end: Slurm's own grace, KillWait, is half of that by default."""


class SlurmScheduler(Scheduler[SlurmOptions, SlurmRequest]):
    """Runs apps as Slurm jobs. The image is of no account."""

    options = SlurmOptions
    capabilities = Capabilities(
        streams=True,
        times=True,
        several_roles=True,
        host_files=True,
        # The batch script starts everything again: it is one step for each role.
        retry_policies=frozenset({RetryPolicy.APPLICATION}),
        lends_hosts=True,
    )
    poll_interval = 0.2

    # ── submitting ────────────────────────────────────────────────────────────

    def dryrun(self, app: AppDef, options: SlurmOptions) -> SlurmRequest:
        """The batch script, and what has to be there for it."""
        app_id = make_app_id(app.name)
        if not app.roles:
            raise ConfigError(f"app {app.name!r} has no roles.")
        job_dir = _job_directory(options.job_dir, app_id)
        copies: dict[str, str] = {}
        roles = []
        for role in app.roles:
            own = workspace_of(role)
            cwd = own
            if options.job_dir is not None:
                number = "" if not copies or own in copies else f"-{len(copies)}"
                cwd = copies.setdefault(own, str(job_dir / f"{WORKSPACE}{number}"))
            roles.append(self._role(role, app_id, cwd, options))
        python = _python(options)
        command = (python, "-I", "-S", os.path.abspath(slurm_replica.__file__))
        programs = os.path.dirname(python) if os.path.isabs(python) else None
        return SlurmRequest(
            app_id=app_id,
            name=app.name,
            session=self.session_name,
            job_dir=str(job_dir),
            script=make_script(app_id, str(job_dir), tuple(roles), options, command, programs),
            roles=tuple(roles),
            copies=copies,
            copied_only=files_needed(app.roles) if copies else {},
            files=tuple(
                (workspace_of(role), role.metadata[SCRIPT])
                for role in app.roles
                if isinstance(role.metadata.get(SCRIPT), str)
            ),
        )

    def _role(self, role: Role, app_id: str, cwd: str, options: SlurmOptions) -> ScriptRole:
        if not role.entrypoint:
            raise ConfigError(f"role {role.name!r} has no entrypoint.")
        values = Values(cwd, app_id, slurm_replica.PLACEHOLDER, self.rank0_env)
        meant = values.apply(role)
        return ScriptRole(
            name=role.name,
            num_replicas=role.num_replicas,
            argv=with_python((meant.entrypoint, *meant.args), _python(options)),
            env={ROLE: role.name, **meant.env},
            cwd=cwd,
            resource=role.resource,
            max_retries=role.max_retries,
            hosts=int(role.metadata.get(HOSTS, 1)),
            rank0_env=self.rank0_env,
        )

    def submit(self, request: SlurmRequest) -> str:
        """Record the app, copy what is to be copied, and call sbatch.

        Raises `ConfigError`, and `SchedulerError` with Slurm's own reason.
        """
        for cwd, script in request.files:
            check_script(script, cwd)
        try:
            path = make_directory(request.app_id)
        except FileExistsError:
            raise SchedulerError(f"{request.app_id} has already been submitted.") from None
        except (OSError, RuntimeError) as error:
            raise SchedulerError(f"cannot record apps: {error}") from error
        files = JobDirectory(Path(request.job_dir))
        try:
            files.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.path.chmod(0o700)
            _write_private(files.path / SCRIPT_FILE, request.script)
            # The script makes these itself where it is submitted by hand; that takes longer there.
            (files.path / REPLICAS).mkdir(mode=0o700)
            _write_private(files.path / TOKEN, secrets.token_hex(32))
            facts = facts_of(
                request.app_id, request.name, _NAME, request.session, _roles(request, files)
            )
            replace(path / "app.json", {**facts, "job_dir": request.job_dir})
            reserve(path / "status.json", sum(role.num_replicas for role in request.roles))
            from phalanx._schedulers.slurm.workspace_copy import copy_workspaces

            copy_workspaces(request.copies, request.copied_only)
            number = controller().submit(request.app_id, SCRIPT_FILE, request.job_dir)
            _note_job(files, number)
        except BaseException as error:
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(files.path, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise SchedulerError(f"cannot submit {request.app_id}: {error}") from error
        return request.app_id

    # ── how apps stand ────────────────────────────────────────────────────────

    def describe(self, app_id: str) -> AppStatus | None:
        """How an app stands."""
        app = self._find(app_id)
        if app is None:
            return None
        self._refresh([app])
        return recorded_status(app)

    def expect(self, app_id: str) -> None:
        """The next question to Slurm is for it, too."""
        app = self._find(app_id)
        if app is not None and not app.state.is_final and (number := _files(app).job()):
            controller().expect([number])

    def list(self) -> list[AppSummary]:
        """All apps of this session that are recorded, with one question to Slurm for all."""
        mine = [
            app
            for app in apps()
            if app.scheduler == _NAME and app.facts.get("session") == self.session_name
        ]
        self._refresh(mine)
        return [recorded_summary(app) for app in mine]

    def _refresh(self, known: Sequence[RecordedApp]) -> None:
        """Record anew how apps stand that had not ended."""
        going = [app for app in known if not app.state.is_final]
        files = {app.id: _files(app) for app in going}
        # A failure may be of a try that Slurm has ended, also where it says so only a moment later.
        open_ = {i: f for i, f in files.items() if f.result() != 0}
        jobs = {i: f.job() for i, f in open_.items() if f.result() is None or f.is_requeued()}
        for app, seen in zip(going, self._seen_jobs(going, jobs), strict=True):
            status = assess(
                _files(app),
                [
                    RecordedRole(role["name"], len(role["replicas"]), role["replicas"][0]["cwd"])
                    for role in app.facts["roles"]
                ],
                seen,
                cancel_asked=app.cancel_asked,
                created=app.created,
            )
            final = AppState(status["state"]).is_final
            with contextlib.suppress(OSError):  # another app's directory, or a full disk
                replace(app.path / "status.json", status, last=final)

    def _seen_jobs(
        self, going: Sequence[RecordedApp], jobs: dict[str, str | None]
    ) -> Iterator[SeenSlurmJob]:
        """What Slurm says of each: it is not asked for those whose files say all."""
        found: dict[str, JobState | None] = {}
        silence = ""
        try:
            for app_id in [app_id for app_id, number in jobs.items() if number is None]:
                jobs[app_id] = controller().find(app_id)  # submit was killed, or is not done
            found = controller().jobs(number for number in jobs.values() if number is not None)
        except ControllerUnreachable as error:
            silence = str(error)
        for app in going:
            number = jobs.get(app.id)
            yield SeenSlurmJob(number, None if number is None else found.get(number), silence)

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
        """What a replica has printed, from its files."""
        app, streams = self._streams(app_id, role, replica, stream)
        return read_streams(streams, self._ends(app), since, until, follow=follow)

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
        return app, replica_streams(app, _files(app).path, role, replica, stream)

    def _ends(self, app: RecordedApp) -> Callable[[], bool]:
        """Whether an app has ended: looked at a few times a second, by its files first."""
        looked = 0.0
        answer = False

        def has_ended() -> bool:
            nonlocal looked, answer
            if not answer and time.monotonic() - looked >= _LOOK:
                looked = time.monotonic()
                self._refresh([app])
                answer = app.state.is_final or not app.path.is_dir()
            return answer

        return has_ended

    def unfinished_line(
        self, app_id: str, role: str, replica: int, *, stream: Stream = Stream.COMBINED
    ) -> str:
        """From the end of its files, while it runs: what has ended is among the lines."""
        app = self._find(app_id)
        if app is None or app.state.is_final:
            return ""
        return unfinished_line(find_replica(app, role, replica), stream)

    # ── ends ──────────────────────────────────────────────────────────────────

    def cancel(self, app_id: str) -> None:
        """Have Slurm end the job, and wait for that, a minute at most."""
        app = self._find(app_id)
        if app is None:
            return
        self._refresh([app])
        if app.state.is_final:
            return
        number = _files(app).job()
        if number is None:
            with contextlib.suppress(ControllerUnreachable):
                number = controller().find(app_id)
        try:
            replace(app.path / "cancel.json", {"asked": time.time()})
        except OSError as error:
            raise SchedulerError(f"cannot cancel {app_id}: {error}") from error
        if number is not None:
            controller().cancel(number)
        limit = time.monotonic() + _END
        has_ended = self._ends(app)
        while not has_ended() and time.monotonic() < limit:
            time.sleep(_LOOK)

    def delete(self, app_id: str) -> None:
        """Forget an app, with its directory. Raises `SchedulerError` for one that does not end."""
        self.cancel(app_id)
        app = self._find(app_id)
        if app is None:
            return
        if not app.state.is_final:
            raise SchedulerError(f"{app_id} has been cancelled but is still running: not deleted.")
        try:
            shutil.rmtree(_files(app).path, ignore_errors=True)
            app.remove(logs=True)
        except OSError as error:
            raise SchedulerError(f"cannot delete {app_id}: {error}") from error

    # ── hosts for launches ────────────────────────────────────────────────────

    def lend(self, request: LeaseRequest) -> Lease:
        """Ask for an allocation. Raises `ConfigError`."""
        from phalanx._schedulers.slurm.lease import SlurmLease

        return SlurmLease(request)

    def _find(self, app_id: str) -> RecordedApp | None:
        return by_handle(_NAME, self.session_name, app_id)


def _job_directory(job_dir: str | None, app_id: str) -> Path:
    """Where an app's files are. Raises `SchedulerError` where they cannot be created."""
    if job_dir is not None:
        return Path(job_dir).expanduser().absolute() / app_id
    try:
        return directory() / app_id / "job"
    except RuntimeError as error:
        raise SchedulerError(f"cannot record apps: {error}") from error


def _python(options: SlurmOptions) -> str:
    """The interpreter of the replicas, which may be named by its virtual environment."""
    if options.python is None:
        return sys.executable or "python3"
    path = os.path.expanduser(options.python)
    return os.path.join(path, "bin", "python") if os.path.isdir(path) else path


def _files(app: RecordedApp) -> JobDirectory:
    return JobDirectory(Path(app.facts["job_dir"]))


def _note_job(files: JobDirectory, number: str) -> None:
    """What cannot be found again is not left running."""
    try:
        replace(files.path / JOB_FILE, {"job": number})
    except OSError:
        controller().cancel(number)
        raise


def _write_private(path: Path, text: str) -> None:
    with open(path, "x", opener=lambda p, f: os.open(p, f, 0o600)) as file:
        file.write(text)


def _roles(request: SlurmRequest, files: JobDirectory) -> list[dict[str, Any]]:
    return [
        {
            "name": role.name,
            "replicas": [
                {
                    "id": number,
                    "hostname": "",
                    "ranks": [],
                    "logs": {},
                    "log": None,
                    "streams": files.streams(role.name, number),
                    "cwd": role.cwd,
                }
                for number in range(role.num_replicas)
            ],
        }
        for role in request.roles
    ]
