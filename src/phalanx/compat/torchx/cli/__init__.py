"""TorchX's `cli`."""

from phalanx._core.lazy import loader
from phalanx.compat.torchx import absent_in

__getattr__ = loader(__name__, {}, absent_in("cli"))
