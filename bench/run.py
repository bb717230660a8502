"""Phalanx, its peers and the limit, side by side in one run: `make bench`.

Start-up rows are wall times of whole commands, shown as ratios to `python -c "import torch"` of the
same run; rounds are interleaved, so that a noisy moment hits all rows alike. The other rows are
measured by small programs beside this one. Peers are installed into an environment of their own.
`BENCH_ROUNDS` (7) sets the rounds, `BENCH_PEERS=0` leaves the peers out.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
RESULTS = HERE / "results"
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
WITH_PEERS = os.environ.get("BENCH_PEERS", "1") != "0"
PYTHON = sys.executable
PEERS = HERE.parent / ".venv-peers"
PEER_PYTHON = str(PEERS / "bin" / "python")
IMPORT = 'python -c "import torch"'


def install_peers() -> None:
    """Install torchrunx and TorchX, with the same torch, in an environment of their own."""
    ready = PEERS / "ready-with-torchx"
    if ready.exists():
        return
    print("installing the peers (once)", file=sys.stderr)
    subprocess.run([PYTHON, "-m", "venv", "--clear", str(PEERS)], check=True)
    lock = (HERE.parent / "requirements.lock").read_text().splitlines()
    torch = next(line for line in lock if line.startswith("torch=="))
    numpy = next(line for line in lock if line.startswith("numpy=="))
    pip = [PEER_PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "torchrunx==0.4.0", "torchx==0.7.0", torch, numpy], check=True)
    ready.touch()


def commands() -> dict[str, list[str]]:
    """The rows of the first table."""
    rows = {
        IMPORT: [PYTHON, "-c", "import torch"],
        "limit: one import, fork 8": [PYTHON, "limit.py", "8"],
        "phalanx, 2 workers": [PYTHON, "cold.py", "2"],
        "phalanx, 8 workers": [PYTHON, "cold.py", "8"],
        "phalanx, 8 workers, script imports torch": [PYTHON, "top.py", "8"],
        "phalanx, 8 workers, script warms, then imports torch": [PYTHON, "warmed.py", "8"],
        "phalanx launch FILE:FUNCTION, 8 workers": [
            PYTHON, "-m", "phalanx", "launch", "job.py:work", "--workers-per-host", "8",
        ],
        "phalanx, 8 workers, after keep_warm": [PYTHON, "keep.py", "8"],
        "torchrun, 2 workers": [_torchrun(), "--nproc-per-node=2", "elastic.py"],
        "torchrun, 8 workers": [_torchrun(), "--nproc-per-node=8", "elastic.py"],
    }  # fmt: skip
    if WITH_PEERS:
        rows["torchrunx, 2 workers"] = [PEER_PYTHON, "peer.py", "2"]
        rows["torchrunx, 8 workers"] = [PEER_PYTHON, "peer.py", "8"]
    return rows


def _torchrun() -> str:
    beside = Path(PYTHON).parent / "torchrun"
    return str(beside) if beside.exists() else str(shutil.which("torchrun"))


class Bench:
    """Runs programs in a directory of their own, with an environment of their own."""

    def __init__(self, directory: str) -> None:
        shutil.copytree(PROGRAMS, directory, dirs_exist_ok=True)
        work = (PROGRAMS / "_work.py").read_text()
        top = "import torch\nimport torch.distributed as dist\n"
        body = work.replace("    import torch\n    import torch.distributed as dist\n", "")
        (Path(directory) / "job.py").write_text(top + body)
        self.directory = directory
        self.environ = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "XDG_STATE_HOME": f"{directory}/state",
            "XDG_RUNTIME_DIR": f"{directory}/runtime",
        }
        os.mkdir(f"{directory}/runtime", 0o700)

    def run(self, command: list[str]) -> tuple[float, str]:
        began = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - began
        if done.returncode:
            sys.exit(f"{command} failed:\n{done.stderr}")
        return seconds, done.stdout

    def ask(self, program: str, *arguments: str, python: str = PYTHON) -> Any:
        """Run one of the programs; gives what it measured."""
        print(f"  {program} {' '.join(arguments)}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=self.directory) as place:
            done = subprocess.run(
                [python, str(Path(self.directory) / program), *arguments],
                cwd=place,
                env=self.environ,
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            sys.exit(f"{program} {arguments} failed:\n{done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])


def measure_starts(bench: Bench) -> dict[str, list[float]]:
    rows = commands()
    times: dict[str, list[float]] = {name: [] for name in rows}
    for command in rows.values():
        bench.run(command)
    for i in range(ROUNDS):
        print(f"  round {i + 1} of {ROUNDS}", file=sys.stderr, flush=True)
        for name, command in rows.items():
            times[name].append(bench.run(command)[0])
    bench.run([PYTHON, "-m", "phalanx", "warm", "stop"])
    return times


def measure_imports(bench: Bench) -> dict[str, float]:
    """Seconds over those of an interpreter that does nothing."""
    rows = {"": [PYTHON, "-c", "pass"], "import phalanx": [PYTHON, "-c", "import phalanx"]}
    rows["import phalanx; phalanx.Launcher"] = [PYTHON, "-c", "import phalanx; phalanx.Launcher"]
    if WITH_PEERS:
        rows["import torchrunx"] = [PEER_PYTHON, "-c", "import torchrunx"]
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(max(ROUNDS, 5)):
        for name, command in rows.items():
            times[name].append(bench.run(command)[0])
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {name: seconds - medians[""] for name, seconds in medians.items() if name}


def measure_rest(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {
        "limit": bench.ask("limit.py", "8", "9"),
        "warm": bench.ask("again.py", "8", "15"),
        "raise": bench.ask("raising.py", "phalanx", "8", "9"),
        "lines": bench.ask("lines.py", "phalanx", "200000", "60"),
        "bytes": bench.ask("lines.py", "phalanx", "500000", "1000"),
        "zygote": bench.ask("memory.py", "zygote", "8"),
        "spawn": bench.ask("memory.py", "spawn", "8"),
        "value": bench.ask("value.py", "500"),
        "imports": measure_imports(bench),
    }
    if WITH_PEERS:
        found["raise torchrunx"] = bench.ask(
            "raising.py", "torchrunx", "8", "3", python=PEER_PYTHON
        )
        found["lines torchrunx"] = bench.ask(
            "lines.py", "torchrunx", "200000", "60", python=PEER_PYTHON
        )
    return found


# ── tables ────────────────────────────────────────────────────────────────────

Row = tuple[str, ...]


def table(heads: Row, rows: list[Row]) -> str:
    """A table in Markdown."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    rule = tuple("-" * width for width in widths)
    lines = []
    for row in [heads, rule, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def start_table(times: dict[str, list[float]]) -> str:
    unit = statistics.median(times[IMPORT])
    rows = []
    for name, values in times.items():
        median = statistics.median(values)
        spread = f"{min(values):.2f}–{max(values):.2f}"
        rows.append((name, f"{median:.2f} s", spread, f"{median / unit:.2f}"))
    return table(("whole command", "median", "fastest–slowest", "× import torch"), rows)


def rest_table(found: dict[str, Any]) -> str:
    def runs(key: str) -> tuple[str, str]:
        values = found[key]["runs"]
        return f"{statistics.median(values):.3f} s", f"{min(values):.3f}–{max(values):.3f}"

    def flood(key: str, asked: int) -> tuple[str, str]:
        lost = asked - found[key]["lines"]
        return f"{found[key]['seconds']:.2f} s", "none lost" if lost == 0 else f"{lost} lost"

    megabytes = 500_000 * 1000 / 1e6
    rows: list[Row] = [
        ("8 workers on a warm launcher", *runs("warm")),
        ("limit: fork 8 and all_reduce", *runs("limit")),
        ("a worker of 8 raises → the caller has it", *runs("raise")),
        ("200,000 lines of one rank", *flood("lines", 200_000)),
        (
            f"{megabytes:.0f} MB of lines of one rank",
            f"{megabytes / found['bytes']['seconds']:.0f} MB/s",
            flood("bytes", 500_000)[1],
        ),
        (
            "500 MB value",
            f"{found['value']['seconds']:.2f} s",
            f"peak {found['value']['peak']:.2f} × its size",
        ),
        ("launcher's memory", f"{found['zygote']['launcher']:.0f} MB", "RSS"),
        ("agent's memory", f"{found['zygote']['agent']:.0f} MB", "RSS"),
        (
            "8 workers and their zygote",
            f"{found['zygote']['workers']:.0f} MB",
            f"PSS; spawned: {found['spawn']['workers']:.0f} MB",
        ),
    ]
    rows += [(name, f"{s * 1000:.0f} ms", "") for name, s in found["imports"].items()]
    if "raise torchrunx" in found:
        rows.append(("torchrunx: a worker of 8 raises → the caller", *runs("raise torchrunx")))
        rows.append(("torchrunx: 200,000 lines", *flood("lines torchrunx", 200_000)))
    return table(("what", "median", ""), rows)


def phase_table(found: dict[str, Any]) -> str:
    names = sorted(found["cold"], key=found["cold"].get)
    warm = {n: statistics.median(p[n] for p in found["phases"]) for n in names}
    rows = [(n, f"{found['cold'][n]:.3f} s", f"{warm[n]:.3f} s") for n in names]
    return table(("8 workers: reached after", "cold", "warm"), rows)


def main() -> None:
    if WITH_PEERS:
        install_peers()
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(directory)
        print("starts", file=sys.stderr)
        times = measure_starts(bench)
        print("the rest", file=sys.stderr)
        found = measure_rest(bench)
    torch = subprocess.run(
        [PYTHON, "-c", "import torch; print(torch.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    machine = f"{os.cpu_count()} processors, Python {platform.python_version()}, torch {torch}"
    text = "\n\n".join(
        [
            f"{machine}, {ROUNDS} rounds",
            start_table(times),
            rest_table(found),
            phase_table(found["warm"]),
        ]
    )
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "bench.md").write_text(text + "\n")
    saved = {"machine": machine, "rounds": ROUNDS, "starts": times, "rest": found}
    (RESULTS / "bench.json").write_text(json.dumps(saved, indent=1))


if __name__ == "__main__":
    main()
