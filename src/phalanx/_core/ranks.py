"""Ranks, and the worker environment that torchrun's users know. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx._core.ids import AgentId
from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from phalanx._core.rounds import EqualHosts, Member, Round

APP = "PHALANX_APP"
HEARTBEAT_FILE = "PHALANX_HEARTBEAT_FILE"
"""Names the file in which a worker tells its agent that it gets on."""
HOST = "PHALANX_HOST"
REPLICA = "PHALANX_REPLICA_ID"
"""The variable in which a replica finds its number in its role."""
ROUND = "PHALANX_ROUND"
STOP_FILE = "PHALANX_STOP_FILE"
"""Names a file that comes into being when the host is about to be taken away."""
SPOOL = "PHALANX_SPOOL"
"""Names an agent's spool, in the first environment of its zygote: what is left is known by it."""

DEFAULT_ROLE = "default"

MOST_WORKERS = 10_000
"""More processes than that on one host are a mistake in a number."""

RANK_VARIABLES = frozenset(
    {
        APP,
        HEARTBEAT_FILE,
        HOST,
        ROUND,
        SPOOL,
        STOP_FILE,
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "LOCAL_WORLD_SIZE",
        "WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
    }
)
"""What differs between workers or rounds: set after the fork, absent before it."""


JAX_ADDRESS, JAX_BIND_ADDRESS = "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS"


def members(hostnames: Sequence[str], workers: Sequence[int]) -> tuple[Member, ...]:
    """Give every host its contiguous ranks, in the order of the list."""
    if len(hostnames) != len(workers):
        raise ConfigError(
            f"workers_per_host has {len(workers)} entries for {len(hostnames)} hosts. "
            "Give one number for all hosts, or one per host."
        )
    for hostname, count in zip(hostnames, workers, strict=True):
        if count > MOST_WORKERS:
            raise ConfigError(
                f"{count} workers on {hostname}: the maximum is {MOST_WORKERS} per host."
            )
        if count < 1:
            raise ConfigError(
                f"workers_per_host={count} for {hostname}: must be 1 or more. Remove hosts that "
                "should run no workers from hostnames."
            )
    agents = map(AgentId, range(len(hostnames)))
    roles = [DEFAULT_ROLE] * len(hostnames)
    return lay_out(zip(agents, hostnames, workers, roles, strict=True))


def lay_out(hosts: Iterable[tuple[AgentId, str, int, str]]) -> tuple[Member, ...]:
    """Contiguous ranks for agents with their hosts, numbers of workers and roles, in order."""
    from phalanx._core.rounds import Member  # most of who imports this module has no round

    table: list[Member] = []
    first = 0
    for agent, hostname, workers, role in hosts:
        table.append(Member(agent, hostname, first, workers, role))
        first += workers
    return tuple(table)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a host is among all of its round, and among those of its role."""

    host: int
    """How many hosts are before it."""
    rank: int
    """How many workers are before its own."""
    role_rank: int
    hosts: int
    role_size: int
    workers: int
    role: str


def position(hosts: Iterable[EqualHosts], *, host: int | None = None, rank: int = 0) -> Position:
    """The position of the host with so many before it, or of the one that a rank is on."""
    hosts = tuple(hosts)
    before = first = 0
    of_role: Counter[str] = Counter()
    for run in hosts:
        ahead = (rank - first) // run.workers if host is None else host - before
        if ahead < run.hosts:
            break
        before, first = before + run.hosts, first + run.hosts * run.workers
        of_role[run.role] += run.hosts * run.workers
    else:
        raise IndexError("there is no such host")
    return Position(
        host=before + ahead,
        rank=first + ahead * run.workers,
        role_rank=of_role[run.role] + ahead * run.workers,
        hosts=sum(other.hosts for other in hosts),
        role_size=sum(other.hosts * other.workers for other in hosts if other.role == run.role),
        workers=run.workers,
        role=run.role,
    )


def member_at(hosts: Iterable[EqualHosts], number: int, agent: AgentId, hostname: str) -> Member:
    """The part of the host with so many before it."""
    from phalanx._core.rounds import Member

    found = position(hosts, host=number)
    return Member(agent, hostname, found.rank, found.workers, found.role)


def ranges(ranks: Iterable[int], dash: str = "–") -> str:
    """Ranks in short: 0, 2–5."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}{dash}{r[-1]}" for r in runs)


def worker_environment(
    round_: Round,
    member: Member,
    rank: int,
    *,
    run_id: str,
    error_file: str,
    agent_store: bool,
    max_restarts: int = 0,
) -> dict[str, str]:
    """Every per-worker variable of torchrun's contract, for one rank."""
    at = position(round_.hosts, rank=member.first_rank)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank - member.first_rank),
        "GROUP_RANK": str(at.host),
        "ROLE_RANK": str(at.role_rank + rank - member.first_rank),
        "ROLE_NAME": member.role,
        "LOCAL_WORLD_SIZE": str(member.workers),
        "WORLD_SIZE": str(round_.world_size),
        "GROUP_WORLD_SIZE": str(at.hosts),
        "ROLE_WORLD_SIZE": str(at.role_size),
        "MASTER_ADDR": round_.store.address,
        "MASTER_PORT": str(round_.store.port),
        "TORCHELASTIC_RESTART_COUNT": str(round_.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(agent_store),
        "TORCHELASTIC_ERROR_FILE": error_file,
        HOST: member.hostname,
        ROUND: str(round_.number),
    }


def jax_environment(round_: Round, environ: Mapping[str, str]) -> dict[str, str]:
    """Where JAX's coordinator is, unless the user has said that in `environ`."""
    if JAX_ADDRESS in environ:
        return {}
    address, port = round_.jax_coordinator.address, round_.jax_coordinator.port
    endpoint = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    # By default it listens to the world; nobody from there is to come if all are on this host.
    local = address == "localhost" or address.startswith("127.")
    return {JAX_ADDRESS: endpoint} | ({JAX_BIND_ADDRESS: endpoint} if local else {})
