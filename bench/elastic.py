"""Restarts, lost hosts and start-up beside torchrun; a rendezvous of many: `make bench-elastic`.

The same script runs under both commands, on this machine; rounds are interleaved. A restart is
timed from the moment a worker kills itself to the moment the last worker of the new round has
formed its process group. A host is an agent of its own (its command), killed with SIGKILL while it
trains; it is timed from the kill to the moment the last survivor has formed its group again. What
is not back within `BENCH_LIMIT` (90) seconds counts as never. `BENCH_ROUNDS` (5) sets the rounds,
`BENCH_PEERS=0` leaves torchrun out. A rendezvous of N simulated agents is real connections over
loopback, all ends of which share one processor.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
WITH_PEERS = os.environ.get("BENCH_PEERS", "1") != "0"
LIMIT = float(os.environ.get("BENCH_LIMIT", "90"))
BIN = Path(sys.executable).parent
TOOLS = {"phalanx torchrun": [str(BIN / "phalanx"), "torchrun"]}
if WITH_PEERS:
    TOOLS["torchrun"] = [str(BIN / "torchrun")]
AGENTS = (10, 100, 1000)

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.barrier()
dist.destroy_process_group()
"""

RESTART = """
import os, signal, time, torch, torch.distributed as dist
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
dist.init_process_group("gloo")
dist.barrier()
if again:
    print("BACK", time.time(), flush=True)
elif dist.get_rank() == 0:
    print("CRASH", time.time(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
dist.destroy_process_group()
"""

LOSS = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
world = dist.get_world_size()
dist.barrier()
print("WORLD", world, time.time(), flush=True)
total = torch.zeros(1)
while world == 3:
    dist.all_reduce(total)
    time.sleep(0.02)
dist.barrier()
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wall(command: list[str], directory: str) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stderr}")
    return time.perf_counter() - began


def start_up(directory: str) -> dict[str, list[float]]:
    (Path(directory) / "reduce.py").write_text(ALL_REDUCE)
    times: dict[str, list[float]] = {}
    for i in range(ROUNDS + 1):
        rows = {"import torch": [sys.executable, "-c", "import torch"]}
        for tool, command in TOOLS.items():
            for workers in (1, 2, 4, 8):
                rows[f"{tool}, {workers}"] = [
                    *(*command, "--nproc-per-node", str(workers), "--standalone", "reduce.py")
                ]
        for name, command in rows.items():
            seconds = wall(command, directory)
            if i:  # the first is for the caches
                times.setdefault(name, []).append(seconds)
        say(f"start-up: round {i} of {ROUNDS}")
    return times


def restart(directory: str) -> dict[str, list[float | None]]:
    (Path(directory) / "restart.py").write_text(RESTART)
    times: dict[str, list[float | None]] = {}
    for i in range(ROUNDS):
        for tool, command in TOOLS.items():
            for workers in (2, 8):
                words = [*command, "--nproc-per-node", str(workers), "--max-restarts", "1"]
                try:
                    done = subprocess.run(
                        [*words, "--standalone", "restart.py"],
                        cwd=directory,
                        capture_output=True,
                        text=True,
                        check=False,
                        timeout=LIMIT,
                    )
                    printed = [line.split() for line in done.stdout.splitlines()]
                except subprocess.TimeoutExpired:
                    printed = []
                crash = [float(t) for word, t in printed if word == "CRASH"]
                back = [float(t) for word, t in printed if word == "BACK"]
                came = len(back) == workers and len(crash) == 1
                times.setdefault(f"{tool}, {workers}", []).append(
                    max(back) - crash[0] if came else None
                )
        say(f"restart: round {i + 1} of {ROUNDS}")
    return times


