"""Agents by TorchElastic's names: describe a host's workers, start an agent, get results."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
