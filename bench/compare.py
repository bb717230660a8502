"""What became slower between two runs of `make bench-all`: `make bench-compare A=COMMIT B=COMMIT`.

Every figure that both have, by the ratio of medians, with the spread of each. A figure counts as
worse (or better) if the medians differ by a tenth and the spreads do not overlap; one that was
measured only once has no spread, and has to differ by a quarter.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run import RESULTS, table

SURELY, PERHAPS = 1.1, 1.25


@dataclass(frozen=True)
class Change:
    name: str
    before: list[float]
    after: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.after) / statistics.median(self.before)

    @property
    def verdict(self) -> str:
        spread = len(self.before) > 1 and len(self.after) > 1
        least = SURELY if spread else PERHAPS
        if self.ratio >= least and (not spread or min(self.after) > max(self.before)):
            return "worse"
        if self.ratio <= 1 / least and (not spread or max(self.after) < min(self.before)):
            return "better"
        return ""


def figures(value: Any, path: str = "") -> Iterator[tuple[str, list[float]]]:
    """All that was measured in what a benchmark has saved, by its name."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from figures(below, f"{path} / {key}" if path else str(key))
    elif isinstance(value, bool):
        return
    elif isinstance(value, int | float):
        yield path, [float(value)]
    elif isinstance(value, list) and value and all(type(one) in (int, float) for one in value):
        yield path, [float(one) for one in value]
    elif isinstance(value, list):
        for number, below in enumerate(value):
            names = below if isinstance(below, dict) else {}
            name = names.get("name", names.get("agents", number))
            yield from figures(below, f"{path} / {name}")


def read(directory: Path) -> dict[str, list[float]]:
    return {
        f"{path.stem}: {name}": values
        for path in sorted(directory.glob("*.json"))
        for name, values in figures(json.loads(path.read_text()))
    }


def find(name: str) -> Path:
    """The directory of a run, by (the beginning of) its commit."""
    for path in (Path(name), RESULTS / name):  # one of a changed tree begins with the same name
        if path.is_dir():
            return path
    found = [path for path in RESULTS.glob(f"{name}*") if path.is_dir()]
    if len(found) != 1:
        known = ", ".join(sorted(path.name for path in RESULTS.glob("*") if path.is_dir()))
        sys.exit(f"{name}: {len(found)} runs of that name; there are: {known or 'none'}")
    return found[0]


def changes(before: dict[str, list[float]], after: dict[str, list[float]]) -> list[Change]:
    """The figures that both have, the worst first."""
    both = [Change(name, before[name], after[name]) for name in before if name in after]
    return sorted((c for c in both if statistics.median(c.before)), key=lambda c: -c.ratio)


def row(change: Change) -> tuple[str, ...]:
    def show(values: list[float]) -> str:
        median = f"{statistics.median(values):.4g}"
        return f"{median} ({min(values):.4g}–{max(values):.4g})" if len(values) > 1 else median

    return (
        *(change.name, show(change.before), show(change.after)),
        *(f"{change.ratio:.2f}", change.verdict),
    )


def main() -> int:
    if len(sys.argv) != 3:
        sys.exit(
            "usage: compare.py A B, two commits of which `make bench-all` has kept the figures"
        )
    a, b = map(find, sys.argv[1:])
    found = changes(read(a), read(b))
    print(table(("figure", a.name, b.name, "ratio", ""), [row(change) for change in found]))
    worse = sum(change.verdict == "worse" for change in found)
    print(f"\n{len(found)} figures, {worse} worse")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
