"""TorchX's base class for commands."""

from phalanx.cli import SubCommand

__all__ = ["SubCommand"]
