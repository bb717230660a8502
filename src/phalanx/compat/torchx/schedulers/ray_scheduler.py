"""TorchX's scheduler for Ray."""

from __future__ import annotations

from typing import Any

from phalanx._core.lazy import loader
from phalanx.compat.torchx.schedulers._wrapped import WrappedScheduler

__all__ = ["RayOpts", "RayScheduler", "create_scheduler"]

RayOpts = dict[str, Any]
"""Options, by name: `runner.scheduler_run_opts('ray')` has those that there are."""


class RayScheduler(WrappedScheduler):
    """Runs replicas on a Ray cluster."""

    name = "ray"


def create_scheduler(session_name: str, **kwargs: Any) -> RayScheduler:
    """Create it.

    Args:
        session_name: The middle part of handles.
        **kwargs: What it is created with.
    """
    return RayScheduler(session_name, **kwargs)


__getattr__ = loader(
    __name__,
    {},
    {
        "RayJob": "str(info) shows what is submitted",
        "has_ray": "Ray need not be installed here",
        "serialize": "str(info) shows what is submitted",
    },
)
