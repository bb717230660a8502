"""The names of `phalanx.specs`, in the module where TorchX has them."""

from typing import TYPE_CHECKING

from phalanx._core.lazy import facade

if TYPE_CHECKING:
    from phalanx.specs import *  # noqa: F403 the same names

__getattr__ = facade(__name__, "phalanx.specs")
