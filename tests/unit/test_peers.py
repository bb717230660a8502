"""How outcomes of other launchers' tests are judged; `make peers` runs them."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "peers.py"


@pytest.fixture(scope="module")
def peers():
    """The tool, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("peers", TOOL)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_failure_has_a_reason_that_is_listed(peers):
    """A name that is not there is one only where it is listed, and for so many tests."""
    suite = {
        "differ": {"a.py::Differs": "on purpose"},
        "not-applicable": {"b.py": "not ours"},
        "absent": {"Timer is not there": 1},
    }
    outcomes = {
        "a.py::passes": ("passed", ""),
        "a.py::Differs::one": ("failed", "1 != 2"),
        "b.py::any": ("failed", "Timer is not there"),
        "a.py::needs": ("failed", "Timer is not there"),
        "a.py::needs_too": ("failed", "Timer is not there"),
        "a.py::lost": ("failed", "AppDef is not there"),
        "a.py::skipped": ("skipped", "no GPU"),
        "a.py::broken": ("failed", "1 != 2"),
    }
    kinds = {test: kind for test, (kind, _) in peers.classify(suite, outcomes).items()}
    assert kinds == {
        "a.py::passes": "pass",
        "a.py::Differs::one": "differ",
        "b.py::any": "not applicable",
        "a.py::needs": "not applicable",
        "a.py::needs_too": "unexplained",
        "a.py::lost": "unexplained",
        "a.py::skipped": "not applicable",
        "a.py::broken": "unexplained",
    }


def test_the_page_has_the_reasons_that_are_listed(peers):
    """It is written from them: a row without one would be of an older list."""
    sections = peers.written()
    for path in sorted(peers.SUITES.glob("*.toml")):
        suite = tomllib.loads(path.read_text())
        listed = {*suite.get("differ", {}).values(), *suite.get("not-applicable", {}).values()}
        listed |= {*suite.get("absent", {}), "the peer skips it here"}
        rows = re.findall(r"^\| (.*?) \| `.*\|$", sections[suite["title"]], re.MULTILINE)
        assert {row for row in rows if not row.startswith("`")} <= listed
