"""How an app on Slurm stands, from its files and from what Slurm says of its job.

The files come first: they know exit codes, and are there when the controller is not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phalanx._schedulers.replicas.error_text import ReplicaError, first_error, in_text
from phalanx._schedulers.replicas.replica_end import ReplicaEnd
from phalanx._schedulers.replicas.request import ReplicaRequest
from phalanx._schedulers.slurm.controller import JobState
from phalanx._schedulers.slurm.layout import SLURM_LOG, JobDirectory
from phalanx._specs import AppState, ReplicaStatus

_ENDS = {
    "TIMEOUT": "the time limit was reached. Ask for more with -cfg time=…, or -cfg requeue=yes",
    "TIME LIMIT": "the time limit was reached. Ask for more with -cfg time=…, or -cfg requeue=yes",
    "NODE_FAIL": "Slurm lost a node of the job",
    "NODE FAILURE": "Slurm lost a node of the job",
    "PREEMPTED": "the job was preempted. To start again then: -cfg requeue=yes",
    "PREEMPTION": "the job was preempted. To start again then: -cfg requeue=yes",
    "OUT_OF_MEMORY": "out of memory. Ask for more with -cfg mem=…",
    "BOOT_FAIL": "a node of the job did not boot",
    "DEADLINE": "the job's deadline passed",
    "REVOKED": "the job was revoked",
}
"""What Slurm's words for an end mean."""
_WAITS = {
    "Resources": "waiting for nodes to be free",
    "Priority": "waiting for jobs of higher priority",
    "BeginTime": "waiting for its start time (after a requeue: about two minutes)",
    "Dependency": "waiting for another job",
    "JobHeldUser": "held. Release it with: scontrol release JOB",
    "JobHeldAdmin": "held by an administrator",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionNodeLimit": "its partition does not have so many nodes",
    "PartitionTimeLimit": "its time limit is above the partition's",
    "AccountNotAllowed": "its partition does not admit the account",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
    "AssociationJobLimit": "the account's limit of jobs is reached",
}
"""What Slurm's words for a wait mean."""


@dataclass(frozen=True)
class RecordedRole:
    """A role, as it was recorded."""

    name: str
    num_replicas: int
    cwd: str


@dataclass(frozen=True)
class SeenSlurmJob:
    """What Slurm says of an app's job."""

    number: str | None
    state: JobState | None = None
    """None: it does not know the job any more."""
    silence: str = ""
    """Why it says nothing, while it does not."""


def assess(
    files: JobDirectory,
    roles: Sequence[RecordedRole],
    job: SeenSlurmJob,
    *,
    cancel_asked: bool,
    created: float,
) -> dict[str, Any]:
    """How the app stands, as the registry has it."""
    restarts = files.restarts()
    replicas = [
        _replica(files, index, role, number, restarts)
        for index, role in enumerate(roles)
        for number in range(role.num_replicas)
    ]
    state, message, code = _app(files, job, replicas, cancel_asked=cancel_asked)
    ends = [replica.pop("ended") or 0.0 for replica in replicas]
    for replica in replicas:
        del replica["terminated"]
        if state is AppState.PENDING:  # what is known of it is of an earlier try
            replica.update(_NOT_BEGUN)
        elif state in _BAD_ENDS and not AppState(replica["state"]).is_final:
            replica["state"] = state.value
    last = max([time.time() if not state.is_final else 0.0, *ends]) or time.time()
    return {
        "state": state.value,
        "message": message,
        "updated": time.time(),
        "seconds": last - created,
        "num_restarts": restarts,
        "exit_code": code if state.is_final else None,
        "replicas": replicas,
    }


def _app(
    files: JobDirectory, job: SeenSlurmJob, replicas: list[dict[str, Any]], *, cancel_asked: bool
) -> tuple[AppState, str, int | None]:
    code = files.result()
    if code and _is_back(files, job):
        code = None
    if code == 0:
        return AppState.SUCCEEDED, "", 0
    if code is not None:
        note = files.last_note() if any(replica["terminated"] for replica in replicas) else None
        if cancel_asked or note == "":
            return AppState.CANCELLED, "", None
        cause = _ENDS.get(note or "") or _cause(replicas)
        return AppState.FAILED, cause or _said_by_slurm(files, job), code
    if job.silence:
        running = any(replica["state"] == "RUNNING" for replica in replicas)
        state = AppState.RUNNING if running else AppState.PENDING
        return state, f"Slurm does not answer ({job.silence}); this is from the app's files", None
    if job.state is None:
        return _unknown(files, job, replicas, cancel_asked=cancel_asked)
    state = job.state.app_state
    if state is AppState.PENDING:
        return state, f"job {job.number}: {_waiting(job.state)}", None
    if state is AppState.RUNNING:
        return state, "", None
    if state is AppState.SUCCEEDED:
        return state, "", 0
    if state is AppState.CANCELLED or cancel_asked:
        return AppState.CANCELLED, "", None
    if why := _ENDS.get(job.state.state):
        return state, why, 1
    # The script could not write how the app ended; the replicas may have.
    return state, _cause(replicas) or _said_by_slurm(files, job), _code(replicas)


