"""`phalanx warm status|stop`: the agents that wait for the next command."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path

from phalanx._cli import parsing
from phalanx._launcher.warm import pool


def main(arguments: list[str]) -> int:
    """Show or end what `keep_warm` has left."""
    parser = parsing.make(
        "warm",
        "Show or stop the agents that keep_warm keeps for the next command, with their imported\n"
        "packages. They stop on their own when the time is over.",
    )
    parser.add_argument(
        "what", choices=["status", "stop"], help="list the agents, or stop all of them"
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    directory = pool.directory(create=False)
    found = [] if directory is None else list(pool.warm_agents(directory))
    if options.what == "stop":
        for agent in found:
            agent.stop()
    if options.json:
        parsing.print_json([dataclasses.asdict(agent) for agent in found])
    elif not found:
        print("no warm agents")
    elif options.what == "stop":
        print(f"{len(found)} {'agent' if len(found) == 1 else 'agents'} stopped")
    else:
        now = time.time()
        rows = [
            (
                str(agent.pid),
                parsing.ago(now - agent.since),
                parsing.ago(max(0.0, agent.until - now)),
                f"{_memory(agent.zygote) >> 20} MiB",
                agent.python,
                ", ".join(agent.packages) or "-",
            )
            for agent in found
        ]
        heads = ("PID", "IDLE FOR", "STOPS IN", "MEMORY", "PYTHON", "PACKAGES")
        parsing.print_table(heads, rows)
    return 0


def _memory(pid: int) -> int:
    """The bytes of memory that a process holds."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
    return 0
