"""The supervisor on a host: it has workers started, follows them, and ends them.

It hears from a channel and never knows who is at the other end, nor who placed it. The names that
TorchElastic's users know, for agents that a program starts itself, are here as well; what is behind
them stands above this package, and is loaded when it is first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["LocalElasticAgent", "RunResult", "WorkerFailure", "WorkerSpec", "WorkerState"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("phalanx.elastic.agents"), name)
    globals()[name] = value
    return value
