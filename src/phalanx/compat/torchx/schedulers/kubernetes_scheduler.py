"""TorchX's scheduler for Kubernetes."""

from __future__ import annotations

from typing import Any

from phalanx.compat.torchx.schedulers._absent import absent
from phalanx.compat.torchx.schedulers._wrapped import WrappedScheduler

__all__ = ["KubernetesOpts", "KubernetesScheduler", "create_scheduler"]

KubernetesOpts = dict[str, Any]
"""Options, by name: `runner.scheduler_run_opts('kubernetes')` has those that there are."""


class KubernetesScheduler(WrappedScheduler):
    """Runs replicas as pods."""

    name = "kubernetes"


def create_scheduler(session_name: str, **kwargs: Any) -> KubernetesScheduler:
    """Create it.

    Args:
        session_name: The middle part of handles.
        **kwargs: What it is created with.
    """
    return KubernetesScheduler(session_name, **kwargs)


__getattr__ = absent(
    __name__,
    {
        "KubernetesJob": "str(info) shows what is submitted",
        "app_to_resource": "str(info) shows what is submitted",
        "role_to_pod": "option pod_template has fields of pods; str(info) shows what is submitted",
    },
)
