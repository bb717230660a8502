"""What a fault hits: a worker or a host of the app, as its status has them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx._chaos.faults import Kind, PlannedFault
from phalanx._specs import HostState, RankState


@dataclass(frozen=True, slots=True)
class Victim:
    """A process on a host: a worker's, or the host's agent."""

    hostname: str
    pid: int
    rank: int | None = None
    """Of a worker."""

    def describe(self) -> str:
        """In a few words."""
        if self.rank is None:
            return self.hostname
        return f"rank {self.rank} on {self.hostname} (pid {self.pid})"


def victims(kind: Kind, status: Mapping[str, Any], hosts: Collection[str]) -> list[Victim]:
    """All that a kind of fault can hit now, on these hosts, in the order of ranks."""
    if kind.hits_worker:
        return [
            Victim(worker["hostname"], worker["pid"], worker["rank"])
            for worker in status["workers"]
            if worker["state"] == RankState.RUNNING
            and isinstance(worker["pid"], int)
            and worker["hostname"] in hosts
        ]
    return [
        Victim(host["hostname"], host["pid"])
        for host in status["hosts"]
        if host["state"] == HostState.ACTIVE
        and isinstance(host.get("pid"), int)
        and host["hostname"] in hosts
    ]


def choose(fault: PlannedFault, found: list[Victim]) -> Victim | None:
    """The one that a fault hits; None where there is none."""
    return found[int(fault.pick * len(found))] if found else None
