"""Calls as apps on a scheduler: they outlive whoever submits them, and are found by their ids."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx._launcher.calls.jobs.call_directory import CallDirectory, CallOutcome, SubmittedWork
from phalanx._logs import logger
from phalanx._registry import directory as registry
from phalanx._registry import submission
from phalanx._registry.recorded_app import by_handle
from phalanx._schedulers.factories import create_scheduler
from phalanx._schedulers.options import make_from_python
from phalanx._schedulers.scheduler_calls import asking
from phalanx._specs import AppDef, AppState, AppStatus, Resource, Role, serialization
from phalanx._specs.app_def import HOSTS
from phalanx.errors import (
    AgentLost,
    Cancelled,
    ConfigError,
    LaunchError,
    SchedulerError,
)

if TYPE_CHECKING:
    from phalanx._launcher.calls.jobs.job import Job
    from phalanx._launcher.launch_options import LaunchOptions
    from phalanx._launcher.start import Work
    from phalanx._schedulers.scheduler import Scheduler

SESSION = "phalanx"
_KEY = "call"
"""Where the definition of an app has its call's directory."""
_PROGRAM = "phalanx._launcher.calls.jobs.job_program"
_LOOK = 0.05
"""Seconds between looks at the directory of one call; more of them are looked at less often."""
_EACH = 0.002
_ASKED = 1.0
"""Seconds between questions to a scheduler."""


@dataclass(frozen=True)
class SchedulerJob:
    """A call that was submitted."""

    id: str
    scheduler: Scheduler[Any, Any]
    app_id: str
    call_directory: CallDirectory
    is_requeued: bool = False
    """It may run again after it has said what came of it: only the scheduler knows."""

    def outcome(self) -> CallOutcome | None:
        """What came of it, if it has said so itself."""
        outcome = None if self.is_requeued else self.call_directory.outcome()
        if outcome is None or outcome.error is None:
            return outcome
        if self._cancel_asked():
            return CallOutcome(error=self._cancelled())
        # Who has ended its agent the scheduler may know.
        return None if isinstance(outcome.error, AgentLost) else outcome

    @property
    def _scheduler_name(self) -> str:
        return self.id.partition("://")[0]

    def is_running(self) -> bool:
        """Whether it has begun and not ended: asks the scheduler. Raises `SchedulerError`."""
        with asking(self._scheduler_name):
            status = self.scheduler.describe(self.app_id)
        return status is not None and status.state is AppState.RUNNING

    def end(self) -> CallOutcome | None:
        """What came of one that has not said it: asks the scheduler. None while it may yet."""
        with asking(self._scheduler_name):
            status = self.scheduler.describe(self.app_id)
        if status is None:
            return CallOutcome(error=LaunchError(f"{self.id} was deleted before it had ended"))
        if not status.state.is_final:
            return None
        if status.state is AppState.CANCELLED:
            return CallOutcome(error=self._cancelled())
        # It may have ended between the two looks.
        return self.call_directory.outcome() or CallOutcome(error=self._error(status))

    def _cancel_asked(self) -> bool:
        found = by_handle(self._scheduler_name, SESSION, self.app_id)
        return found is not None and found.cancel_asked

    def _cancelled(self) -> Cancelled:
        return Cancelled(f"{self.id} was cancelled")

    def _error(self, status: AppStatus) -> BaseException:
        why = status.message or f"its state is {status.state}"
        return LaunchError(
            f"{self.id} ended without a result: {why}. See its output with: phalanx log {self.id}"
        )

    def cancel(self) -> None:
        """Have the scheduler end it; blocks until that has been done."""
        with asking(self._scheduler_name):
            self.scheduler.cancel(self.app_id)


