"""The comparison of two runs of the benchmarks."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def compare(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("bench_compare", BENCH / "compare.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_compare", module)
    spec.loader.exec_module(module)
    yield module
    monkeypatch.delitem(sys.modules, "run", raising=False)


def test_what_became_slower_is_said(compare, tmp_path, monkeypatch, capsys):
    """By the ratio, if it is more than noise; what only one of them has is left out."""
    before = {
        "starts": {"a": [1.0, 1.1], "b": [1.0, 2.0]},
        "old": 1,
        "rows": [{"name": "x", "s": 4}],
    }
    after = {
        "starts": {"a": [2.0, 2.2], "b": [1.5, 1.9]},
        "new": 1,
        "rows": [{"name": "x", "s": 2}],
    }
    for name, saved in (("one", before), ("two", after)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bench.json").write_text(json.dumps(saved))
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "one"), str(tmp_path / "two")])
    assert compare.main() == 1
    told = capsys.readouterr().out
    verdicts = [line.split("|")[-2].strip() for line in told.splitlines() if ": " in line]
    assert [line.split("|")[1].strip() for line in told.splitlines() if ": " in line] == [
        "bench: starts / a",
        "bench: starts / b",
        "bench: rows / x / s",
    ]
    assert verdicts == ["worse", "", "better"]
    assert told.endswith("3 figures, 1 worse\n")
