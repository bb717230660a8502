"""Agents by TorchElastic's names: describe a host's workers, start an agent, get results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx._core.lazy import loader

if TYPE_CHECKING:
    from phalanx._elastic.torchelastic import (
        LocalElasticAgent,
        RunResult,
        WorkerFailure,
        WorkerSpec,
        WorkerState,
    )

_PUBLIC = {
    "LocalElasticAgent": "phalanx._elastic.torchelastic",
    "RunResult": "phalanx._elastic.torchelastic",
    "WorkerFailure": "phalanx._elastic.torchelastic",
    "WorkerSpec": "phalanx._elastic.torchelastic",
    "WorkerState": "phalanx._elastic.torchelastic",
}

__all__ = [
    "LocalElasticAgent",
    "RunResult",
    "WorkerFailure",
    "WorkerSpec",
    "WorkerState",
]


__getattr__ = loader(__name__, _PUBLIC)
