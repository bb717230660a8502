"""What one coordinator costs with 10 to 10,000 agents: `make bench-scale`.

The coordinator is a real one, as `phalanx torchrun` has it: decider, leader, codec, proofs and
sockets, in a process of its own. The agents are plain sockets in another process, which prove
themselves and speak the frames. All of it goes over loopback on one machine, so wall times are
those of both sides together; processor time is the coordinator's alone, system calls included.

`BENCH_AGENTS` (10,100,1000,10000) are the numbers of agents, `BENCH_STEADY` (20) the seconds for
which heartbeats are measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx import __version__
from phalanx import _wire as wire
from phalanx._channel import trust
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Ended, Endpoint, Outcome
from phalanx._rendezvous import protocol as p
from phalanx._rendezvous.settings import Settings
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.tcp_decider import TcpDecider
from phalanx._wire.rendezvous_frames import JoinRequest

RESULTS = Path(__file__).parent / "results"
AGENTS = [int(n) for n in os.environ.get("BENCH_AGENTS", "10,100,1000,10000").split(",")]
STEADY = float(os.environ.get("BENCH_STEADY", "20"))
KEY = trust.key_of("a token of the benchmark", "rendezvous")
AT_ONCE = 64
"""So many agents connect at a time."""
WORKERS = 8
OWN = AgentId(1)
LIMIT = 600.0
"""Seconds for each step."""
HOST_TIMEOUT = 60.0
"""Agents are pinged every 5 s, and 10,000 of them every 8 s; all of them share this machine."""


# ── the agents ────────────────────────────────────────────────────────────────


class Agent(asyncio.Protocol):
    """One agent, once it has proved itself: says what it is told to, and notes what it hears."""

    def __init__(self, crowd: Crowd, number: int, session: trust.ConnectionSeal) -> None:
        self.crowd = crowd
        self.number = number
        self.session = session
        self.session.limit = 64 << 20
        self.round = 0
        self.first_rank: int | None = None
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def say(self, data: bytes) -> None:
        self.transport.write(self.session.seal(data))

    def data_received(self, data: bytes) -> None:
        for record in self.session.open(data):
            self.crowd.bytes_heard += len(record)
            self.crowd.heard(self, record)

    def connection_lost(self, error: Exception | None) -> None:
        self.crowd.lost += 1
        self.crowd.changed.set()


class Crowd:
    """All agents, and what they have heard so far."""

    def __init__(self, port: int, count: int) -> None:
        self.port = port
        self.count = count
        self.agents: list[Agent] = []
        self.lost = self.bytes_heard = 0
        self._numbers: dict[str, int] = {}
        self.changed = asyncio.Event()

    def heard(self, agent: Agent, record: bytes) -> None:
        """A record has come; long ones are known by their beginning, so as not to be the cost."""
        kind = _kind(record)
        if kind == "Ping":
            (frame,) = wire.Decoder().feed(record)
            assert isinstance(frame, wire.Ping)
            agent.say(wire.encode(wire.Pong(sent=frame.sent, clock=time.monotonic())))
        elif kind == "RoundFormed":
            agent.round += 1
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        self.changed.set()

    def number(self, kind: str) -> int:
        return self._numbers.get(kind, 0)

    async def until(self, kind: str, number: int) -> float:
        """Wait until so many of a kind have come; gives the moment."""
        async with asyncio.timeout(LIMIT):
            while self.number(kind) < number:
                if self.lost:
                    sys.exit(f"{self.lost} agents were lost")
                self.changed.clear()
                await self.changed.wait()
        return time.perf_counter()

    def all_say(self, frame: wire.Frame) -> None:
        data = wire.encode(frame)
        for agent in self.agents:
            agent.say(data)

    async def connect(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        connection, session = await self._prove()
        agent = Agent(self, number, session)
        await loop.create_connection(lambda: agent, sock=connection)
        self.agents.append(agent)
        agent.say(
            wire.encode(
                JoinRequest(
                    version=__version__,
                    run_id="bench",
                    agent=AgentId((1 << 47) + number * 7919),
                    key=f"{number:032x}",
                    hostname=f"node{number:05d}.cluster.example",
                    workers=WORKERS,
                    node_rank=None,
                    contact=Endpoint(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 4000),
                    port=40000,
                    torch=True,
                    bounds=(self.count, self.count),
                )
            )
        )

    async def _prove(self) -> tuple[socket.socket, trust.ConnectionSeal]:
        """As a host does: one that was not let in in time comes again."""
        while True:
            connection = socket.socket()
            connection.setblocking(False)
            try:
                loop = asyncio.get_running_loop()
                await loop.sock_connect(connection, ("127.0.0.1", self.port))
                return connection, await trust.prove(connection, KEY)
            except (OSError, trust.NotTrusted):
                connection.close()
                await asyncio.sleep(0.05)

    async def connect_all(self, numbers: range) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with room:
                await self.connect(number)

        await asyncio.gather(*(one(number) for number in numbers))


def _kind(record: bytes) -> str:
    """The name of a frame: the first text behind the header."""
    length = record[13] & 31
    return record[14 : 14 + length].decode()


async def play_agents(port: int, count: int) -> None:
    """What the agents do; each step begins with a line on stdin and ends with one on stdout."""
    crowd = Crowd(port, count)
    others = count - 1
    steps = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(steps), sys.stdin
    )

    async def step() -> str:
        return (await steps.readline()).decode().strip()

    def told(seconds: float) -> None:
        print(json.dumps({"seconds": seconds, "bytes": crowd.bytes_heard}), flush=True)
        crowd.bytes_heard = 0

    while word := await step():
        began = time.perf_counter()
        match word:
            case "gather":
                await crowd.connect_all(range(1, others))
                told(await crowd.until("Ping", others - 1) - began)
            case "last":
                await crowd.connect(others)
                told(await crowd.until("RoundFormed", others) - began)
            case "start":
                crowd.all_say(wire.WorkersStarted(round=1, pids={}))
                told(0.0)
            case "fail":
                agent = crowd.agents[-1]
                rank = others * WORKERS
                outcome = Outcome(rank, Ended.EXITED, time.monotonic(), code=1)
                agent.say(wire.encode(wire.WorkerEnded(round=1, rank=rank, outcome=outcome)))
                told(await crowd.until("HaltRound", others) - began)
            case "again":
                crowd.all_say(wire.RoundCleared(round=1, port=40001))
                told(await crowd.until("RoundFormed", 2 * others) - began)
            case "steady":
                await asyncio.sleep(STEADY)
                told(STEADY)
            case "end":
                return


# ── the coordinator ───────────────────────────────────────────────────────────


class Agents:
    """The other process, and what its steps cost this one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._in, self._out = process.stdin, process.stdout

    @classmethod
    async def start(cls, port: int, count: int) -> Agents:
        words = [sys.executable, __file__, "--agents", str(port), str(count)]
        pipe = subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe))

    async def step(self, word: str) -> tuple[dict[str, float], float]:
        """Have them do something: what they say, and our processor time meanwhile."""
        before = time.process_time()
        self._in.write(f"{word}\n".encode())
        line = await asyncio.wait_for(self._out.readline(), LIMIT)
        if not line:
            sys.exit(f"the agents ended at {word!r}")
        return json.loads(line), time.process_time() - before

    async def end(self) -> None:
        self._in.write(b"end\n")
        await self._process.wait()


