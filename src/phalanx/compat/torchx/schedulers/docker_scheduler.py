"""TorchX's scheduler for the Docker engine of this host."""

from __future__ import annotations

from typing import Any

from phalanx.compat.torchx.schedulers._absent import absent
from phalanx.compat.torchx.schedulers._wrapped import WrappedScheduler

__all__ = ["DockerOpts", "DockerScheduler", "create_scheduler"]

DockerOpts = dict[str, Any]
"""Options, by name: `runner.scheduler_run_opts('local_docker')` has those that there are."""


class DockerScheduler(WrappedScheduler):
    """Runs replicas as containers."""

    name = "local_docker"


def create_scheduler(session_name: str, **kwargs: Any) -> DockerScheduler:
    """Create it.

    Args:
        session_name: The middle part of handles.
        **kwargs: What it is created with.
    """
    return DockerScheduler(session_name, **kwargs)


__getattr__ = absent(
    __name__,
    {
        "DockerJob": "str(info) shows what is submitted",
        "DockerContainer": "str(info) shows what is submitted",
    },
)
