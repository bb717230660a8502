"""From submitting to the first line of user code on a real Slurm: `make bench-slurm`, as root.

The Slurm is `tests/cluster/slurm.py`: a controller and four hosts that are all this machine. Every
row is the time from the call, or the command's start, to the moment at which the user's first line
runs, which that line notes itself. `srun` with the same interpreter is what Slurm itself allows.
Rounds are interleaved. submitit 1.5 is installed into an environment of its own.
`BENCH_ROUNDS` (7) sets the rounds, `BENCH_PEERS=0` leaves submitit out.
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
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import run as common  # noqa: E402 found by the line above
from tests.cluster.slurm import Slurm, why_not  # noqa: E402

PHALANX = str(Path(sys.executable).parent / "phalanx")
SUBMITIT = HERE.parent / ".venv-submitit"
SUBMITIT_PYTHON = str(SUBMITIT / "bin" / "python")
NOTE = "import sys, time; open(sys.argv[1], 'w').write(str(time.time()))"
"""The user's program: its first line says when it ran."""
PATIENCE = 60.0

IN_PROCESS = f"""
import sys, time
from phalanx.runner import get_runner
from phalanx.specs import AppDef, Role
role = Role("role", entrypoint="python", args=["-c", {NOTE!r}, sys.argv[1]])
with get_runner() as runner:
    began = time.time()
    runner.run(AppDef("bench", [role]), "slurm", {{"cpus": 1}})
    print(began)
"""
OF_SUBMITIT = """
import sys, time
import submitit

def note(path):
    now = time.time()
    open(path, "w").write(str(now))

executor = submitit.AutoExecutor(folder=sys.argv[2], cluster="slurm")
executor.update_parameters(timeout_min=5, cpus_per_task=1)
began = time.time()
executor.submit(note, sys.argv[1])
print(began)
"""

FUNCTIONS = {
    "limit: srun -N4, with Python": """
import subprocess, sys, time
began = time.time()
subprocess.run(["srun", "-N4", "-c1", sys.executable, "-c", "pass"], check=True)
print(time.time() - began)
""",
    "phalanx: Launcher.run": """
import sys, time
import phalanx

def value():
    return 1

began = time.time()
launcher = phalanx.Launcher(
    scheduler="slurm", num_hosts=4, workers_per_host=1, workspace=None,
    scheduler_options={"cpus": 1},
)
assert list(launcher.run(value)) == [1] * 4
print(time.time() - began)
""",
    "submitit: executor.submit, 4 nodes": """
import sys, time
import submitit

def value():
    return 1

began = time.time()
executor = submitit.AutoExecutor(folder=sys.argv[1], cluster="slurm")
executor.update_parameters(timeout_min=5, nodes=4, tasks_per_node=1, cpus_per_task=1)
assert executor.submit(value).results() == [1] * 4
print(time.time() - began)
""",
}
"""A function on four hosts, from the request to its values."""

CALLS = int(os.environ.get("BENCH_CALLS", "200"))
MAPS = {
    "phalanx: Launcher.map on 4 lent hosts": """
import sys, time
import phalanx

def empty(x):
    return x

began = time.time()
launcher = phalanx.Launcher(
    scheduler="slurm", num_hosts=4, workers_per_host=1, workspace=None,
    scheduler_options={"cpus": 1},
)
items = [{"x": x} for x in range(int(sys.argv[2]))]
assert [r.rank(0) for r in launcher.map(empty, items)] == list(range(len(items)))
print(time.time() - began)
""",
    "submitit: executor.map_array, 4 at a time": """
import sys, time
import submitit

def empty(x):
    return x

began = time.time()
executor = submitit.AutoExecutor(folder=sys.argv[1], cluster="slurm")
executor.update_parameters(timeout_min=5, cpus_per_task=1, slurm_array_parallelism=4)
jobs = executor.map_array(empty, range(int(sys.argv[2])))
assert [job.result() for job in jobs] == list(range(len(jobs)))
print(time.time() - began)
""",
}
"""Calls of an empty function, from the request to the last value."""


def install_submitit() -> None:
    if (SUBMITIT / "ready").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(SUBMITIT)], check=True)
    pip = [SUBMITIT_PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "submitit==1.5.*"], check=True)
    (SUBMITIT / "ready").touch()


