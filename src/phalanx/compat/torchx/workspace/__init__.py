"""TorchX's `workspace`."""

from phalanx._core.lazy import loader
from phalanx.compat.torchx import absent_in
from phalanx.compat.torchx.workspace.api import WorkspaceMixin

__all__ = ["WorkspaceMixin"]

__getattr__ = loader(__name__, {}, absent_in("workspace"))