def _is_back(files: JobDirectory, job: SeenSlurmJob) -> bool:
    """What the script has written down is of a try that Slurm ended, to start another."""
    known = job.state
    going = known is not None and known.app_state in (AppState.PENDING, AppState.RUNNING)
    return (going or bool(job.silence)) and files.may_run_again()


def _unknown(
    files: JobDirectory, job: SeenSlurmJob, replicas: list[dict[str, Any]], *, cancel_asked: bool
) -> tuple[AppState, str, int | None]:
    """Slurm has forgotten the job, and the script has not said how it ended, as on a full disk."""
    note = files.last_note()
    if cancel_asked or note == "":
        return AppState.CANCELLED, "", None
    if note is not None:
        return AppState.FAILED, _ENDS.get(note, f"cancelled: {note.lower()}"), 1
    if all(replica["state"] == "SUCCEEDED" for replica in replicas):
        return AppState.SUCCEEDED, "", 0
    if cause := _cause(replicas):
        return AppState.FAILED, cause, _code(replicas)
    which = "the job" if job.number is None else f"job {job.number}"
    return AppState.FAILED, f"Slurm no longer knows {which}, and its end was not recorded", 1


def _waiting(job: JobState) -> str:
    reason = job.reason.partition(",")[0].strip("()")
    told = _WAITS.get(reason, "waiting in the queue")
    return f"{told} ({reason}, partition {job.partition})" if reason else told


def _said_by_slurm(files: JobDirectory, job: SeenSlurmJob) -> str:
    """What the script, srun or Slurm have written, for want of a replica that failed."""
    try:
        text = (files.path / SLURM_LOG).read_text(errors="replace")
    except OSError:
        text = ""
    words = "" if job.state is None else f" ({job.state.state}, {job.state.reason})"
    ours = [line.removeprefix(_OURS) for line in text.splitlines() if line.startswith(_OURS)]
    return in_text(ours[-1] if ours else text) or f"the job failed{words}"


# ── replicas ──────────────────────────────────────────────────────────────────


_NOT_BEGUN = {
    "state": AppState.PENDING.value,
    "hostname": "",
    "pid": None,
    "exit_code": None,
    "signal": None,
    "error": "",
    "traceback": "",
}
"""What is said of a replica that has not begun."""
_OURS = "phalanx: "
"""How a line of a replica's supervisor begins, in what Slurm keeps."""
_BAD_ENDS = (AppState.CANCELLED, AppState.FAILED)


def _replica(
    files: JobDirectory, index: int, role: RecordedRole, number: int, restarts: int
) -> dict[str, Any]:
    known = files.replica(index, number) or {}
    if known.get("restarts", 0) < restarts:
        known = {}  # of an earlier try
    streams = files.streams(role.name, number)
    state, end, error = AppState.PENDING, None, ReplicaError()
    if known.get("state") == "RUNNING":
        state = AppState.RUNNING
    elif known.get("state") == "ENDED":
        end = ReplicaEnd.of(known["code"], known.get("error", ""))
        asked = known.get("asked", False)
        failed = AppState.CANCELLED if asked else AppState.FAILED
        state = AppState.SUCCEEDED if end.succeeded else failed
        if state is AppState.FAILED:
            error = ReplicaError(end.error)
            if not end.error:
                killed = end.signal is not None
                error = _error(role, number, streams, known, killed=killed)
    return {
        "role": role.name,
        "id": number,
        "state": state.value,
        "hostname": known.get("hostname", ""),
        "pid": known.get("pid"),
        "exit_code": None if end is None else end.exit_code,
        "signal": None if end is None else end.signal,
        "error": error.text,
        "traceback": error.traceback,
        "log": streams["stderr"],
        "retries": restarts,
        "ended": known.get("ended"),
        "terminated": known.get("terminated", False),
    }


def _error(
    role: RecordedRole,
    number: int,
    streams: dict[str, str],
    known: dict[str, Any],
    *,
    killed: bool,
) -> ReplicaError:
    request = ReplicaRequest(role.name, number, (), {}, role.cwd, "", 0, streams)
    return first_error(request, int(known.get("told", 0)), killed=killed)


def _failed(replicas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that failed, the first one first."""
    failed = [replica for replica in replicas if replica["state"] == "FAILED"]
    return sorted(failed, key=lambda replica: replica["ended"] or 0.0)


def _code(replicas: list[dict[str, Any]]) -> int:
    """The exit code of the replica that failed first."""
    for first in _failed(replicas)[:1]:
        return ReplicaEnd(first["exit_code"], first["signal"]).code
    return 1


def _cause(replicas: list[dict[str, Any]]) -> str:
    """The replica that failed first, in words."""
    failed = _failed(replicas)
    if not failed and any(replica["terminated"] for replica in replicas):
        return "Slurm sent SIGTERM to the replicas: the job was preempted, or signalled by somebody"
    if not failed:
        return ""
    first = failed[0]
    how = ReplicaStatus(
        first["id"],
        first["role"],
        AppState.FAILED,
        exit_code=first["exit_code"],
        signal=first["signal"],
        error=first["error"],
    )
    where = f" on {first['hostname']}" if first["hostname"] else ""
    return f"{first['role']}/{first['id']}{where} {how.describe()}"
