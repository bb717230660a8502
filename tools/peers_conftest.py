"""What a peer's tests run under: our modules by its names, and its own helpers of tests.

A name or module that we do not have is replaced by one that says so when it is used: the tests that
do not need it run.
"""

import ast
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import types
from pathlib import Path

from peer_missing import Absent, missing

from phalanx.compat import install

PEER = os.environ["PEER"]
RESULTS = {}
MISSING = set()


def module(name):
    """A module of the peer's: ours, or an empty one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        made = types.ModuleType(name)
        made.__path__ = []

        def absent(attribute):
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            raise Absent(f"{name}.{attribute} is not there")

        made.__getattr__ = absent
        sys.modules[name] = made
        parent, _, last = name.rpartition(".")
        setattr(module(parent), last, made)
        return made


def prepare(path):
    """Have every import of a test file succeed."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == PEER:
                    module(alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PEER:
            found = module(node.module)
            for alias in node.names:
                try:
                    getattr(found, alias.name)
                except AttributeError:
                    try:
                        importlib.import_module(f"{node.module}.{alias.name}")
                    except ImportError:
                        MISSING.add(alias.name)
                        setattr(found, alias.name, missing(alias.name))


if PEER.startswith("peer_"):
    importlib.import_module(PEER)
else:
    install(PEER)
sys.modules.setdefault("importlib_metadata", importlib.metadata)
for name, ours in json.loads(os.environ["PEER_NAMES"]).items():
    owner, _, attribute = name.rpartition(".")
    place, _, own_name = ours.partition(":")
    setattr(module(owner), attribute, getattr(importlib.import_module(place), own_name))
for support, file in json.loads(os.environ["PEER_SUPPORT"]).items():
    package = support.rpartition(".")[0]
    module(package)
    prepare(Path(os.environ["PEER_SOURCES"]) / file)
    spec = importlib.util.spec_from_file_location(
        support, os.path.join(os.environ["PEER_SOURCES"], file)
    )
    made = importlib.util.module_from_spec(spec)
    sys.modules[support] = made
    setattr(module(package), support.rpartition(".")[2], made)
    spec.loader.exec_module(made)
for quiet in json.loads(os.environ["PEER_QUIET"]):
    owner, _, attribute = quiet.rpartition(".")
    setattr(module(owner), attribute, None)
for test_file in Path(__file__).parent.glob("*.py"):
    if test_file.name != "conftest.py":
        prepare(test_file)
os.environ["PEER_MISSING"] = json.dumps(sorted(MISSING))  # for workers


def _last_line(report):
    text = str(getattr(report, "longrepr", "") or "")
    crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
    message = crash.message if crash is not None else text
    absent = [line for line in message.splitlines() if "is not there" in line]
    if "does not have the attribute" in message:  # what a mock would have replaced
        name = message.partition("does not have the attribute ")[2].split()[0]
        absent = [f"{name} is not there: it would be replaced by a mock"]
    found = (absent or message.strip().splitlines() or [""])[0][:300]
    return found.removeprefix("E").strip().removeprefix("peer_missing.Absent: ")


def pytest_collectreport(report):
    """A file that cannot be loaded is one failure."""
    if report.failed:
        RESULTS[report.nodeid] = ("failed", _last_line(report))


def pytest_runtest_logreport(report):
    """The first failure of a test counts."""
    if report.when == "call" or report.outcome != "passed":
        before = RESULTS.get(report.nodeid, ("passed", ""))
        if before[0] == "passed":
            RESULTS[report.nodeid] = (report.outcome, _last_line(report))


def pytest_sessionfinish():
    """For the tool."""
    Path(os.environ["PEER_RESULTS"]).write_text(json.dumps(RESULTS))
