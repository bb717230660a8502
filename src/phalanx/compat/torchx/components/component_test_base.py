"""TorchX's base class for tests of components."""

from phalanx.testing import ComponentTestCase

__all__ = ["ComponentTestCase"]
