"""Where and as whom hosts meet, by the rules of torchrun: hosts, backend, endpoint, run id. Pure.

| said                                     | backend | endpoint                 | run id        |
|------------------------------------------|---------|--------------------------|---------------|
| --standalone                             | c10d    | localhost:0              | a random one  |
| at most one host, static, no endpoint    |         |                          |               |
| and no --master-port (nothing at all)    | c10d    | localhost:0              | a random one  |
| nothing of it, several hosts, in an app  |         |                          |               |
| of a scheduler                           | c10d    | the app's first replica  | as said       |
| static, else without an endpoint         | static  | master_addr:master_port  | as said       |
| anything else                            | as said | as said                  | as said       |

Port 0 is any free one. An endpoint without a port has 29400 for c10d, 2379 for etcd, which may have
several, with commas between them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx._elastic.command.given_flags import GivenFlags
from phalanx._rendezvous.endpoints import DEFAULT_PORTS, STATIC_PORT, parse_endpoint
from phalanx._rendezvous.etcd.settings import parse_endpoints
from phalanx.errors import ConfigError

_FIRST_HOST, _FIRST_PORT = "PHALANX_RANK0_HOST", "PHALANX_RANK0_PORT"
"""What replicas of an app find: where the first one is."""
_PLACES = {"rdzv_backend", "rdzv_endpoint", "master_addr", "master_port", "standalone"}


@dataclass(frozen=True)
class RendezvousChoice:
    """Where hosts meet, and how many there are to be."""

    min_hosts: int
    max_hosts: int
    backend: str
    endpoint: str
    host: str | None
    port: int | None
    run_id: str
    conf: dict[str, str]
    """Without a static host's rank."""
    node_rank: int
    standalone: bool
    master_port: int
    notes: tuple[str, ...] = ()


def resolve(words: GivenFlags, environ: Mapping[str, str]) -> RendezvousChoice:
    """What the flags of the rendezvous mean together. Raises `ConfigError`."""
    low, high = _hosts(words)
    conf = _conf(words)
    backend, endpoint, run_id = words["rdzv_backend"], words["rdzv_endpoint"], words["rdzv_id"]
    first, said = environ.get(_FIRST_HOST), words.typed | words.from_environment
    if high > 1 and first and not _PLACES & said:
        backend, endpoint = "c10d", f"{first}:{environ.get(_FIRST_PORT) or STATIC_PORT}"
    if not backend:
        raise ConfigError("--rdzv-backend: missing name, as in --rdzv-backend c10d.")
    port = words["master_port"]
    if port is not None and not 0 <= port < 1 << 16:
        raise ConfigError(f"{words.quote('master_port')}: must be a port between 0 and 65535.")
    alone = backend == "static" and not endpoint and port is None and high == 1
    port = STATIC_PORT if port is None else port
    if words["standalone"] or alone:
        if low > 1:
            raise ConfigError(
                f"--standalone cannot be used with {words.quote('nnodes')}: it runs on one host. "
                "Remove one of them."
            )
        if alone and not words["standalone"]:
            _node_rank(words, conf, high)
        backend, endpoint, run_id = "c10d", "localhost:0", str(uuid.uuid4())
        at: tuple[str | None, int | None] = ("localhost", 0)
    else:
        if backend == "static" and not endpoint:
            endpoint = f"{words['master_addr']}:{port}"
        at = _parse_endpoint(backend, endpoint, conf)
        run_id = run_id or _random_id(high)
        if at[1] == 0 and low > 1:
            raise ConfigError(
                f"{endpoint}: with port 0, other hosts cannot find the rendezvous. "
                f"Write {at[0]}:{DEFAULT_PORTS.get(backend, STATIC_PORT)}."
            )
    node_rank = _node_rank(words, conf, high) if backend == "static" else words["node_rank"]
    return RendezvousChoice(
        min_hosts=low,
        max_hosts=high,
        backend=backend,
        endpoint=endpoint,
        host=at[0],
        port=at[1],
        run_id=run_id,
        conf=conf,
        node_rank=node_rank,
        standalone=words["standalone"] or alone,
        master_port=port,
        notes=_notes(words, backend, high, alone=alone and not words["standalone"]),
    )


