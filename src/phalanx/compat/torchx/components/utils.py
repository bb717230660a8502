"""TorchX's `utils` components."""

from phalanx.compat.torchx.specs.api import thawing
from phalanx.components import utils as _ours

__all__ = ["binary", "copy", "echo", "hydra", "python", "sh", "touch"]

binary = thawing(_ours.binary)
copy = thawing(_ours.copy)
echo = thawing(_ours.echo)
hydra = thawing(_ours.hydra)
python = thawing(_ours.python)
sh = thawing(_ours.sh)
touch = thawing(_ours.touch)
