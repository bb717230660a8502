"""Agents by TorchElastic's names: describe a host's workers, start an agent, get results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx._core.lazy import loader

if TYPE_CHECKING:
    from phalanx._elastic.launch_config import LaunchConfig, elastic_launch, launch_agent
    from phalanx._elastic.torchelastic import LocalElasticAgent
    from phalanx._elastic.worker_spec import (
        ChildFailedError,
        RunResult,
        Worker,
        WorkerFailure,
        WorkerGroup,
        WorkerSpec,
        WorkerState,
    )

_PUBLIC = {
    "ChildFailedError": "phalanx._elastic.worker_spec",
    "LaunchConfig": "phalanx._elastic.launch_config",
    "LocalElasticAgent": "phalanx._elastic.torchelastic",
    "RunResult": "phalanx._elastic.worker_spec",
    "Worker": "phalanx._elastic.worker_spec",
    "WorkerFailure": "phalanx._elastic.worker_spec",
    "WorkerGroup": "phalanx._elastic.worker_spec",
    "WorkerSpec": "phalanx._elastic.worker_spec",
    "WorkerState": "phalanx._elastic.worker_spec",
    "elastic_launch": "phalanx._elastic.launch_config",
    "launch_agent": "phalanx._elastic.launch_config",
}

__all__ = [
    "ChildFailedError",
    "LaunchConfig",
    "LocalElasticAgent",
    "RunResult",
    "Worker",
    "WorkerFailure",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
    "elastic_launch",
    "launch_agent",
]


__getattr__ = loader(__name__, _PUBLIC)
