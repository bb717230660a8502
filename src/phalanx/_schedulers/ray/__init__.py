"""`ray`: apps and hosts on a Ray cluster that exists already.

| room, module | |
|---|---|
| `options` | what a user can ask for, checked |
| `resources` | pure: bundles of a placement group, and which resources are missing |
| `job_log` | pure: what a driver writes into its job's log, and reads back |
| `command_stream` | a command's streams over a connection, as both sides speak |
| **`api`** | the cluster from outside: no app, no lease |
| `api.addresses` | where its dashboard is |
| `api.dashboard` | all requests to it, over HTTP, and what its complaints mean |
| `api.auth_token` | the token of a cluster that asks for one |
| `api.package` | the zip files that travel: a project, and Phalanx with a request |
| `api.job` | pure: a job that runs our driver, and how it stands |
| **`cluster`** | what runs in the cluster: nothing of how it was submitted |
| `cluster.driver` | what a job runs: one of the next two |
| `cluster.app_driver` | runs an app |
| `cluster.driver_output` | the job's log and the app's state, on a disk that may be full |
| `cluster.lend_driver` | holds hosts for a launcher outside, and leads it to them |
| `cluster.nodes` | a placement group, and a server on each of its bundles |
| `cluster.lent_nodes` | a group that is lent, of which lost nodes are replaced |
| `cluster.node_server` | runs commands on a node, for those who have the token |
| `cluster.guarded_port` | takes connections, of which strangers cannot keep others out |
| **`apps`** | apps as jobs: no lease |
| `apps.names` | pure: an app's id, and what a job's metadata says |
| `apps.request` | pure: an app and its options → a job, and what its driver is told |
| `apps.status` | pure: how an app stands, by its job and its driver |
| **`hosts`** | nodes as hosts for launches: no app |
| `hosts.lease` | from outside or within a Ray program |
| `hosts.exec_stream` | a program: the way to a lent host |
| `scheduler` | puts them together |

Ray itself is imported by `cluster.nodes` alone, in the cluster or within a Ray program: this side
speaks HTTP, so that it needs no Ray, and the cluster may have any version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx._schedulers.ray.scheduler import RayScheduler


def create_scheduler(session_name: str, **kwargs: object) -> RayScheduler:
    """As the entry points of plugins have it."""
    from phalanx._schedulers.ray.scheduler import RayScheduler

    return RayScheduler(session_name, **kwargs)
