"""TorchX's scheduler for the Docker engine of this host."""

from __future__ import annotations

from typing import Any

from phalanx._core.lazy import loader
from phalanx._schedulers.docker.engine import Engine
from phalanx.compat.torchx.schedulers._wrapped import WrappedScheduler
from phalanx.errors import PhalanxError

__all__ = ["DockerOpts", "DockerScheduler", "create_scheduler", "has_docker"]

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


def has_docker() -> bool:
    """Whether the engine answers, and the package that asks it is installed."""
    try:
        with Engine():
            return True
    except PhalanxError:
        return False


__getattr__ = loader(
    __name__,
    {},
    {
        "DockerContainer": "str(info) shows what is submitted",
        "DockerJob": "str(info) shows what is submitted",
        "LABEL_APP_ID": "runner.list('local_docker') finds apps",
        "LABEL_REPLICA_ID": "runner.list('local_docker') finds apps",
        "LABEL_ROLE_NAME": "runner.list('local_docker') finds apps",
        "LABEL_VERSION": "runner.list('local_docker') finds apps",
        "_to_str": "write text.decode()",
        "ensure_network": "each app has a network of its own",
    },
)