def _hosts(words: GivenFlags) -> tuple[int, int]:
    said = words.quote("nnodes")
    try:
        numbers = [int(part) for part in words["nnodes"].split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise ConfigError(f"{said}: must be a number of hosts or MIN:MAX. Try --nnodes 1:2.")
    low, high = numbers[0], numbers[-1]
    if low < 1:
        raise ConfigError(f"{said}: the minimum must be at least 1. Try --nnodes {max(high, 1)}.")
    if high < low:
        raise ConfigError(
            f"{said}: the maximum must be at least the minimum. Try --nnodes {high}:{low}."
        )
    return low, high


def _conf(words: GivenFlags) -> dict[str, str]:
    text = words["rdzv_conf"].strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip()  # of a shell that did not take them off
    conf: dict[str, str] = {}
    for item in text.split(",") if text else ():
        key, _, value = (part.strip() for part in item.partition("="))
        if not key or not value:
            raise ConfigError(
                f"{words.quote('rdzv_conf')}: {item!r}: expected KEY=VALUE. "
                "Example: --rdzv-conf join_timeout=600,last_call_timeout=30."
            )
        conf[key] = value
    return conf


def _node_rank(words: GivenFlags, conf: dict[str, str], hosts: int) -> int:
    """Which host this is, by --node-rank, or by rank= in --rdzv-conf, which is taken out of it."""
    said, rank = words.quote("node_rank"), words["node_rank"]
    if (given := conf.pop("rank", None)) is not None:
        if not given.isdecimal():
            raise ConfigError(f"--rdzv-conf rank={given}: must be a whole number.")
        if "node_rank" in words.typed | words.from_environment and rank != int(given):
            raise ConfigError(f"{said} and --rdzv-conf rank={given} differ. Remove one of them.")
        said, rank = f"--rdzv-conf rank={given}", int(given)
    if not 0 <= rank < hosts:
        ranks = "0 with one host" if hosts == 1 else f"0 to {hosts - 1} with {hosts} hosts"
        raise ConfigError(
            f"{said}: must be {ranks}. Give each host its own rank, and set --nnodes."
        )
    return int(rank)


def _parse_endpoint(
    backend: str, endpoint: str, conf: dict[str, str]
) -> tuple[str | None, int | None]:
    """Host and port; none where the endpoint is something that only the backend understands."""
    if backend == "c10d" and conf.get("store_type", "tcp").lower() == "file":
        return None, None
    if backend in ("etcd", "etcd-v2"):
        first = parse_endpoints(endpoint)[0]
        return first.address, first.port
    try:
        host, port = parse_endpoint(endpoint, backend)
    except ConfigError:
        if backend in DEFAULT_PORTS:
            raise
        return None, None
    if backend == "static" and port is None:
        raise ConfigError(
            f'rendezvous endpoint "{endpoint}" has no port. Write {endpoint}:{STATIC_PORT}.'
        )
    return host, DEFAULT_PORTS.get(backend) if port is None else port


def _random_id(high: int) -> str:
    if high > 1:
        raise ConfigError(
            f"--rdzv-id is empty: {high} hosts need it to find each other. Set --rdzv-id NAME."
        )
    return str(uuid.uuid4().int)


def _notes(words: GivenFlags, backend: str, high: int, *, alone: bool) -> tuple[str, ...]:
    """What was said on the command line and is not used."""
    idle: list[str] = []
    if words["standalone"]:
        idle += ["rdzv_backend", "rdzv_endpoint", "rdzv_id"]
    if backend != "static":
        idle += ["node_rank"]
    if backend != "static" or words["rdzv_endpoint"]:
        idle += ["master_addr", "master_port"]
    notes = []
    if unused := [words.quote(dest) for dest in idle if dest in words.typed]:
        why = "--standalone" if words["standalone"] else f"--rdzv-backend {backend}"
        how = "--nnodes is 1, so this host runs alone; ignored" if alone else f"ignored with {why}"
        notes.append(f"{how}: {', '.join(unused)}")
    meets = words["standalone"] or words["rdzv_endpoint"] or backend not in ("c10d", "tcp")
    if high > 1 and not meets:
        notes.append("no --rdzv-endpoint: using localhost, which other hosts cannot reach")
    return tuple(notes)
