"""`shlex.join`, in the module where TorchX has it."""

from shlex import join

__all__ = ["join"]
