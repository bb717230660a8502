"""What a cluster has of an app, as `assess` takes it; and why its pods wait or have ended. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx._core.sanitize import sanitize_line
from phalanx._schedulers.kubernetes import names
from phalanx._schedulers.kubernetes.apps.record import AppAnnotation, RoleAnnotation
from phalanx._schedulers.kubernetes.manifest import MAIN, moment
from phalanx._schedulers.replicas.assessment import SeenApp, SeenContainer
from phalanx._schedulers.replicas.lifecycle import ReplicaKey

_LONGEST = 300
_STOPPED_LATER = 60.0
"""Seconds by which the end of what was stopped is put off: nodes' clocks differ, and the failure
that it was stopped for must come first."""
_LOST = 20.0
"""Seconds after which a pod that was to be gone will not tell of its end."""
_KILLING = 1.0
"""Seconds that a kubelet takes, beyond the grace, to kill what does not end."""
_TERMINATED = 128 + 15


@dataclass(frozen=True)
class ReplicaPod:
    """A pod, as the API server describes it."""

    name: str
    uid: str
    role_word: str
    replica: int
    attempt: int
    job: str
    created: float
    phase: str
    node: str = ""
    reason: str = ""
    message: str = ""
    is_deleted: bool = False
    container: Mapping[str, Any] = field(default_factory=dict)
    """The status of its main container."""
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    memory: str = ""
    is_lost: bool = False
    """It was to be gone long ago: its node does not answer."""
    is_stopping: bool = False
    """We have stopped it."""
    is_past_grace: bool = False
    """It was stopped, and has had its time to end; old kubelets may say for ever that it runs."""

    @property
    def state(self) -> Mapping[str, Any]:
        """Of its main container: waiting, running or terminated."""
        found: Mapping[str, Any] = self.container.get("state") or {}
        return found

    @property
    def terminated(self) -> Mapping[str, Any]:
        """How its main container ended; empty while it has not."""
        found: Mapping[str, Any] = self.state.get("terminated") or {}
        return found

    @property
    def is_running(self) -> bool:
        """Its program runs."""
        return self.state.get("running") is not None

    @property
    def has_run(self) -> bool:
        """It does, or did: there is something to read."""
        return self.is_running or bool(self.terminated) or self.phase in ("Running", "Succeeded")

    @property
    def has_ended(self) -> bool:
        """Nothing of it runs any more. A pod can be Failed while its program has its grace."""
        is_still = self.is_running and not self.is_past_grace
        return self.is_lost or (self.phase in ("Succeeded", "Failed") and not is_still)

    @property
    def is_doubtful(self) -> bool:
        """It is said to run, though it should not."""
        return self.phase == "Failed" and self.is_running and self.is_past_grace

    @property
    def was_stopped(self) -> bool:
        """By us, or with others of its Job."""
        return (
            self.is_stopping
            or self.reason == "DeadlineExceeded"
            or (self.is_deleted and self.phase != "Succeeded")
        )

    @property
    def finished(self) -> float | None:
        """When its program ended."""
        return moment(self.terminated.get("finishedAt"))

    @property
    def exit_code(self) -> int | None:
        """What its program exited with, if that is known."""
        code = self.terminated.get("exitCode")
        return None if code is None else int(code)

    @property
    def is_out_of_memory(self) -> bool:
        """It was killed for the memory that it used."""
        return self.terminated.get("reason") == "OOMKilled"

    def why_waiting(self) -> str:
        """Why it does not run yet, in a line; empty where there is nothing to say."""
        scheduled = self.conditions.get("PodScheduled", {})
        if scheduled.get("status") == "False":
            return _said(scheduled.get("reason"), scheduled.get("message"))
        waiting = self.state.get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason in ("", "ContainerCreating", "PodInitializing"):
            return ""
        return _said(reason, waiting.get("message"))

    def why_ended(self) -> str:
        """What the cluster says of its end, other than an exit code; empty where it was its own."""
        if self.is_out_of_memory:
            limit = f": its limit is {self.memory}" if self.memory else ""
            return f"out of memory{limit}"
        if self.is_lost:
            return f"lost with its node {self.node}, which does not answer"
        if self.reason == "Evicted":
            return f"evicted from {self.node or 'its node'}: {_said('', self.message)}"
        if self.reason in ("NodeLost", "NodeAffinity", "Terminated", "NodeShutdown", "Shutdown"):
            return f"lost with its node {self.node}: {_said(self.reason, self.message)}"
        disrupted = self.conditions.get("DisruptionTarget", {})
        if disrupted.get("status") == "True":
            return _said(disrupted.get("reason"), disrupted.get("message"))
        cannot = ("ContainerCannotRun", "StartError", "CreateContainerError", "RunContainerError")
        if self.terminated.get("reason") in cannot:
            return _said("cannot start", self.terminated.get("message"))
        if self.reason and self.reason != "DeadlineExceeded":
            return _said(self.reason, self.message)
        return ""


def _said(reason: object, message: object) -> str:
    words = [sanitize_line(str(part), _LONGEST) for part in (reason, message) if part]
    return ": ".join(words).rstrip(".")


def seen_pod(pod: Mapping[str, Any], now: float) -> ReplicaPod | None:
    """A pod of ours at a time, in seconds since 1970; None for another's."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    own = meta.get("labels") or {}
    number = own.get(names.REPLICA)
    if number is None:
        number = (meta.get("annotations") or {}).get(names.INDEX, own.get(names.INDEX))
    if number is None or names.ROLE not in own:
        return None
    containers = {c["name"]: c for c in status.get("containerStatuses") or ()}
    asked = [c for c in spec.get("containers") or () if c["name"] == MAIN]
    limits = (asked[0].get("resources") or {}).get("limits") or {} if asked else {}
    return ReplicaPod(
        name=meta["name"],
        uid=meta.get("uid", ""),
        role_word=own[names.ROLE],
        replica=int(number),
        attempt=int(own.get(names.ATTEMPT, 0)),
        job=own.get("job-name") or own.get("batch.kubernetes.io/job-name") or "",
        created=moment(meta.get("creationTimestamp")) or 0.0,
        phase=status.get("phase") or "Pending",
        node=spec.get("nodeName") or "",
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        is_deleted="deletionTimestamp" in meta,
        container=containers.get(MAIN, {}),
        conditions={c["type"]: c for c in status.get("conditions") or ()},
        memory=str(limits.get("memory") or ""),
        is_lost=now > (moment(meta.get("deletionTimestamp")) or math.inf) + _LOST,
        is_stopping=names.STOPPED in (meta.get("annotations") or {}),
        is_past_grace=_is_past_grace(pod, now),
    )


