"""One hint for every mistyped name."""

import ast

import pytest

from phalanx._core.suggestions import closest, did_you_mean
from tests.unit.test_architecture import MODULES


@pytest.mark.parametrize(
    ("name", "cutoff", "meant"),
    [("lanch", 0.6, "launch"), ("xyz", 0.6, None), ("lunch", 0.99, None), ("", 0.6, None)],
)
def test_the_closest_name_is_meant_if_it_is_close_enough(name, cutoff, meant):
    """Any iterable of names will do."""
    assert closest(name, iter(["list", "launch"]), cutoff=cutoff) == meant


def test_the_hint_goes_behind_a_sentence():
    """Names are quoted, flags are not; without a name there may be another hint, or none."""
    assert did_you_mean("launch") == " Did you mean 'launch'?"
    assert did_you_mean("--wait", "See: phalanx", quoted=False) == " Did you mean --wait?"
    assert did_you_mean(None, "See: phalanx") == " See: phalanx"
    assert did_you_mean(None) == ""


def test_names_are_compared_in_one_place():
    """Everybody asks in the same words."""
    users = {
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(alias.name == "difflib" for alias in node.names)
    }
    assert users == {"_core.suggestions"}
