"""TorchX's scheduler for Kubernetes."""

from __future__ import annotations

from typing import Any

from phalanx._core.lazy import loader
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


__getattr__ = loader(
    __name__,
    {},
    {
        "KubernetesJob": "str(info) shows what is submitted",
        "LABEL_APP_NAME": "runner.list('kubernetes') finds apps",
        "LABEL_REPLICA_ID": "runner.list('kubernetes') finds apps",
        "LABEL_ROLE_INDEX": "runner.list('kubernetes') finds apps",
        "LABEL_ROLE_NAME": "runner.list('kubernetes') finds apps",
        "LABEL_VERSION": "runner.list('kubernetes') finds apps",
        "app_to_resource": "str(info) shows what is submitted",
        "cleanup_str": "use torchx.util.strings.normalize_str",
        "pod_labels": "option pod_template has fields of pods; str(info) shows what is submitted",
        "role_to_pod": "option pod_template has fields of pods; str(info) shows what is submitted",
    },
)
