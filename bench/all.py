"""Run every benchmark once, and keep the figures under the commit: `make bench-all`.

They are kept in `bench/results/COMMIT/`, for `bench/compare.py`. `BENCH_ONLY=run,calls` runs some
of them. One that fails does not keep the others from being run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
NAMES = (
    *("run", "hosts", "apps", "elastic", "scale", "calls"),
    *("slurm", "docker", "kubernetes", "ray_train"),
)


def main() -> int:
    only = os.environ.get("BENCH_ONLY")
    names = NAMES if not only else only.split(",")
    if unknown := set(names) - set(NAMES):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    kept = RESULTS / commit()
    kept.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in names:
        print(f"── {name}", file=sys.stderr, flush=True)
        before = {path: path.stat().st_mtime_ns for path in RESULTS.glob("*.json")}
        if subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=False).returncode:
            failed.append(name)
            continue
        for path in RESULTS.glob("*.json"):
            if before.get(path) != path.stat().st_mtime_ns:
                shutil.copy(path, kept / path.name)
    print(f"kept in {kept}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def commit() -> str:
    """The commit's short name, marked where the tree is not as it was committed."""
    words = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
