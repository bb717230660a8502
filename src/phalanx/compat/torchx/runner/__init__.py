"""TorchX's `runner`."""

from phalanx.compat.torchx.runner.api import Runner, get_runner

__all__ = ["Runner", "get_runner"]