def _is_past_grace(pod: Mapping[str, Any], now: float) -> bool:
    stopped = (pod["metadata"].get("annotations") or {}).get(names.STOPPED)
    if stopped is None:
        return False
    grace = (pod.get("spec") or {}).get("terminationGracePeriodSeconds") or 0
    return now > float(stopped) + float(grace) + _KILLING


@dataclass(frozen=True)
class SeenJob:
    """A Job, as the API server describes it."""

    name: str
    role_word: str
    replica: int | None
    """None: it is all of its role's."""
    attempt: int
    is_suspended: bool
    is_complete: bool
    failure: str
    """Why it has failed; empty while it has not."""
    ended: float | None
    completed: frozenset[int]
    num_failed: int
    created: float

    @property
    def has_ended(self) -> bool:
        """It starts no pod any more."""
        return self.is_complete or bool(self.failure)


def seen_job(job: Mapping[str, Any]) -> SeenJob | None:
    """A Job of ours; None for another's."""
    meta, status = job["metadata"], job.get("status") or {}
    own = meta.get("labels") or {}
    if names.ROLE not in own:
        return None
    conditions = {c["type"]: c for c in status.get("conditions") or () if c.get("status") == "True"}
    failed = conditions.get("Failed")
    done = conditions.get("Complete")
    failure = "" if failed is None else str(failed.get("reason") or "Failed")
    ended = (failed or done or {}).get("lastTransitionTime")
    replica = own.get(names.REPLICA)
    return SeenJob(
        name=meta["name"],
        role_word=own[names.ROLE],
        replica=None if replica is None else int(replica),
        attempt=int(own.get(names.ATTEMPT, 0)),
        is_suspended=bool((job.get("spec") or {}).get("suspend")),
        is_complete=done is not None,
        failure=failure,
        ended=moment(ended),
        completed=frozenset(indexes(str(status.get("completedIndexes") or ""))),
        num_failed=int(status.get("failed") or 0),
        created=moment(meta.get("creationTimestamp")) or 0.0,
    )


