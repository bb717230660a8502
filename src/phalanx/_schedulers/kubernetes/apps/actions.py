"""Do what is to be done for an app: start what retries, stop what is left of a failure.

Idempotent: several processes may do it at once. A Job's name is its replica and attempt, so that
the API server itself sees to it that none is made twice.
"""

from __future__ import annotations

import contextlib
import copy
import time
from dataclasses import replace
from typing import Any

from phalanx._schedulers.kubernetes import names
from phalanx._schedulers.kubernetes.api.cluster import Cluster, NotInCluster, ObjectExists
from phalanx._schedulers.kubernetes.apps.logs import has_log_ended
from phalanx._schedulers.kubernetes.apps.record import AppAnnotation, RoleAnnotation
from phalanx._schedulers.kubernetes.apps.request import first_hostname
from phalanx._schedulers.kubernetes.apps.seen import (
    ReplicaPod,
    SeenJob,
    SeenObjects,
    seen_job,
    seen_pod,
)
from phalanx._schedulers.kubernetes.manifest import moment
from phalanx._schedulers.kubernetes.names import job_name
from phalanx._schedulers.parallel import for_all
from phalanx._schedulers.replicas.assessment import Assessment, assess

_AT_ONCE = 1
"""Seconds of `activeDeadlineSeconds` that are over by now."""


def find(cluster: Cluster, name: str) -> SeenObjects | None:
    """All that there is of an app; None if it is not there."""
    service = cluster.get("services", name)
    if service is None:
        return None
    record = AppAnnotation.of(service)
    if record is None:
        return None
    chosen = f"{names.APP}={name}"
    jobs, pods = cluster.list("jobs", chosen), cluster.list("pods", chosen)
    return _checked(cluster, seen_objects(service, record, jobs, pods, time.time()))


def find_all(cluster: Cluster, selector: str) -> list[SeenObjects]:
    """The apps whose objects have these labels, the latest last."""
    jobs, pods = cluster.list("jobs", selector), cluster.list("pods", selector)
    found = []
    for service in cluster.list("services", selector):
        record = AppAnnotation.of(service)
        if record is not None:
            found.append(_checked(cluster, seen_objects(service, record, jobs, pods, time.time())))
    return sorted(found, key=lambda app: app.record.created)


def _checked(cluster: Cluster, seen: SeenObjects) -> SeenObjects:
    """With pods that should have ended, and may not have, looked at closely."""
    if not any(pod.is_doubtful for pod in seen.pods):
        return seen
    pods = tuple(
        replace(pod, is_past_grace=False)
        if pod.is_doubtful and not has_log_ended(cluster, pod)
        else pod
        for pod in seen.pods
    )
    return replace(seen, pods=pods)


def seen_objects(
    service: dict[str, Any],
    record: AppAnnotation,
    jobs: list[dict[str, Any]],
    pods: list[dict[str, Any]],
    now: float,
) -> SeenObjects:
    """Those of one app. Pure."""
    name = service["metadata"]["name"]

    def is_own(one: dict[str, Any]) -> bool:
        return bool((one["metadata"].get("labels") or {}).get(names.APP) == name)

    cancelled = (service["metadata"].get("annotations") or {}).get(names.CANCELLED)
    return SeenObjects(
        name,
        record,
        tuple(filter(None, (seen_job(job) for job in jobs if is_own(job)))),
        tuple(filter(None, (seen_pod(pod, now) for pod in pods if is_own(pod)))),
        None if cancelled is None else float(cancelled),
        moment(service["metadata"].get("creationTimestamp")) or 0.0,
    )


def is_due(assessed: Assessment) -> bool:
    """Something is to be done. A Job that is there starts by itself."""
    missing = [key for key, _ in assessed.to_start if assessed.current[key] is None]
    return bool(assessed.to_stop or missing)


def carry_out(cluster: Cluster, seen: SeenObjects, app_id: str) -> Assessment:
    """Do all that is due now; what is stopped has not ended yet."""
    assessed = assess(seen.app(app_id), time.time())
    if assessed.state.is_final:
        leave_nothing(cluster, seen)
        return assessed
    stopped = {one.id for one in assessed.to_stop}
    going = [job for job in seen.jobs if job.name in stopped]
    for_all(lambda job: stop_job(cluster, seen, job), going)
    due: dict[str, tuple[RoleAnnotation, int | None, int]] = {}
    for key, attempt in assessed.to_start:
        if assessed.current[key] is None and attempt:
            part = next(part for part in seen.record.roles if part.name == key[0])
            number = None if part.is_indexed else key[1]
            due[job_name(seen.name, part.word, number, attempt)] = part, number, attempt
    for_all(lambda one: _start(cluster, seen, *one), due.values())
    return assessed


