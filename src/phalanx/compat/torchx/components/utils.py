"""TorchX's `utils` components."""

from phalanx.compat.torchx.specs.api import thawing
from phalanx.components import utils as _ours

__all__ = ["binary", "copy", "echo", "hydra", "python", "sh", "touch"]

binary = thawing(_ours.binary, __name__)
copy = thawing(_ours.copy, __name__)
echo = thawing(_ours.echo, __name__)
hydra = thawing(_ours.hydra, __name__)
python = thawing(_ours.python, __name__)
sh = thawing(_ours.sh, __name__)
touch = thawing(_ours.touch, __name__)
