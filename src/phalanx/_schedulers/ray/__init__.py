"""`ray`: apps and hosts on a Ray cluster that exists already.

| module | |
|---|---|
| `options` | what a user can ask for, checked |
| `names` | pure: an app's id, and what a job's metadata says |
| `request` | pure: an app and its options → a job, and what its driver is told |
| `resources` | pure: bundles of a placement group, and which resources are missing |
| `package` | the zip files that travel: a project, and Phalanx with a request |
| `dashboard` | all requests to the cluster, over HTTP, and what its complaints mean |
| `addresses` | where the dashboard is |
| `records` | pure: what a driver writes into its job's log, and reads back |
| `status` | pure: how an app stands, by its job and its driver |
| `nodes` | in the cluster: a placement group, and a server on each of its bundles |
| `node_server` | in the cluster: runs commands on a node, for those who have the token |
| `guarded_port` | in the cluster: takes connections, of which strangers cannot keep others out |
| `command_stream` | the other side of it: a command's streams over a connection |
| `app_driver` | in the cluster: runs an app |
| `lend_driver` | in the cluster: holds hosts for a launcher outside; `relay` leads to them |
| `exec_stream` | the command that leads to a lent host |
| `lease` | hosts for launches, from outside or within a Ray program |
| `scheduler` | puts them together |

Ray itself is imported by `nodes` alone, in the cluster or within a Ray program: this side speaks
HTTP, so that it needs no Ray, and the cluster may have any version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx._schedulers.ray.scheduler import RayScheduler


def create_scheduler(session_name: str, **kwargs: object) -> RayScheduler:
    """As the entry points of plugins have it."""
    from phalanx._schedulers.ray.scheduler import RayScheduler

    return RayScheduler(session_name, **kwargs)