def submit_call(options: LaunchOptions, work: Work) -> SchedulerJob:
    """Submit a call as an app. Raises `ConfigError` and `SchedulerError`."""
    from phalanx._launcher.planning.validation import check

    check(options)
    name = options.scheduler
    assert name is not None
    count = options.num_hosts or 1
    if count > 1 and name != "slurm":
        raise ConfigError(f"num_hosts={count}: a job on {name} has one host. Use num_hosts=1.")
    scheduler = create_scheduler(name, SESSION)
    if scheduler.capabilities.runs_images:
        raise ConfigError(
            f"submit does not run in containers of {name}, which do not have your files. Use run, "
            "start or map."
        )
    made = make_from_python(name, scheduler.options, options.scheduler_options)
    there = dataclasses.replace(
        options,
        scheduler=None,
        scheduler_options={},
        num_hosts=None,
        queue_timeout=None,
        hostnames=["localhost"] if count == 1 else "slurm",
    )
    base = getattr(made, "job_dir", None)
    with asking(name):
        home = registry().parent / "calls" if base is None else Path(base).expanduser() / "calls"
        call_directory = CallDirectory.create(
            home.absolute(),
            SubmittedWork(
                there,
                work.function.result(),
                work.needs,
                work.title,
                python_path=tuple(map(os.path.abspath, sys.path)),
                cwd=_working_directory(),
            ),
        )
        app = _app(options, work.title, call_directory, count)
        app_id = scheduler.submit(scheduler.dryrun(app, made))
    requeued = bool(getattr(made, "requeue", False))
    definition = {"app": serialization.to_dict(app), "options": {"requeue": requeued}}
    submission.define(name, SESSION, app_id, {**definition, _KEY: str(call_directory.path)})
    return SchedulerJob(f"{name}://{SESSION}/{app_id}", scheduler, app_id, call_directory, requeued)


def _app(options: LaunchOptions, title: str, call_directory: CallDirectory, count: int) -> AppDef:
    workers = options.workers_per_host
    role = Role(
        name="call",
        entrypoint="python",
        args=["-m", _PROGRAM, str(call_directory.path)],
        metadata={HOSTS: count} if count > 1 else {},
        resource=Resource(cpu=workers if isinstance(workers, int) else 1, gpu=0, memMB=1024),
        workspace=_working_directory(),
    )
    return AppDef(name=options.name or title, roles=[role])


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def find_job(job_id: str) -> SchedulerJob:
    """A call that was submitted, from another process perhaps. Raises `ConfigError`."""
    name, slashes, rest = job_id.partition("://")
    session, slash, app_id = rest.partition("/")
    if not slashes or not slash or not app_id:
        raise ConfigError(
            f"{job_id!r} is not the id of a job on a scheduler, such as slurm://phalanx/train-"
            "1a2b3c4d. Jobs on this machine and over SSH end with the program that submits them."
        )
    scheduler = create_scheduler(name, session or SESSION)
    app = by_handle(name, session or SESSION, app_id)
    if app is None:
        raise ConfigError(f"no job {job_id!r} is recorded here. See: phalanx list -s {name}")
    call_directory = app.definition().get(_KEY)
    if not isinstance(call_directory, str):
        raise ConfigError(f"{job_id} was not submitted as a function: it has no result.")
    requeued = bool(app.definition().get("options", {}).get("requeue"))
    return SchedulerJob(job_id, scheduler, app_id, CallDirectory(Path(call_directory)), requeued)


# ── waiting for all of them ───────────────────────────────────────────────────


class JobWatch:
    """Looks at the jobs of this process that have not ended, on one thread for all of them."""

    def __init__(self) -> None:
        """None is looked at."""
        self._lock = threading.Lock()
        self._jobs: weakref.WeakSet[Job[Any]] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=functools.partial(JobWatch._forget, self))

    def _forget(self) -> None:
        self._lock, self._thread = threading.Lock(), None
        self._jobs = weakref.WeakSet()

    def add(self, job: Job[Any]) -> None:
        """Tell this job when it has ended, for as long as somebody has it."""
        with self._lock:
            self._jobs.add(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="phalanx-jobs", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        asked = 0.0
        while True:
            with self._lock:
                jobs = [job for job in self._jobs if not job.done()]
                if not jobs:
                    self._thread = None
                    return
            now = time.monotonic()
            asks = now - asked >= _ASKED
            for job in jobs:
                self._look(job, asks=asks)
            if asks:
                asked = now
            count = len(jobs)
            del job, jobs  # nobody else may have them
            time.sleep(_LOOK + _EACH * count)

    def _look(self, job: Job[Any], *, asks: bool) -> None:
        try:
            job.look(asks=asks)
        except SchedulerError as error:  # it may be there again later
            logger.debug("phalanx: %s: %s", job.id, error)


WATCH = JobWatch()
