"""TorchX's scheduler for Slurm."""

from __future__ import annotations

from typing import Any

from phalanx._core.lazy import loader
from phalanx.compat.torchx.schedulers._wrapped import WrappedScheduler

__all__ = ["SlurmOpts", "SlurmScheduler", "create_scheduler"]

SlurmOpts = dict[str, Any]
"""Options, by name: `runner.scheduler_run_opts('slurm')` has those that there are."""


class SlurmScheduler(WrappedScheduler):
    """Runs replicas as a job of Slurm."""

    name = "slurm"


def create_scheduler(session_name: str, **kwargs: Any) -> SlurmScheduler:
    """Create it.

    Args:
        session_name: The middle part of handles.
        **kwargs: What it is created with.
    """
    return SlurmScheduler(session_name, **kwargs)


__getattr__ = loader(
    __name__,
    {},
    {
        "SLURM_JOB_DIRS": "runner.list('slurm') finds apps by their records",
        "SLURM_STATES": "runner.status(handle).state is the state",
        "SlurmBatchRequest": "str(info) shows the script that is submitted",
        "SlurmReplicaRequest": "str(info) shows the script that is submitted",
        "_get_job_dirs": "runner.list('slurm') finds apps by their records",
        "_save_job_dir": "runner.list('slurm') finds apps by their records",
    },
)
