"""How an app stands by its jobs. Pure."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx._core.sanitize import sanitize_line
from phalanx._schedulers.aws_batch.names import AppTags, JobKind
from phalanx._specs import AppState, AppStatus, ReplicaStatus, RoleStatus

CANCEL_REASON = "phalanx: cancelled"
"""What is said to the service when an app is cancelled, with who did it."""
_STATES = {
    "SUBMITTED": AppState.SUBMITTED,
    "PENDING": AppState.PENDING,
    "RUNNABLE": AppState.PENDING,
    "STARTING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}
_LONGEST = 300
_OUT_OF_MEMORY = "OutOfMemory"
_CONTAINER_ENDED = ("Essential container in task exited", "Array Child Job failed")
"""What the service says of every end."""

Job = Mapping[str, Any]


def state_of(job: Job) -> AppState:
    """Where a job stands; one that was terminated was cancelled."""
    state = _STATES.get(str(job.get("status")), AppState.UNKNOWN)
    if state is AppState.FAILED and (
        job.get("isCancelled")
        or job.get("isTerminated")
        or str(job.get("statusReason") or "").startswith(CANCEL_REASON)
    ):
        return AppState.CANCELLED
    return state


def seconds_of(job: Job) -> float | None:
    """How long a job has run, or ran; its times are in milliseconds."""
    start, end = job.get("startedAt"), job.get("stoppedAt")
    if not start:
        return None
    return float(max(0.0, (end / 1000 if end else time.time()) - start / 1000))


@dataclass(frozen=True)
class SeenJobs:
    """What the service has of an app."""

    app_id: str
    tags: AppTags
    job: Job
    children: Mapping[str, Job]
    """The jobs that are replicas, by id, as far as there are any."""

    def replica(self, number: int) -> Job | None:
        """The job of a replica, by its number in the app."""
        if self.tags.kind is JobKind.CONTAINER:
            return self.job
        return self.children.get(self.tags.kind.child(str(self.job["jobId"]), number))

    def status(self, waits: str, errors: Mapping[int, str], ui_url: str | None = None) -> AppStatus:
        """The status; `errors` are the last words of replicas, by their numbers in the app."""
        state = state_of(self.job)
        roles, failed = [], []
        for index, part in enumerate(self.tags.roles):
            replicas = []
            for number in range(part.replicas):
                overall = self.tags.first(index) + number
                status = self._replica(overall, number, part.name, errors.get(overall, ""))
                replicas.append(status)
                if status.state is AppState.FAILED:
                    failed.append(status)
            roles.append(RoleStatus(part.name, tuple(replicas)))
        code = 0 if state is AppState.SUCCEEDED else None
        message = waits
        if state is AppState.FAILED:
            # What ended by itself, rather than because another had.
            cause = next((one for one in failed if one.exit_code is not None), None)
            code = (cause.exit_code if cause is not None else None) or 1
            message = _failure(self.job, cause or (failed[0] if failed else None))
        return AppStatus(
            app=self.app_id,
            state=state,
            message=message,
            seconds=seconds_of(self.job),
            roles=tuple(roles),
            num_restarts=max(0, len(self.job.get("attempts") or ()) - 1),
            exit_code=code,
            ui_url=ui_url,
        )

    def failed_replicas(self) -> list[int]:
        """The numbers in the app of replicas that have failed."""
        found = []
        for number in range(self.tags.num_replicas):
            job = self.replica(number)
            if job is not None and state_of(job) is AppState.FAILED:
                found.append(number)
        return found

    def _replica(self, overall: int, number: int, role: str, error: str) -> ReplicaStatus:
        job = self.replica(overall)
        if job is None:  # it has not begun, or the service has forgotten it
            state = state_of(self.job)
            return ReplicaStatus(number, role, AppState.PENDING if not state.is_final else state)
        state = state_of(job)
        if state is AppState.FAILED and state_of(self.job) is AppState.CANCELLED:
            state = AppState.CANCELLED
        code = exit_code_of(job)
        killed = _signal(code)
        return ReplicaStatus(
            number,
            role,
            state,
            exit_code=None if killed else code,
            signal=killed,
            error="" if state is not AppState.FAILED else _reason(job) or error,
            retries=max(0, len(job.get("attempts") or ()) - 1),
        )


def exit_code_of(job: Job) -> int | None:
    """What a job's program exited with."""
    code = (job.get("container") or {}).get("exitCode")
    return None if code is None else int(code)


def _signal(code: int | None) -> str | None:
    """The first process gives 128 and more for what a signal killed."""
    if code is None or not 128 < code <= 128 + 64:
        return None
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return None


def _reason(job: Job) -> str:
    """Why a job failed, in the service's words, unless they say nothing."""
    container = job.get("container") or {}
    said = str(container.get("reason") or job.get("statusReason") or "")
    if said.startswith(_CONTAINER_ENDED):
        return ""
    hint = " (ask for more, as --memMB 8192)" if _OUT_OF_MEMORY in said else ""
    return sanitize_line(said, _LONGEST) + hint


def _failure(job: Job, cause: ReplicaStatus | None) -> str:
    if cause is not None:
        return f"{cause.role}/{cause.id} {cause.describe()}"
    return sanitize_line(str(job.get("statusReason") or ""), _LONGEST)
