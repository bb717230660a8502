"""`make demo`: run a function on four workers, and show results, logs and a failure."""

from __future__ import annotations

import os
import time

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

import phalanx

WORKERS = 4


def estimate_pi(samples: int) -> dict[str, float]:
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    torch.manual_seed(rank)
    points = torch.rand(samples, 2)
    mine = 4 * (points.square().sum(dim=1) <= 1).float().mean()
    print(f"rank {rank} of {dist.get_world_size()} (pid {os.getpid()}): π ≈ {mine:.4f}")
    everyone = mine.clone()
    dist.all_reduce(everyone)
    return {
        "pid": os.getpid(),
        "mine": mine.item(),
        "mean": everyone.item() / dist.get_world_size(),
    }


def divide(by: list[int]) -> float:
    return 1 / by[int(os.environ["RANK"])]


def main() -> None:
    console = Console()
    console.rule("[bold]phalanx: a function on every rank")
    console.print(
        f"\nphalanx.launch(estimate_pi, {{'samples': 1_000_000}}, workers_per_host={WORKERS})\n",
        style="cyan",
    )
    console.print("output of rank 0:", style="dim")
    launcher = phalanx.Launcher(workers_per_host=WORKERS)
    began = time.perf_counter()
    app = launcher.start(estimate_pi, {"samples": 1_000_000})
    result = app.result()
    seconds = time.perf_counter() - began

    table = Table(title=f"\n{WORKERS} results after {seconds:.1f} s", title_justify="left")
    for name in ("rank", "pid", "own estimate", "mean by all_reduce"):
        table.add_column(name, justify="right")
    for rank, value in enumerate(result):
        table.add_row(str(rank), str(value["pid"]), f"{value['mine']:.5f}", f"{value['mean']:.5f}")
    console.print(table)
    console.print("\nlog files:", style="dim")
    for path in app.log_files.values():
        console.print(os.path.relpath(path), markup=False, highlight=False)

    console.print("\noutput of all ranks, from app.logs():", style="dim")
    for line in app.logs():
        console.print(str(line), markup=False, highlight=False)

    console.print("\nwhen a rank fails, its exception is raised in your program:\n", style="dim")
    try:
        launcher.run(divide, {"by": [1, 2, 0, 4]})
    except ZeroDivisionError as error:
        notes = "\n".join(error.__notes__).strip()
        text = f"ZeroDivisionError: {error}\n\n{notes}"
        console.print(Panel(text, title="except ZeroDivisionError as error", border_style="red"))
    console.rule("[bold green]nothing is left running")


if __name__ == "__main__":
    main()
