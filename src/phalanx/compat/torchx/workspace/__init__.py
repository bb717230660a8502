"""TorchX's `workspace`."""

from phalanx.compat.torchx.workspace.api import WorkspaceMixin

__all__ = ["WorkspaceMixin"]
