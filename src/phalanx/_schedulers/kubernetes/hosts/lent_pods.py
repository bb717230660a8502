"""Pods that are lent as hosts: what they are made of, and how they stand. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx._schedulers.kubernetes import names
from phalanx._schedulers.kubernetes.hosts.guard import LEASE
from phalanx._schedulers.kubernetes.manifest import MAIN, merged
from phalanx._schedulers.kubernetes.options import KubernetesOptions, quantity

IDLE = 30
"""Seconds after which a pod in which nobody runs ends."""

# Waits by turns for a moment, which also buries what others have left, and looks who is there. When
# the pod is to end, those that came by exec (they have no parent here) are told, and have the
# pod's grace for their own end: an agent says that its host is taken away.
HOLDER = """
leave() {
    for one in /proc/[0-9]*; do
        while read -r key value; do
            if [ "$key" = PPid: ] && [ "$value" = 0 ] && [ "$one" != "/proc/$$" ]; then
                kill "${one#/proc/}"
            fi
        done <"$one/status"
    done 2>/dev/null
    while [ "$(echo /proc/[0-9]*)" != "/proc/$$" ]; do sleep 0.1 & wait $!; done
    exit 143
}
trap leave TERM INT
idle=0
while [ $idle -lt $1 ]; do
    sleep 1 & wait $!
    set -- $1 /proc/[0-9]*
    if [ $# -gt 2 ]; then idle=0; else idle=$((idle + 1)); fi
done
"""

_FINAL = {"InvalidImageName", "ErrImageNeverPull"}
"""Reasons to wait that never pass."""
_UNAVAILABLE = re.compile(
    r"not found|manifest unknown|pull access denied|unauthorized|denied:|no match for platform",
    re.IGNORECASE,
)
_UNTOLD = {"ContainerCreating", "PodInitializing", ""}
"""Reasons that say nothing."""


def pod(
    name: str,
    lease: str,
    user: str,
    image: str,
    options: KubernetesOptions,
    secret: str | None,
) -> dict[str, Any]:
    """A host, as the API server takes it; its environment is in the secret too, if there is one."""
    labels = {LEASE: lease, names.USER: user, "app.kubernetes.io/managed-by": "phalanx"}
    container: dict[str, Any] = {
        "name": MAIN,
        "image": image,
        "imagePullPolicy": options.pull_policy,
        # The kubelet takes a dollar from two.
        "command": ["/bin/sh", "-c", HOLDER.replace("$", "$$"), "phalanx", str(IDLE)],
        "env": [{"name": key, "value": value} for key, value in options.env.items()],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 for torch
    }
    wanted: dict[str, str] = {}
    if options.cpus is not None:
        wanted["cpu"] = f"{round(options.cpus * 1000)}m"
    if options.mem is not None:
        wanted["memory"] = quantity(options.mem)
    if options.gpus:
        wanted[options.gpu_resource] = str(options.gpus)
    if wanted:
        container["resources"] = {"requests": wanted, "limits": wanted}
    if secret is not None:
        container["envFrom"] = [{"secretRef": {"name": secret}}]
    shm: dict[str, Any] = {"medium": "Memory"}
    if options.shm_size is not None:
        shm["sizeLimit"] = quantity(options.shm_size)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(1, round(options.stop_grace)),
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": shm}],
    }
    if options.service_account is not None:
        spec["serviceAccountName"] = options.service_account
    if options.image_secret is not None:
        spec["imagePullSecrets"] = [{"name": options.image_secret}]
    if options.priority_class is not None:
        spec["priorityClassName"] = options.priority_class
    if options.gang_scheduler is not None:
        spec["schedulerName"] = options.gang_scheduler
    if options.node_selector:
        spec["nodeSelector"] = dict(options.node_selector)
    if options.toleration_specs:
        spec["tolerations"] = options.toleration_specs
    metadata: dict[str, Any] = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def in_queue(
    made: dict[str, Any], options: KubernetesOptions, lease: str, count: int
) -> dict[str, Any]:
    """The same in the queue that is named, if one is: Volcano's, or Kueue's, which admits all pods
    of a lease together.
    """
    if options.queue is None:
        return made
    if options.gang_scheduler == "volcano":
        own = {"annotations": {"scheduling.volcano.sh/queue-name": options.queue}}
    else:
        own = {
            "labels": {
                "kueue.x-k8s.io/queue-name": options.queue,
                "kueue.x-k8s.io/pod-group-name": lease,
            },
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": str(count)},
        }
    return merged(made, {"metadata": own})


def avoiding_nodes(made: dict[str, Any], nodes: Collection[str]) -> dict[str, Any]:
    """The same, on other nodes than these if there is room: a node that has just died is taken for
    a good one until the cluster has noticed.
    """
    if not nodes:
        return made
    other = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": sorted(nodes)}
    wish = {"weight": 100, "preference": {"matchExpressions": [other]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    return merged(made, {"spec": {"affinity": affinity}})


@dataclass(frozen=True)
class SeenPod:
    """How a pod stands."""

    name: str
    is_running: bool
    waits: str = ""
    """Why it does not run yet, if that is known."""
    end: str = ""
    """Why it will not run (any more); empty if it may."""
    node: str = ""
    """Where it is, once that is chosen."""


def seen(known: Mapping[str, Any]) -> SeenPod:
    """What the API server says of a pod."""
    name = known["metadata"]["name"]
    status = known.get("status") or {}
    node = (known.get("spec") or {}).get("nodeName") or ""
    phase = status.get("phase")
    if known["metadata"].get("deletionTimestamp"):
        return SeenPod(name, False, end=_because(status) or "it was deleted", node=node)
    if phase in ("Failed", "Succeeded"):
        return SeenPod(name, False, end=_because(status) or f"it has ended ({phase})", node=node)
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        if container["name"] == MAIN and "running" in state:
            return SeenPod(name, True, node=node)
    waiting, final = _waiting(status)
    if final:
        return SeenPod(name, False, end=waiting, node=node)
    return SeenPod(name, False, waiting, node=node)


def _waiting(status: Mapping[str, Any]) -> tuple[str, bool]:
    """Why a pod waits, and whether that will never pass."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _words(condition), False
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            waits = (container.get("state") or {}).get("waiting") or {}
            if waits.get("reason", "") not in _UNTOLD:
                said = str(waits.get("message") or "")
                final = waits["reason"] in _FINAL or (
                    "ImagePull" in waits["reason"] and bool(_UNAVAILABLE.search(said))
                )
                return _words(waits), final
    return "", False


def _because(status: Mapping[str, Any]) -> str:
    """Why a pod has ended, as far as the cluster says it."""
    if status.get("reason") or status.get("message"):
        return _words(status)
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("reason", "Completed") != "Completed":
            code = ended.get("exitCode")
            return _words(ended) + ("" if ended.get("message") else f", exit code {code}")
    return ""


def _words(known: Mapping[str, Any]) -> str:
    return ": ".join(str(known[key]) for key in ("reason", "message") if known.get(key))


def summary(pods: Sequence[SeenPod], wanted: int) -> str:
    """Why not all run, in a sentence."""
    running = sum(one.is_running for one in pods)
    reasons = [one.waits for one in pods if one.waits]
    told = f"{running} of {wanted} pods run"
    return f"{told}; {reasons[0]}" if reasons else (told if running else "")
