"""Lightning's environment for our workers: that of TorchElastic, whose variables they have."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["TorchrunxClusterEnvironment"]

_ENVIRONMENTS = "lightning.fabric.plugins.environments.torchelastic"
_TorchElastic: Any = import_module(_ENVIRONMENTS).TorchElasticEnvironment


class TorchrunxClusterEnvironment(_TorchElastic):  # type: ignore[misc]
    """Says that the workers are there already, with their variables."""

    @staticmethod
    def detect() -> bool:
        """It is always this one."""
        return True
