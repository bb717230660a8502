"""`local_docker`: apps as containers of the Docker engine on this machine.

| module | |
|---|---|
| `options` | what a user can ask for, checked |
| `labels` | what a container's labels say: the only record of an app |
| `request` | pure: an app and its options → the containers |
| `engine` | all calls of the engine's API, and what its complaints mean |
| `gpus` | which GPUs a container gets: those that nobody else has |
| `creation` | what is made of a request |
| `replicas.assessment` | pure: what the engine has of an app → how it stands, what is to be done |
| `actions` | does it |
| `supervisor` | a process that does it whenever a container ends |
| `replica_errors` | what went wrong in a replica, from what its container has left |
| `leftovers` | what killed programs have left in the engine |
| `logs` | what replicas have printed, from the engine |
| `lease` | containers as hosts of launches; `exec_stream` leads there without docker's command |
| `scheduler` | puts them together |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx._schedulers.docker.scheduler import DockerScheduler


def create_scheduler(session_name: str, **kwargs: object) -> DockerScheduler:
    """As the entry points of plugins have it."""
    from phalanx._schedulers.docker.scheduler import DockerScheduler

    return DockerScheduler(session_name, **kwargs)
