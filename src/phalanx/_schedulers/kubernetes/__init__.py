"""`kubernetes`: apps as Jobs of a cluster, and its pods as hosts of launches.

| module | |
|---|---|
| `options` | what a user can ask for, checked |
| `names` | pure: names and labels that every API server takes |
| `record` | pure: what an app is, as its Service says it |
| `archive` | files that travel in the cluster's own objects |
| `pod` | pure: the pod of a replica |
| `request` | pure: an app and its options → the objects |
| `rights` | the rights that a user needs |
| `connection` | the way to an API server: kubeconfig and context, or the pod's own account |
| `cluster` | all requests to it, and what its complaints mean |
| `creation` | what is made of a request |
| `seen` | pure: what the cluster has of an app, as `..assessment` takes it |
| `actions` | does what is to be done |
| `supervisor` | a process that does it whenever a Job ends |
| `status` | how an app stands, for users: why it waits, what went wrong |
| `logs` | what replicas have printed, from the cluster |
| `lease` | pods as hosts for launches |
| `lent_pods` | pure: what they are made of, and how they stand |
| `exec_stream` | a program: the way into a pod |
| `credentials` | what it needs to know of the API server |
| `guard` | a program: deletes the pods of a launcher that was killed |
| `scheduler` | puts them together |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx._schedulers.kubernetes.scheduler import KubernetesScheduler


def create_scheduler(session_name: str, **kwargs: object) -> KubernetesScheduler:
    """As the entry points of plugins have it."""
    from phalanx._schedulers.kubernetes.scheduler import KubernetesScheduler

    return KubernetesScheduler(session_name, **kwargs)
