"""`kubernetes`: apps as Jobs of a cluster, and its pods as hosts of launches.

| room, module | |
|---|---|
| `options` | what a user can ask for, checked |
| `names` | pure: names and labels that every API server takes |
| `manifest` | pure: templates merged, times read |
| `rights` | the rights that a user needs |
| **`api`** | the API server: no app, no launch |
| `api.connection` | the way to it: kubeconfig and context, or the pod's own account |
| `api.cluster` | all requests to it, and what its complaints mean |
| `api.exec_stream` | a program: the way into a pod |
| `api.credentials` | what that needs to know of the API server |
| **`apps`** | apps as Jobs: no lease |
| `apps.record` | pure: what an app is, as its Service says it |
| `apps.archive` | files that travel in the cluster's own objects |
| `apps.pod` | pure: the pod of a replica |
| `apps.request` | pure: an app and its options → the objects |
| `apps.creation` | what is made of a request |
| `apps.seen` | pure: what the cluster has of an app, as `replicas.assessment` takes it |
| `apps.actions` | does what is to be done |
| `apps.supervisor` | a process that does it whenever a Job ends |
| `apps.status` | how an app stands, for users: why it waits, what went wrong |
| `apps.logs` | what replicas have printed, from the cluster |
| **`hosts`** | pods as hosts for launches: no app |
| `hosts.lease` | asks for them, waits, gives them back |
| `hosts.lent_pods` | pure: what they are made of, and how they stand |
| `hosts.guard` | a program: deletes the pods of a launcher that was killed |
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
