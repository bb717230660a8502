"""How long a start takes, side by side in one run: `make bench`.

Every figure is the wall time of a whole command, and its ratio to `python -c "import torch"` in the
same run. The work is the same everywhere: form a gloo group, all-reduce one number, end. Rounds are
interleaved, so that a noisy moment hits all rows alike; the table shows medians.
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

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))

FUNCTION = """
def work():
    import torch
    import torch.distributed as dist
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == dist.get_world_size()
"""
BODY = FUNCTION.replace("    import torch\n    import torch.distributed as dist\n", "")
TOP = "import torch\nimport torch.distributed as dist\n"

FILES = {
    "plain.py": f"import sys\nimport phalanx\n{FUNCTION}\n"
    "phalanx.launch(work, workers_per_host=int(sys.argv[1]))\n",
    "top.py": f"{TOP}import sys\nimport phalanx\n{BODY}\n"
    "phalanx.launch(work, workers_per_host=int(sys.argv[1]))\n",
    "job.py": TOP + BODY,
    "elastic.py": f"{TOP}{BODY}\ndist.init_process_group('gloo')\nwork()\n"
    "dist.destroy_process_group()\n",
    "fork.py": """
import os, socket, sys
import torch
import torch.distributed as dist

n = int(sys.argv[1])
listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
children = []
for rank in range(-1, n):
    child = os.fork()
    if child:
        children.append(child)
    elif rank < 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                              master_listen_fd=listening.detach())
        import signal; signal.pause()
    else:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=n)
        value = torch.ones(1)
        dist.all_reduce(value)
        os._exit(value.item() != n)
server, *workers = children
assert not any(os.waitpid(w, 0)[1] for w in workers)
os.kill(server, 9)
os._exit(0)
""",
}

PYTHON = sys.executable
BIN = Path(PYTHON).parent
ROWS: dict[str, list[str]] = {
    "python -c 'import torch'": [PYTHON, "-c", "import torch"],
    "the limit: one import, plain fork, 8 workers": [PYTHON, "fork.py", "8"],
    "phalanx, 2 workers": [PYTHON, "plain.py", "2"],
    "phalanx, 8 workers": [PYTHON, "plain.py", "8"],
    "phalanx, 8 workers, script imports torch": [PYTHON, "top.py", "8"],
    "phalanx launch job.py:work, 8 workers": [
        PYTHON, "-m", "phalanx", "launch", "job.py:work", "--workers-per-host", "8",
    ],
    "torchrun, 2 workers": [str(BIN / "torchrun"), "--nproc-per-node=2", "elastic.py"],
    "torchrun, 8 workers": [str(BIN / "torchrun"), "--nproc-per-node=8", "elastic.py"],
}  # fmt: skip


def measure(command: list[str], cwd: str) -> float:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stderr.decode()}")
    return seconds


def main() -> None:
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    console = Console()
    times: dict[str, list[float]] = {name: [] for name in ROWS}
    with tempfile.TemporaryDirectory() as directory:
        for name, text in FILES.items():
            (Path(directory) / name).write_text(text)
        for command in ROWS.values():
            measure(command, directory)
        for _ in track(range(ROUNDS), "measuring", console=console, transient=True):
            for name, command in ROWS.items():
                times[name].append(measure(command, directory))
    medians = {name: statistics.median(values) for name, values in times.items()}
    unit = medians["python -c 'import torch'"]
    machine = f"{os.cpu_count()} processors, Python {platform.python_version()}"
    table = Table(title=f"Cold start, medians of {ROUNDS} rounds ({machine})", title_justify="left")
    table.add_column("what")
    table.add_column("seconds", justify="right")
    table.add_column("fastest–slowest", justify="right")
    table.add_column("× import torch", justify="right")
    for name, seconds in medians.items():
        spread = f"{min(times[name]):.2f}–{max(times[name]):.2f}"
        table.add_row(name, f"{seconds:.2f}", spread, f"{seconds / unit:.2f}")
    console.print(table)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    saved = {"machine": machine, "rounds": ROUNDS, "seconds": times}
    (results / "startup.json").write_text(json.dumps(saved, indent=1))


if __name__ == "__main__":
    main()
