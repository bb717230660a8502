"""The command line for apps beside TorchX's, and many apps at once: `make bench-apps`.

Rows are wall times of whole commands; rounds are interleaved. TorchX 0.7.0 is installed into an
environment of its own, with the same torch beside it: what is installed is part of what both read.
Its `run` waits for local apps with or without `--wait`; ours only with it.
`BENCH_ROUNDS` (7) sets the rounds, `BENCH_APPS` (200) how many apps are many, `BENCH_PEERS=0`
leaves TorchX out.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

import run as common  # noqa: E402 found by the line above

PHALANX = str(Path(sys.executable).parent / "phalanx")
TORCHX = str(common.PEERS / "bin" / "torchx")
MANY = int(os.environ.get("BENCH_APPS", "200"))
COMMANDS = {
    "builtins": ["builtins"],
    "run --dryrun, an echo": ["run", "--dryrun", "-s", "local_cwd", "utils.echo"],
    "run, an echo": ["run", "-s", "local_cwd", "utils.echo"],
    "run --wait, an echo": ["run", "--wait", "-s", "local_cwd", "utils.echo"],
}


def measure(directory: str, environ: dict[str, str]) -> dict[str, dict[str, list[float]]]:
    tools = {"phalanx": PHALANX} | ({"torchx": TORCHX} if common.WITH_PEERS else {})
    times: dict[str, dict[str, list[float]]] = {}
    for i in range(common.ROUNDS + 1):
        print(f"  round {i} of {common.ROUNDS}", file=sys.stderr, flush=True)
        rows = {("", "an interpreter that does nothing"): [sys.executable, "-c", "pass"]}
        for name, words in COMMANDS.items():
            rows |= {(tool, name): [path, *words] for tool, path in tools.items()}
        for (tool, name), command in rows.items():
            seconds = _run(command, directory, environ)
            if i:  # the first is for the caches
                times.setdefault(name, {}).setdefault(tool, []).append(seconds)
    return times


def _run(command: list[str], directory: str, environ: dict[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=directory, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stderr}")
    return time.perf_counter() - began


def measure_many(environ: dict[str, str]) -> dict[str, float]:
    """Apps that sleep: submitted, all running, listed, cancelled; from one process."""
    os.environ |= environ
    from phalanx.runner import get_runner
    from phalanx.specs import AppState

    found: dict[str, float] = {}
    with get_runner() as runner:
        began = time.perf_counter()
        handles = [runner.run_component("utils.sh", ["sleep 600"]) for _ in range(MANY)]
        found["submitted"] = time.perf_counter() - began
        while any(app.state is not AppState.RUNNING for app in runner.list("local_cwd")):
            time.sleep(0.05)
        found["all running"] = time.perf_counter() - began
        found["listed (runner.list)"] = _timed(lambda: runner.list("local_cwd"))
        found["listed (phalanx list --all)"] = _run([PHALANX, "list", "--all"], "/", environ)
        found["cancelled, one after another"] = _timed(lambda: [*map(runner.cancel, handles)])
        states = {app.state for app in runner.list("local_cwd")}
        if states != {AppState.CANCELLED}:
            sys.exit(f"not all were cancelled: {states}")
        found["deleted"] = _timed(lambda: [*map(runner.delete, handles)])
    return found


def _timed(function: Any) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def tables(times: dict[str, dict[str, list[float]]], many: dict[str, float]) -> str:
    rows: list[common.Row] = []
    for name, by_tool in times.items():
        medians = {tool: statistics.median(values) for tool, values in by_tool.items()}
        ours = medians.get("phalanx", medians.get(""))
        theirs = medians.get("torchx")
        ratio = "" if theirs is None or ours is None else f"{theirs / ours:.1f} ×"
        shown = "" if theirs is None else f"{theirs:.3f} s"
        rows.append((name, f"{ours:.3f} s", shown, ratio))
    first = common.table(("whole command, median", "phalanx", "torchx 0.7.0", "theirs/ours"), rows)
    rest = [(name, f"{seconds:.2f} s") for name, seconds in many.items()]
    return first + "\n\n" + common.table((f"{MANY} apps on local_cwd", "seconds"), rest)


def main() -> None:
    if common.WITH_PEERS:
        common.install_peers()
    with tempfile.TemporaryDirectory() as directory:
        environ = {**os.environ, "XDG_STATE_HOME": f"{directory}/state", "HOME": directory}
        times = measure(directory, environ)
        many = measure_many({**environ, "XDG_STATE_HOME": f"{directory}/many"})
    machine = f"{os.cpu_count()} processors, Python {platform.python_version()}"
    text = f"{machine}, {common.ROUNDS} rounds\n\n{tables(times, many)}"
    print(text)
    (common.RESULTS / "apps.md").write_text(text + "\n")
    saved = {"machine": machine, "commands": times, "many": many}
    (common.RESULTS / "apps.json").write_text(json.dumps(saved, indent=1))


if __name__ == "__main__":
    main()
