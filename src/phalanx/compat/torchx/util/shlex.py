"""TorchX's place for `shlex.join`."""

from shlex import join

__all__ = ["join"]
