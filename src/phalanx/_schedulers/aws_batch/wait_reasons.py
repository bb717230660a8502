"""Why a job waits, by what the service says of it, its queue and its compute environments. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx._core.sanitize import sanitize_line

_LONGEST = 300


def why_waiting(
    job: Mapping[str, Any],
    queue: Mapping[str, Any] | None,
    environments: Sequence[Mapping[str, Any]],
) -> str:
    """In one line; what is surely in the way comes first."""
    status = job.get("status")
    if status == "STARTING":
        return "its host is there, and pulls the image"
    if status == "PENDING":
        return "waits for the jobs that it depends on"
    if status != "RUNNABLE":
        return ""
    if said := sanitize_line(str(job.get("statusReason") or ""), _LONGEST):
        return said
    if queue is None:
        return "waits for a host"
    name = queue.get("jobQueueName")
    if queue.get("state") == "DISABLED":
        return f"the queue {name} is disabled"
    if queue.get("status") not in (None, "VALID"):
        return f"the queue {name} is {_state(queue)}"
    reasons = [_in_the_way(one, vcpus_of(job)) for one in environments]
    if reasons and all(reasons):
        return "; ".join(reasons)
    return f"waits for a host in the queue {name}"


def vcpus_of(job: Mapping[str, Any]) -> int:
    """The processors that a job needs at once."""
    nodes = job.get("nodeProperties")
    if not nodes:
        return _vcpus(job.get("container") or {})
    total = 0
    for group in nodes.get("nodeRangeProperties") or ():
        first, _, last = str(group.get("targetNodes", "0:0")).partition(":")
        count = int(last or nodes.get("numNodes", 1) - 1) - int(first or 0) + 1
        total += count * _vcpus(group.get("container") or {})
    return total


def _vcpus(container: Mapping[str, Any]) -> int:
    for need in container.get("resourceRequirements") or ():
        if need.get("type") == "VCPU":
            return int(float(need["value"]))
    return int(container.get("vcpus") or 0)


def _in_the_way(environment: Mapping[str, Any], vcpus: int) -> str:
    name = environment.get("computeEnvironmentName")
    if environment.get("state") == "DISABLED":
        return f"the compute environment {name} is disabled"
    if environment.get("status") not in (None, "VALID", "UPDATING"):
        return f"the compute environment {name} is {_state(environment)}"
    most = (environment.get("computeResources") or {}).get("maxvCpus")
    if most is not None and vcpus > most:
        return f"it needs {vcpus} vCPUs, and the compute environment {name} has at most {most}"
    return ""


def _state(thing: Mapping[str, Any]) -> str:
    said = sanitize_line(str(thing.get("statusReason") or ""), _LONGEST)
    return f"{thing.get('status')}{f': {said}' if said else ''}"