def leave_nothing(cluster: Cluster, seen: SeenObjects) -> None:
    """Stop what goes on though the app has ended, as far as that can be."""
    for_all(
        lambda job: stop_job(cluster, seen, job), [job for job in seen.jobs if not job.has_ended]
    )


def stop_job(cluster: Cluster, seen: SeenObjects, job: SeenJob) -> None:
    """End a Job. What runs gets SIGTERM and its grace, and its pod stays, with its output.

    A pod that is deleted takes its output along, so it is its deadline that is set: the kubelet
    then ends it. What has not begun goes with its Job.
    """
    if job.has_ended:
        return
    own = [p for p in seen.pods if p.job == job.name and not p.has_ended and not p.is_deleted]
    running = [p for p in own if p.node]
    with contextlib.suppress(NotInCluster):
        if job.replica is not None and running and len(running) == len(own):
            cluster.patch("jobs", job.name, {"spec": {"backoffLimit": 0}})
            for pod in running:
                _stop_pod(cluster, pod)
        else:
            # A queue may let it begin later: then without pods.
            spec = {"parallelism": 0} if job.is_suspended else {}
            spec["activeDeadlineSeconds"] = _AT_ONCE
            cluster.patch("jobs", job.name, {"spec": spec})


def _stop_pod(cluster: Cluster, pod: ReplicaPod) -> None:
    if pod.is_stopping:
        return
    change = {
        "metadata": {"annotations": {names.STOPPED: repr(time.time())}},
        "spec": {"activeDeadlineSeconds": _AT_ONCE},
    }
    cluster.patch("pods", pod.name, change)


def _start(
    cluster: Cluster, seen: SeenObjects, part: RoleAnnotation, number: int | None, attempt: int
) -> None:
    """The Job that was, as a new one: the cluster has all that it was made from."""
    before = cluster.get("jobs", job_name(seen.name, part.word, number, attempt - 1))
    if before is None:
        return  # it is being deleted
    with contextlib.suppress(ObjectExists):  # somebody else makes it
        cluster.create("jobs", again(before, seen.name, part, number, attempt))


def again(
    before: dict[str, Any], app: str, part: RoleAnnotation, number: int | None, attempt: int
) -> dict[str, Any]:
    """A Job like another, for the next attempt. Pure."""
    job = copy.deepcopy(before)
    meta = job["metadata"]
    own = {**meta.get("labels", {}), names.ATTEMPT: str(attempt)}
    kept = {k: v for k, v in own.items() if not k.endswith(("controller-uid", "job-name"))}
    job["metadata"] = {
        "name": job_name(app, part.word, number, attempt),
        "labels": kept,
        "ownerReferences": meta.get("ownerReferences", []),
    }
    job.pop("status", None)
    spec = job["spec"]
    for name in ("selector", "manualSelector", "activeDeadlineSeconds"):
        spec.pop(name, None)
    template = spec["template"]
    labels = template["metadata"]["labels"]
    template["metadata"]["labels"] = {
        **{k: v for k, v in labels.items() if not k.endswith(("controller-uid", "job-name"))},
        names.ATTEMPT: str(attempt),
    }
    if part.is_indexed:
        old = f"{first_hostname(app, part, attempt - 1)}.{app}"
        new = f"{first_hostname(app, part, attempt)}.{app}"
        for container in template["spec"]["containers"]:
            for variable in container.get("env") or ():
                if variable.get("value") == old:
                    variable["value"] = new
    return job


def delete_all(cluster: Cluster, name: str) -> None:
    """Whatever there is of an app: the Service owns the rest; what it does not is looked for."""
    cluster.delete("services", name)
    chosen = f"{names.APP}={name}"
    for resource in ("jobs", "pods"):
        for one in cluster.list(resource, chosen):
            cluster.delete(resource, one["metadata"]["name"])
