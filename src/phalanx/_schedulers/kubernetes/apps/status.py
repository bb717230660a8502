"""How an app stands, for users: states, reasons, errors."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace

from phalanx._core.json_text import parse_json
from phalanx._schedulers.kubernetes.api.cluster import Cluster, Forbidden
from phalanx._schedulers.kubernetes.apps.logs import last_output
from phalanx._schedulers.kubernetes.apps.seen import ReplicaPod, SeenObjects
from phalanx._schedulers.kubernetes.manifest import moment
from phalanx._schedulers.replicas.assessment import Assessment
from phalanx._schedulers.replicas.error_text import (
    ReplicaError,
    describe_missed,
    in_text,
    reported,
    shown,
)
from phalanx._schedulers.replicas.lifecycle import ReplicaKey
from phalanx._schedulers.replicas.replica_end import ReplicaEnd
from phalanx._specs import AppState, AppStatus, ReplicaStatus, RetryPolicy, RoleStatus

_DELETED = "its Job was deleted"
_MOST = 20
"""Warnings that a status has."""


def shown_state(seen: SeenObjects, assessed: Assessment) -> AppState:
    """PENDING until a program has run."""
    if assessed.state is AppState.RUNNING and not any(pod.has_run for pod in seen.pods):
        return AppState.PENDING
    return assessed.state


def status_of(cluster: Cluster, seen: SeenObjects, assessed: Assessment, app_id: str) -> AppStatus:
    """All that is known of an app."""
    life = assessed.lifecycle
    state = shown_state(seen, assessed)
    if state is AppState.FAILED:
        for key, one in life.states.items():
            if one is AppState.CANCELLED and _failed_alone(seen, key):
                life.states[key] = AppState.FAILED
    errors = {
        key: _error(cluster, seen, assessed, key)
        for key, one in life.states.items()
        if one is AppState.FAILED
    }
    replicas = {key: _replica(seen, assessed, key, errors.get(key)) for key in life.states}
    cause = _cause(assessed, errors)
    message, code = assessed.message, None
    if state is AppState.SUCCEEDED:
        code = 0
    elif state is AppState.FAILED:
        container = None if cause is None else assessed.current[cause]
        code = 1 if container is None else container.end.code or 1
    if cause is not None and not message:
        worker = errors[cause].describe_worker() if cause in errors else ""
        missed = describe_missed(errors.values())
        message = f"{cause[0]}/{cause[1]} {replicas[cause].describe()}{worker}{missed}"
    if not state.is_final and not message:
        message = _waiting(cluster, seen, assessed)
    restarted = sum(max(0, len(_pods(seen, key)) - 1 - life.retries[key]) for key in life.states)
    return AppStatus(
        app=app_id,
        state=state,
        message=message,
        seconds=seconds_of(seen, state),
        roles=tuple(
            RoleStatus(part.name, tuple(replicas[part.name, i] for i in range(part.replicas)))
            for part in seen.record.roles
        ),
        num_restarts=life.restarts + restarted,
        exit_code=code,
        warnings=_replaced(seen),
    )


def seconds_of(seen: SeenObjects, state: AppState) -> float | None:
    """How long an app has run, or ran."""
    ends = [pod.finished or 0.0 for pod in seen.pods] + [job.ended or 0.0 for job in seen.jobs]
    last = max(ends, default=0.0) if state.is_final else time.time()
    return max(0.0, last - seen.record.created) if last else None


def _failed_alone(seen: SeenObjects, key: ReplicaKey) -> bool:
    """It failed before it was stopped: the cluster's times do not tell, they are whole seconds."""
    pods = _pods(seen, key)
    return bool(pods) and pods[-1].phase == "Failed" and not pods[-1].was_stopped


def _pods(seen: SeenObjects, key: ReplicaKey) -> list[ReplicaPod]:
    word = next(part.word for part in seen.record.roles if part.name == key[0])
    return seen.pods_of(word, key[1])


def _replaced(seen: SeenObjects) -> tuple[str, ...]:
    """What the cluster has done to pods in whose place there are others."""
    texts: dict[str, None] = {}
    for part in seen.record.roles:
        for number in range(part.replicas):
            for pod in seen.pods_of(part.word, number)[:-1]:
                if (pod.is_lost or not pod.was_stopped) and (why := pod.why_ended()):
                    texts[f"{part.name}/{number} was started again: {why}"] = None
    return tuple(texts)[:_MOST]


# ── what is waited for ────────────────────────────────────────────────────────


