"""Names that are loaded when they are first asked for."""

import json
import sys
from types import ModuleType

import pytest

from phalanx._core.lazy import loader


@pytest.fixture
def module(monkeypatch):
    found = ModuleType("of_this_test")
    monkeypatch.setitem(sys.modules, found.__name__, found)
    found.__getattr__ = loader(found.__name__, {"dumps": "json"})
    return found


def test_a_name_is_loaded_once(module):
    """Then it is the module's own."""
    assert "dumps" not in vars(module)
    assert module.dumps is json.dumps
    assert vars(module)["dumps"] is json.dumps


def test_another_name_is_an_attribute_error(module):
    """As for every module."""
    with pytest.raises(AttributeError, match="module 'of_this_test' has no attribute 'loads'"):
        module.loads