def indexes(text: str) -> Iterable[int]:
    """`1,3-5` as numbers, as Indexed Jobs write them."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


@dataclass(frozen=True)
class SeenObjects:
    """All that a cluster has of an app."""

    name: str
    record: AppAnnotation
    jobs: tuple[SeenJob, ...]
    pods: tuple[ReplicaPod, ...]
    cancelled: float | None = None
    created: float = 0.0
    """When its Service was."""

    def pods_of(self, role_word: str, replica: int, attempt: int | None = None) -> list[ReplicaPod]:
        """A replica's pods, the latest last."""
        found = [
            p
            for p in self.pods
            if (p.role_word, p.replica) == (role_word, replica)
            and (attempt is None or p.attempt == attempt)
        ]
        return sorted(found, key=lambda p: (p.attempt, p.created, p.name))

    def latest(self, key: ReplicaKey) -> ReplicaPod | None:
        """The last pod of a replica."""
        word = next(part.word for part in self.record.roles if part.name == key[0])
        found = self.pods_of(word, key[1])
        return found[-1] if found else None

    @property
    def is_expired(self) -> bool:
        """Its Jobs have been deleted when their time was over."""
        return self.record.ttl is not None and not self.jobs

    def app(self, app_id: str) -> SeenApp:
        """As `assess` takes it."""
        containers: list[SeenContainer] = []
        for part in self.record.roles:
            for job in self.jobs:
                if job.role_word == part.word:
                    numbers = range(part.replicas) if job.replica is None else [job.replica]
                    containers += [self._attempt(part, job, number) for number in numbers]
        return SeenApp(
            app_id,
            self.record.name,
            self.record.session,
            self.record.user,
            self.record.lifecycle_record,
            tuple(containers),
            self.cancelled,
        )

    def _attempt(self, part: RoleAnnotation, job: SeenJob, number: int) -> SeenContainer:
        """One replica of a Job, all of its pods together: the Job starts some again itself."""
        pods = [p for p in self.pods_of(part.word, number, job.attempt) if p.job in ("", job.name)]
        last = pods[-1] if pods else None
        state, code, finished = "created", 0, None
        started = min((p.created for p in pods if p.node), default=None)
        is_going = any(not p.has_ended for p in pods)
        has_succeeded = job.is_complete or number in job.completed
        if has_succeeded and not is_going:
            state = "exited"
            finished = (last and last.finished) or job.ended
        elif job.failure and not is_going:
            state = "exited"
            failed = _failed(pods)
            if failed is not None:
                code = failed.exit_code or 1
                finished = failed.finished or job.ended
            else:
                code = _TERMINATED
                finished = (job.ended or 0.0) + _STOPPED_LATER
            started = started or job.created
        elif started is not None:
            state = "running"
        return SeenContainer(
            key=(part.name, number),
            attempt=job.attempt,
            id=job.name,
            state=state,
            exit_code=code,
            started=started,
            finished=finished,
            hostname="" if last is None else last.node,
        )


def _failed(pods: Sequence[ReplicaPod]) -> ReplicaPod | None:
    """The last that failed by itself."""
    own = [p for p in pods if p.phase == "Failed" and not p.was_stopped]
    return own[-1] if own else None
