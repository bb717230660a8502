"""TorchX's scheduler for AWS Batch."""

from __future__ import annotations

from typing import Any

from phalanx._core.lazy import loader
from phalanx.compat.torchx.schedulers._wrapped import WrappedScheduler

__all__ = ["AWSBatchOpts", "AWSBatchScheduler", "create_scheduler"]

AWSBatchOpts = dict[str, Any]
"""Options, by name: `runner.scheduler_run_opts('aws_batch')` has those that there are."""


class AWSBatchScheduler(WrappedScheduler):
    """Runs replicas as a job of AWS Batch."""

    name = "aws_batch"


def create_scheduler(session_name: str, **kwargs: Any) -> AWSBatchScheduler:
    """Create it.

    Args:
        session_name: The middle part of handles.
        **kwargs: What it is created with.
    """
    return AWSBatchScheduler(session_name, **kwargs)


__getattr__ = loader(
    __name__,
    {},
    {
        "BatchJob": "str(info) shows what is submitted",
        "resource_requirements_from_resource": "str(info) shows what is submitted",
    },
)
