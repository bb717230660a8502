"""TorchX's `metrics` components."""

from phalanx.compat.torchx.specs.api import thawing
from phalanx.components import metrics as _ours

__all__ = ["tensorboard"]

tensorboard = thawing(_ours.tensorboard, __name__)
