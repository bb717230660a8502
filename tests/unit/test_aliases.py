"""Other launchers' names: which modules they mean, and what is said of those they do not."""

import importlib
import sys

import pytest

from phalanx import _aliases
from phalanx.errors import ConfigError


@pytest.fixture
def torchrunx(monkeypatch):
    """Imports of torchrunx mean ours, for one test."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv(_aliases.VARIABLE, "")
    _aliases.install("torchrunx")
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchrunx"]:
        del sys.modules[name]


def test_another_name_gives_the_same_module(torchrunx):
    """One module object, so that classes are the same by either name."""
    for name in ("torchrunx", "torchrunx.utils.log_handling", "torchrunx.integrations.cli"):
        ours = importlib.import_module(f"phalanx.compat.{name}")
        assert importlib.import_module(name) is ours
        assert ours.__spec__.name == ours.__name__ == f"phalanx.compat.{name}"


def test_names_under_a_package_are_its_attributes(torchrunx):
    """As `import a.b` has it."""
    import torchrunx.utils.errors

    assert torchrunx.utils.errors.WorkerFailedError is torchrunx.WorkerFailedError


def test_a_module_that_there_is_not_is_named_with_the_nearest(torchrunx):
    """By the name that the program has."""
    with pytest.raises(ModuleNotFoundError, match="Did you mean 'torchrunx.integrations'") as info:
        importlib.import_module("torchrunx.integration")
    assert info.value.name == "torchrunx.integration"


def test_workers_are_told_by_a_variable(torchrunx, monkeypatch):
    """The names, once each."""
    import os

    _aliases.install_from(os.environ)
    assert os.environ[_aliases.VARIABLE] == "torchrunx"


def test_a_name_that_we_have_nothing_for_is_refused():
    """With the nearest."""
    with pytest.raises(ConfigError, match="no module 'torchrun'. Did you mean 'torchrunx'"):
        _aliases.install("torchrun")


def test_a_package_that_is_loaded_already_is_not_replaced(monkeypatch):
    """Half of a program would go on with it."""
    monkeypatch.setitem(sys.modules, "torchrunx", importlib.import_module("json"))
    with pytest.raises(ConfigError, match="torchrunx is imported already, from .*json"):
        _aliases.install("torchrunx")