def _waiting(cluster: Cluster, seen: SeenObjects, assessed: Assessment) -> str:
    """Why replicas do not run, in the cluster's words; the same words are said once."""
    reasons: dict[str, list[str]] = {}
    for key, container in assessed.current.items():
        if container is None or container.has_ended:
            continue
        pods = _pods(seen, key)
        pod = pods[-1] if pods else None
        name = f"{key[0]}/{key[1]}"
        if pod is not None and pod.has_ended:
            why = _again(seen, key, pods)
        elif pod is not None:
            why = pod.why_waiting()
        else:
            why = _no_pod(cluster, seen, container.id)
        if why:
            reasons.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(who[:3])}{_more(who)}: {why}" for why, who in reasons.items())


def _again(seen: SeenObjects, key: ReplicaKey, pods: list[ReplicaPod]) -> str:
    """What is said of a replica whose Job waits a while before it starts another pod."""
    part = next(part for part in seen.record.roles if part.name == key[0])
    failed = [pod for pod in pods if pod.phase == "Failed" and not pod.was_stopped]
    left = part.max_retries - len(failed) if part.policy is RetryPolicy.REPLICA else -1
    if not failed or left < 0:
        return ""
    how = failed[-1].why_ended() or f"exit code {failed[-1].exit_code}"
    times = "once" if len(failed) == 1 else f"{len(failed)} times"
    return f"failed {times} ({how}), starts again"


def _more(who: list[str]) -> str:
    return f" and {len(who) - 3} more" if len(who) > 3 else ""


def _no_pod(cluster: Cluster, seen: SeenObjects, job_name: str) -> str:
    """Why a Job has no pod: it is suspended, or the cluster refuses to make one."""
    job = next((one for one in seen.jobs if one.name == job_name), None)
    if job is None:
        return ""
    if job.is_suspended:
        return "waits in its queue"
    try:
        events = cluster.list("events", fields=f"involvedObject.name={job_name}")
    except Forbidden:
        return ""  # reasons are a help; who may not read them does without
    said = [
        (moment(event.get("lastTimestamp")) or 0.0, str(event.get("message") or ""))
        for event in events
        if event.get("reason") == "FailedCreate"
    ]
    if not said:
        return ""
    text = max(said)[1]
    at = text.find("exceeded quota")
    return text[at:] if at >= 0 else text


# ── what went wrong ───────────────────────────────────────────────────────────


def _error(
    cluster: Cluster, seen: SeenObjects, assessed: Assessment, key: ReplicaKey
) -> ReplicaError:
    if assessed.current[key] is None:
        return ReplicaError(_DELETED if not assessed.message else "")
    failed = [p for p in _pods(seen, key) if p.phase == "Failed" and not p.was_stopped]
    if not failed:
        return ReplicaError()
    pod = failed[-1]
    if why := pod.why_ended():
        return ReplicaError(why)
    said = str(pod.terminated.get("message") or "")
    error = reported(said)
    text = error.text or _cut_off(said)
    if not text:
        text = in_text(last_output(cluster, pod) or said)
    return replace(error, text=shown(text))


def _cut_off(said: str) -> str:
    """The message of an error file of which the kubelet has kept only the beginning."""
    found = re.match(r'\{"message": (?:\{"message": )?("(?:[^"\\]|\\.)*")', said)
    if found is None:
        return ""
    try:
        return str(parse_json(found[1])).strip().partition("\n")[0]
    except ValueError:
        return ""


def _cause(assessed: Assessment, errors: Mapping[ReplicaKey, ReplicaError]) -> ReplicaKey | None:
    """The replica that the app's failure is told of: not one that has only heard of another's."""
    first = assessed.lifecycle.first_failure
    if first is not None and first in errors and errors[first].is_remote:
        return next((key for key, error in errors.items() if error.is_own), first)
    return first


def _replica(
    seen: SeenObjects, assessed: Assessment, key: ReplicaKey, error: ReplicaError | None
) -> ReplicaStatus:
    container = assessed.current[key]
    state = assessed.lifecycle.states[key]
    pods = _pods(seen, key)
    pod = pods[-1] if pods else None
    if state is AppState.RUNNING and (pod is None or not pod.has_run):
        state = AppState.PENDING
    code = pod.exit_code if pod is not None and container is not None else None
    end = None
    if container is not None and container.has_ended:
        if code is not None:
            end = ReplicaEnd.of(_signed(code))
        elif error is None or not error.text:
            end = container.end  # else the cluster has ended it, and nobody knows its exit code
    return ReplicaStatus(
        key[1],
        key[0],
        state,
        hostname="" if pod is None else pod.node,
        exit_code=None if end is None else end.exit_code,
        signal=None if end is None else end.signal,
        error="" if error is None else error.text,
        retries=max(assessed.lifecycle.retries[key], len(pods) - 1),
        traceback="" if error is None else error.traceback,
    )


def _signed(code: int) -> int:
    """The first process gives 128 and more for what a signal killed."""
    return 128 - code if 128 < code <= 128 + 64 else code