class Rows:
    """What is timed: each gives when it began, and has the note written."""

    def __init__(self, slurm: Slurm, directory: str) -> None:
        self.slurm = slurm
        self.directory = directory
        self.environ = {**slurm.environ, "XDG_STATE_HOME": f"{directory}/state"}

    def command(self, *words: str) -> float:
        """A command, from its start."""
        began = time.time()
        self.output(*words)
        return began

    def output(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.directory, env=self.environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{words} failed:\n{done.stderr}")
        return done.stdout

    def number(self, *words: str) -> float:
        """What a command prints last: submitit may warn before, on the same stream."""
        return float(self.output(*words).split()[-1])

    def all(self) -> dict[str, Callable[[str], float]]:
        python = sys.executable
        run = (PHALANX, "run", "-s", "slurm", "-cfg", "cpus=1", "utils.python", "-c", NOTE)
        rows: dict[str, Callable[[str], float]] = {
            "limit: srun": lambda note: self.command("srun", python, "-c", NOTE, note),
            "sbatch --wrap": lambda note: self.command(
                "sbatch", "--output=/dev/null", f"--wrap={python} -c {NOTE!r} {note}"
            ),
            "phalanx: Runner.run": lambda note: self.number(python, "-c", IN_PROCESS, note),
            "phalanx run -s slurm (the whole command)": lambda note: self.command(*run, "--", note),
        }
        if common.WITH_PEERS:
            rows["submitit: executor.submit"] = lambda note: self.number(
                SUBMITIT_PYTHON, "-c", OF_SUBMITIT, note, f"{self.directory}/jobs"
            )
        return rows

    def programs(self, programs: dict[str, str]) -> dict[str, float]:
        """The seconds that each program prints. All hosts are idle before."""
        found: dict[str, float] = {}
        for name, program in programs.items():
            if name.startswith("submitit") and not common.WITH_PEERS:
                continue
            python = SUBMITIT_PYTHON if name.startswith("submitit") else sys.executable
            path = Path(self.directory, f"program_{len(found)}.py")
            path.write_text(program)
            found[name] = self.number(python, str(path), f"{self.directory}/array", str(CALLS))
            self.wait_until_idle()
        return found

    def wait_until_idle(self) -> None:
        while self.output("squeue", "-h"):
            time.sleep(0.1)

    def measure(self, began: Callable[[str], float]) -> float:
        """Seconds to the user's first line. All hosts are idle before."""
        with tempfile.TemporaryDirectory(dir=self.directory) as place:
            note = Path(place, "note")
            start = began(str(note))
            limit = time.time() + PATIENCE
            while not (note.exists() and note.read_text()):
                if time.time() > limit:
                    sys.exit("the user's first line never ran")
                time.sleep(0.01)
            seconds = float(note.read_text()) - start
        self.wait_until_idle()
        return seconds


def table(what: str, times: dict[str, list[float]]) -> str:
    limit = statistics.median(next(iter(times.values())))
    rows: list[common.Row] = []
    for name, values in times.items():
        median = statistics.median(values)
        spread = f"{min(values):.2f}–{max(values):.2f}"
        rows.append((name, f"{median:.2f} s", spread, f"{median / limit:.2f}"))
    return common.table((what, "median", "fastest–slowest", "× srun"), rows)


def main() -> None:
    if reason := why_not():
        sys.exit(reason)
    if common.WITH_PEERS:
        install_submitit()
    slurm = Slurm(4)
    times: dict[str, list[float]] = {}
    functions: dict[str, list[float]] = {}
    maps: dict[str, float] = {}
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            rows = Rows(slurm, directory)
            for i in range(common.ROUNDS + 1):
                print(f"  round {i} of {common.ROUNDS}", file=sys.stderr, flush=True)
                for name, began in rows.all().items():
                    seconds = rows.measure(began)
                    if i:  # the first is for the caches
                        times.setdefault(name, []).append(seconds)
                for name, seconds in rows.programs(FUNCTIONS).items():
                    if i:
                        functions.setdefault(name, []).append(seconds)
            # Once: what is measured is much longer than its spread.
            maps = rows.programs(MAPS)
    finally:
        slurm.close()
    machine = f"{os.cpu_count()} processors, Python {platform.python_version()}, Slurm 22.05"
    text = f"{machine}, {common.ROUNDS} rounds\n\n"
    text += table("submit → first line of user code", times) + "\n\n"
    text += table("a function on 4 hosts → its values", functions)
    calls = [(name, f"{seconds:.1f} s") for name, seconds in maps.items()]
    text += "\n\n" + common.table((f"{CALLS} calls of an empty function", "in all"), calls)
    print(text)
    common.RESULTS.mkdir(exist_ok=True)
    (common.RESULTS / "slurm.md").write_text(text + "\n")
    (common.RESULTS / "slurm.json").write_text(
        json.dumps({"machine": machine, "rows": times, "functions": functions, "maps": maps})
    )


if __name__ == "__main__":
    main()
