"""Which hosts there are, and how many workers each may have, as torchrunx's functions tell it."""

from __future__ import annotations

import os

from phalanx._launcher.transport import slurm
from phalanx._system import machine

__all__ = ["auto_hosts", "auto_workers", "in_slurm_job", "slurm_hosts", "slurm_workers"]


def in_slurm_job() -> bool:
    """Whether this process is in a Slurm allocation."""
    return "SLURM_JOB_ID" in os.environ


def slurm_hosts() -> list[str]:
    """The hosts of the allocation. Raises `ConfigError` where there is none."""
    return list(slurm.allocation(os.environ).hosts)


def slurm_workers() -> int:
    """The tasks of a host, where the job says how many; otherwise its GPUs, or its processors.

    Raises `ConfigError` where there is no allocation.
    """
    tasks = slurm.allocation(os.environ).tasks
    return tasks[0] if tasks else _here()


def auto_hosts() -> list[str]:
    """The hosts of the allocation, or this machine."""
    return slurm_hosts() if in_slurm_job() else ["localhost"]


def auto_workers() -> int:
    """As `slurm_workers` in an allocation; elsewhere this machine's GPUs, or its processors."""
    return slurm_workers() if in_slurm_job() else _here()


def _here() -> int:
    return machine.gpus() or machine.processors()