def loss(directory: str, *, leader: bool) -> dict[str, list[float | None]]:
    (Path(directory) / "loss.py").write_text(LOSS)
    times: dict[str, list[float | None]] = {}
    rounds = max(1, ROUNDS // 2)
    for i in range(rounds):
        for tool, command in TOOLS.items():
            times.setdefault(tool, []).append(_lose_one(command, directory, leader=leader))
        say(f"loss of {'the host that decides' if leader else 'a host'}: round {i + 1} of {rounds}")
    return times


def _lose_one(command: list[str], directory: str, *, leader: bool) -> float | None:
    port = free_port()
    words = [*command, "--nnodes", "2:3", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    words += ["--rdzv-id", "bench", "--rdzv-endpoint", f"localhost:{port}", "--max-restarts", "3"]
    logs = [Path(directory) / f"host{n}.log" for n in range(3)]
    hosts = []
    for log in logs:
        with open(log, "wb") as file:
            hosts.append(
                subprocess.Popen(
                    [*words, "loss.py"],
                    cwd=directory,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        time.sleep(0.5)  # the first is the one that decides
    try:
        if not _wait(lambda: all("WORLD 3" in log.read_text() for log in logs), LIMIT):
            return None
        time.sleep(1.0)
        lost = 0 if leader else 2
        killed = time.time()
        hosts[lost].kill()
        left = [log for n, log in enumerate(logs) if n != lost]
        if not _wait(lambda: all("WORLD 2" in log.read_text() for log in left), LIMIT):
            return None
        found = [log.read_text().partition("WORLD 2 ")[2].split()[0] for log in left]
        return max(map(float, found)) - killed
    finally:
        for host in hosts:
            _end(host)


def _end(host: subprocess.Popen[bytes]) -> None:
    """End an agent, and the workers that torchrun's leave behind."""
    below = subprocess.run(
        ["pgrep", "-g", str(host.pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    host.kill()
    host.wait()
    for pid in below:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
    # Workers are in sessions of their own; those of this very script are ours.
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{entry}/cmdline").read_bytes()
            if b"loss.py" in line and b"python" in line and int(entry) != os.getpid():
                os.kill(int(entry), signal.SIGKILL)
        except OSError:
            continue


def _wait(condition: Any, seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


# ── the parts of a restart ────────────────────────────────────────────────────


def crash_once() -> None:
    """Form a group; the first time, one of it is killed."""
    import torch
    import torch.distributed as dist

    import phalanx

    context = phalanx.context()
    dist.all_reduce(torch.ones(1))
    if context.restart_count == 0:
        time.sleep(0.3 if context.rank == 1 else 60)
        os.kill(os.getpid(), signal.SIGKILL)


def phases(workers: int) -> dict[str, float]:
    """How long each part of a launch's restart takes, from the kill to the last first line."""
    import phalanx
    from phalanx import events

    found: dict[str, list[float]] = {}

    class Keep(events.EventHandler):
        def record(self, event: events.Event) -> None:
            if event.name == "restarted":
                for name, value in event.metadata.items():
                    if name.endswith("_seconds"):
                        found.setdefault(name.removesuffix("_seconds"), []).append(value)

    events.configure(Keep())
    with phalanx.Launcher(
        workers_per_host=workers, max_restarts=1, log_spec=phalanx.DefaultLogSpec.nothing()
    ) as launcher:
        for _ in range(ROUNDS):
            launcher.run(crash_once)
    events.flush()
    events.configure()
    return {name: statistics.median(values) for name, values in found.items()}


# ── a rendezvous of many ──────────────────────────────────────────────────────


async def _rendezvous_seconds(count: int) -> float:
    """Seconds from the first connection until the last of so many agents has its round."""
    from phalanx._core.rounds import Endpoint
    from phalanx._rendezvous import protocol as p
    from phalanx._rendezvous.settings import Settings
    from phalanx._rendezvous.tcp.host import TcpHost
    from phalanx._rendezvous.tcp.tcp_decider import TcpDecider

    port = free_port()
    began = asyncio.Event()
    left = count
    policy = p.CoordinatorSettings(
        hosts=(), start_timeout=300, stop_grace=5, min_hosts=count, max_hosts=count, open=True
    )

    def decider(number: int) -> TcpDecider:
        settings = Settings(is_host=number == 0, local_addr="127.0.0.1", node_rank=number)
        place = Endpoint("127.0.0.1", port)
        return TcpDecider(TcpHost(number + 1, f"host{number}", 8, "bench", place, policy, settings))

    deciders = [decider(number) for number in range(count)]

    def act(action: p.CoordinatorAction) -> None:
        nonlocal left
        if isinstance(action, p.BeginRoundAction):
            left -= 1
            if not left:
                began.set()

    def fail(error: BaseException) -> None:
        raise error

    await deciders[0].start(act, fail)
    clock = time.perf_counter()
    for other in deciders[1:]:
        await other.start(act, fail)
    for number, one in enumerate(deciders):
        one.tell(p.JoinedEvent(number + 1, Endpoint("127.0.0.1", 1), torch=True))
    await asyncio.wait_for(began.wait(), 300)
    seconds = time.perf_counter() - clock
    await asyncio.gather(*(one.close() for one in deciders))
    return seconds


def rendezvous() -> dict[int, list[float]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    times: dict[int, list[float]] = {}
    for count in AGENTS:
        times[count] = [asyncio.run(_rendezvous_seconds(count)) for _ in range(3)]
        say(f"rendezvous of {count}: {statistics.median(times[count]):.3f} s")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return times


# ── the report ────────────────────────────────────────────────────────────────


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _show(values: list[float | None]) -> str:
    came = sorted(v for v in values if v is not None)
    never = len(values) - len(came)
    if not came:
        return f"never (of {len(values)})"
    text = f"{statistics.median(came):.2f} s ({came[0]:.2f}–{came[-1]:.2f})"
    return text + (f", never {never} of {len(values)}" if never else "")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        started = start_up(directory)
        restarted = restart(directory)
        lost = loss(directory, leader=False)
        led = loss(directory, leader=True)
    parts = {workers: phases(workers) for workers in (2, 8)}
    met = rendezvous()
    once = statistics.median(started["import torch"])
    print(f"start-up, × one import of torch ({once:.2f} s)")
    for name, values in started.items():
        middle = statistics.median(values)
        print(f"  {name:<24} {middle:6.2f} s  {middle / once:5.2f}")
    for title, rows in (
        ("a worker crashes → all in their group again", restarted),
        ("a host of 3 is killed → the others in their group again", lost),
        ("the host that decides is killed → the others in their group again", led),
    ):
        print(title)
        for name, row in rows.items():
            print(f"  {name:<24} {_show(row)}")
    print("the parts of a launch's restart, from the kill to the user's first line")
    for workers, row in parts.items():
        print(f"  {workers} workers: " + ", ".join(f"{n} {v:.3f} s" for n, v in row.items()))
    print("a rendezvous of N agents, all on one processor")
    for count, seconds in met.items():
        print(f"  {count:<24} {statistics.median(seconds):.3f} s")
    RESULTS.mkdir(exist_ok=True)
    facts = {"python": platform.python_version(), "processors": os.cpu_count()}
    everything = {"start-up": started, "restart": restarted, "loss": lost, "leader": led}
    everything |= {"phases": parts, "rendezvous": met, "facts": facts}
    (RESULTS / "elastic.json").write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