def lead(count: int) -> tuple[TcpDecider, int]:
    """A host that decides for so many, itself among them; and its port."""
    policy = p.CoordinatorSettings(
        hosts=(),
        start_timeout=LIMIT,
        stop_grace=30.0,
        min_hosts=count,
        max_hosts=count,
        open=True,
        max_restarts=3,
        quorum=True,
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = Endpoint("127.0.0.1", probe.getsockname()[1])
    settings = Settings(is_host=True, join_timeout=LIMIT, host_timeout=HOST_TIMEOUT)
    host = TcpHost(OWN, "node00000", WORKERS, "bench", endpoint, policy, settings, KEY)
    return TcpDecider(host), endpoint.port


async def measure(count: int) -> dict[str, float]:
    """One round of so many agents, its failure, and the next round."""
    decider, port = lead(count)

    def act(action: p.CoordinatorAction) -> None:
        match action:
            case p.BeginRoundAction(round_):
                decider.tell(p.WorkersStartedEvent(OWN, round_.number))
            case p.HaltRoundAction(number):
                decider.tell(p.RoundClearedEvent(OWN, number, Endpoint("127.0.0.1", 1)))

    def fail(error: BaseException) -> None:
        raise error

    await decider.start(act, fail)
    decider.tell(p.JoinedEvent(OWN, Endpoint("127.0.0.1", 1), torch=True))
    agents = await Agents.start(port, count)
    ticking = asyncio.create_task(_tick(decider))
    found: dict[str, float] = {"agents": count}
    for word in ("gather", "last", "start", "steady", "fail", "again"):
        told, found[f"{word}_cpu"] = await agents.step(word)
        found[f"{word}_wall"] = told["seconds"]
        found[f"{word}_bytes"] = told["bytes"] / (count - 1)
        await asyncio.sleep(1.0)  # what is still on its way is not counted for the next
    found["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ticking.cancel()
    await agents.end()
    return found


async def _tick(decider: TcpDecider) -> None:
    """As a session does."""
    while True:
        decider.tell(p.TickEvent())
        await asyncio.sleep(0.1)


# ── the report ────────────────────────────────────────────────────────────────

COLUMNS: dict[str, Callable[[dict[str, float]], str]] = {
    "agents": lambda f: f"{f['agents']:,.0f}",
    "round: CPU": lambda f: f"{f['last_cpu']:.3f} s",
    "wall": lambda f: f"{f['last_wall']:.3f} s",
    "bytes each": lambda f: f"{f['last_bytes']:,.0f}",
    "failure: CPU": lambda f: f"{f['fail_cpu']:.3f} s",
    "to all": lambda f: f"{f['fail_wall']:.3f} s",
    "restart: CPU": lambda f: f"{f['again_cpu']:.3f} s",
    "joins: CPU": lambda f: f"{f['gather_cpu']:.2f} s",
    "heartbeats": lambda f: f"{100 * f['steady_cpu'] / f['steady_wall']:.1f} %",
    "peak RSS": lambda f: f"{f['rss_mb']:.0f} MB",
}


def main() -> None:
    rows = []
    for count in AGENTS:
        words = [sys.executable, __file__, "--coordinator", str(count)]
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
        rows.append(json.loads(done.stdout))
        print(f"  {rows[-1]}", file=sys.stderr, flush=True)
    table = [[*COLUMNS], *([show(row) for show in COLUMNS.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    RESULTS.mkdir(exist_ok=True)
    facts = {"python": platform.python_version(), "processors": os.cpu_count()}
    (RESULTS / "scale.json").write_text(json.dumps({"rows": rows, "facts": facts}, indent=1))


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    match sys.argv[1:]:
        case ["--agents", port, count]:
            asyncio.run(play_agents(int(port), int(count)))
        case ["--coordinator", count]:
            print(json.dumps(asyncio.run(measure(int(count)))))
        case _:
            main()
