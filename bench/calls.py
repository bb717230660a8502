"""Many calls of an empty function, beside a process per call of the standard library's pools.

`make bench-calls`. Each call is in a process of its own everywhere, two at a time; a round is a new
process, from its first import to the last result. Rows have wall time, and the processors' time of
all processes, which a busy machine changes less.
`BENCH_ROUNDS` (7) sets the rounds, `BENCH_CALLS` (1000) the calls.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

import run as common  # noqa: E402 found by the line above

CALLS = int(os.environ.get("BENCH_CALLS", "1000"))
PROGRAMS = {
    "phalanx: Launcher.map": """
import phalanx
launcher = phalanx.Launcher(workers_per_host=1)
results = launcher.map(empty, [{"x": x} for x in range(CALLS)], max_parallel=2)
values = [result.rank(0) for result in results]
""",
    "multiprocessing.Pool, fork": """
import multiprocessing
with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
    values = pool.map(empty, range(CALLS), chunksize=1)
""",
    "ProcessPoolExecutor, spawn": """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
spawn = multiprocessing.get_context("spawn")
with ProcessPoolExecutor(2, mp_context=spawn, max_tasks_per_child=1) as pool:
    values = list(pool.map(empty, range(CALLS)))
""",
}
"""A pool that forks has no agent: what a call leaves behind, prints or kills is the program's."""
HEAD = "def empty(x):\n    return x\n\n\nif __name__ == '__main__':\n"


def program(body: str) -> str:
    text = body.replace("CALLS", str(CALLS)) + f"assert values == list(range({CALLS}))\n"
    return HEAD + "".join(f"    {line}\n" for line in text.splitlines() if line)


def measure(directory: str) -> dict[str, list[tuple[float, float]]]:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    for i in range(common.ROUNDS):
        print(f"  round {i + 1} of {common.ROUNDS}", file=sys.stderr, flush=True)
        for number, (name, body) in enumerate(PROGRAMS.items()):
            path = Path(directory) / f"program_{number}.py"
            path.write_text(program(body))
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run([sys.executable, str(path)], cwd=directory, check=True)
            seconds = time.perf_counter() - began
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            times[name].append((seconds, used))
    return times


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        times = measure(directory)
    rows: list[common.Row] = []
    for name, found in times.items():
        wall, used = (statistics.median(one) for one in zip(*found, strict=True))
        cells = (f"{wall:.2f} s", f"{1e3 * wall / CALLS:.1f} ms", f"{1e3 * used / CALLS:.1f} ms")
        rows.append((name, *cells))
    heads = (f"{CALLS} calls, median", "in all", "per call", "processor time per call")
    machine = f"{os.cpu_count()} processors, Python {platform.python_version()}"
    text = f"{machine}, {common.ROUNDS} rounds\n\n{common.table(heads, rows)}"
    print(text)
    common.RESULTS.mkdir(parents=True, exist_ok=True)
    (common.RESULTS / "calls.md").write_text(text + "\n")
    saved = {"machine": machine, "calls": CALLS, "seconds": times}
    (common.RESULTS / "calls.json").write_text(json.dumps(saved, indent=1))


if __name__ == "__main__":
    main()
