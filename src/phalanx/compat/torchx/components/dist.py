"""TorchX's `dist` components."""

from phalanx.compat.torchx.specs.api import thawing
from phalanx.components import dist as _ours

__all__ = ["ddp", "spmd"]

ddp = thawing(_ours.ddp)
spmd = thawing(_ours.spmd)
