"""`memory.py zygote|spawn N`: megabytes of launcher, agent, and of all workers and their zygote."""

import json
import os
import sys
import time
from pathlib import Path

import phalanx


def hold() -> None:
    import torch
    import torch.distributed as dist

    value = torch.ones(1)
    dist.all_reduce(value)
    Path(f"up-{os.environ['RANK']}").write_text(str(os.getpid()))
    time.sleep(100)


def of(pid: int, kind: str) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


workers = int(sys.argv[2])
app = phalanx.Launcher(workers_per_host=workers, start_method=sys.argv[1]).start(hold)
while len(up := list(Path().glob("up-*"))) < workers or not all(p.read_text() for p in up):
    time.sleep(0.05)
pids = [int(path.read_text()) for path in up]
zygote = parent(pids[0])
print(
    json.dumps(
        {
            "launcher": of(os.getpid(), "Rss"),
            "agent": of(parent(zygote), "Rss"),
            "workers": sum(of(pid, "Pss") for pid in [*pids, zygote]),
        }
    )
)
app.cancel(0.0)
app.wait()
