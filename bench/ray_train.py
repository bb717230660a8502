"""From a command to the first step on a Ray cluster, and from a killed worker to the next one.

`make bench-ray`. The cluster is `tests/cluster/ray.py`'s: two nodes here, with Ray Train's
environment. Every worker makes one all_reduce, gloo on CPUs; a step is done when rank 0 has its
result, and says so in a file. Then a worker of the first round kills itself, and the time until the
next result is the recovery. Rounds are interleaved.
`BENCH_ROUNDS` (7) sets the rounds.
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

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import run as common  # noqa: E402 found by the line above
from tests.cluster.ray import RayCluster, why_not  # noqa: E402

VENV = HERE.parent / ".venv-ray"
PYTHON = str(VENV / "bin" / "python")
WORKERS = (2, 8)
START, AGAIN = "the command → the first step", "a worker is killed → the next step"

TRAINING = """
import os, signal, sys, time

def work(notes):
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        with open(f"{notes}/steps", "a") as file:
            file.write(f"{time.time()}\\n")
    killed = f"{notes}/killed"
    if dist.get_rank() == 1 and not os.path.exists(killed):
        while not os.path.exists(f"{notes}/steps"):
            time.sleep(0.01)
        with open(killed, "w") as file:
            file.write(f"{time.time()}\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

workers, notes = int(sys.argv[1]), sys.argv[2]
"""
RAY_TRAIN = """
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

ray.init(os.environ["HEAD"], log_to_driver=False)
TorchTrainer(
    lambda: work(notes),
    torch_config=TorchConfig(backend="gloo"),
    scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
    run_config=RunConfig(
        failure_config=FailureConfig(max_failures=1), storage_path=f"{notes}/runs"
    ),
).fit()
"""
WITHIN = """
import phalanx
import ray

if __name__ == "__main__":
    ray.init(os.environ["HEAD"], log_to_driver=False)
    phalanx.Launcher(
        scheduler="ray", num_hosts=2, workers_per_host=workers // 2, max_restarts=1,
        start_timeout=120, scheduler_options={"cpus": workers // 2},
    ).run(work, {"notes": notes})
"""
OUTSIDE = WITHIN.replace('    ray.init(os.environ["HEAD"], log_to_driver=False)\n', "").replace(
    "import ray\n", ""
)
PROGRAMS = {
    "Ray Train: TorchTrainer.fit": RAY_TRAIN,
    "phalanx, within a Ray program": WITHIN,
    "phalanx, from outside the cluster": OUTSIDE,
}


def install() -> None:
    """Install Ray Train, with the same torch, and Phalanx into an environment of their own."""
    ready = VENV / "ready"
    if ready.exists():
        return
    print("installing Ray Train (once)", file=sys.stderr)
    subprocess.run([common.PYTHON, "-m", "venv", "--clear", str(VENV)], check=True)
    lock = (HERE.parent / "requirements.lock").read_text().splitlines()
    pinned = {line.partition("==")[0]: line for line in lock}
    version = pinned["ray"].partition("==")[2]
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = [pinned["torch"], pinned["numpy"], f"ray[default,train]=={version}"]
    subprocess.run([*pip, *wanted, str(HERE.parent)], check=True)
    ready.touch()


def measure(program: str, workers: int, cluster: RayCluster) -> tuple[float, float]:
    """Seconds to the first step, and from the kill to the next."""
    with tempfile.TemporaryDirectory() as notes:
        path = Path(notes, "program.py")
        path.write_text(TRAINING + program)
        environ = {
            **os.environ,
            "HEAD": cluster.head,
            "RAY_ADDRESS": cluster.dashboard if program is OUTSIDE else cluster.head,
            "RAY_TRAIN_V2_ENABLED": "1",
        }
        began = time.time()
        done = subprocess.run(
            [PYTHON, str(path), str(workers), notes],
            cwd=notes,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"failed:\n{program}\n{done.stderr[-3000:]}")
        steps = [float(line) for line in Path(notes, "steps").read_text().split()]
        killed = float(Path(notes, "killed").read_text())
    return steps[0] - began, next(step for step in steps if step > killed) - killed


def main() -> None:
    if reason := why_not():
        sys.exit(reason)
    install()
    cluster = RayCluster(2, PYTHON, prestart=True)
    times: dict[tuple[str, int, str], list[float]] = {}
    try:
        for i in range(common.ROUNDS + 1):
            print(f"  round {i} of {common.ROUNDS}", file=sys.stderr, flush=True)
            for workers in WORKERS:
                for name, program in PROGRAMS.items():
                    start, again = measure(program, workers, cluster)
                    if i:  # the first is for the caches
                        times.setdefault((START, workers, name), []).append(start)
                        times.setdefault((AGAIN, workers, name), []).append(again)
    finally:
        cluster.close()
    rows: list[common.Row] = []
    for (what, workers, name), values in sorted(times.items(), key=lambda one: one[0][:2]):
        spread = f"{min(values):.2f}–{max(values):.2f}"
        rows.append((what, str(workers), name, f"{statistics.median(values):.2f} s", spread))
    columns = ("on Ray", "workers", "", "median", "fastest–slowest")
    machine = f"{os.cpu_count()} processors, Python {platform.python_version()}"
    text = f"{machine}, {common.ROUNDS} rounds\n\n{common.table(columns, rows)}"
    print(text)
    common.RESULTS.mkdir(exist_ok=True)
    (common.RESULTS / "ray.md").write_text(text + "\n")
    rows_of = [[*key, values] for key, values in times.items()]
    (common.RESULTS / "ray.json").write_text(json.dumps({"machine": machine, "rows": rows_of}))


if __name__ == "__main__":
    main()
