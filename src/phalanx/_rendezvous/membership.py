"""Who is in a round, and in which order. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from phalanx._core import ranks
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Member

Name = tuple[int | str, ...]
Order = tuple[int | Name, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """A host that can take part: its agent, how many workers it has, where it stands in line."""

    agent: AgentId
    hostname: str
    workers: int
    order: Order = ()
    role: str = ranks.DEFAULT_ROLE


def natural(name: str) -> Name:
    """A key that sorts names as people do: `node2` before `node10`."""
    parts = re.split(r"(\d+)", name)
    # Text and numbers alternate, text first: the same places are always compared.
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts))


def choose(alive: Iterable[Host], most: int, stay: Collection[AgentId] = ()) -> list[Host]:
    """At most so many hosts in rank order; those of the round before, `stay`, come first."""
    ordered = sorted(alive, key=_sort_key)
    kept = [host for host in ordered if host.agent in stay]
    new = [host for host in ordered if host.agent not in stay]
    return sorted((kept + new)[:most], key=_sort_key)


def lay_out(hosts: Iterable[Host]) -> tuple[Member, ...]:
    """Contiguous ranks for hosts that are in order."""
    return ranks.lay_out((host.agent, host.hostname, host.workers, host.role) for host in hosts)


def may_decide(
    last: Collection[AgentId],
    there: Collection[AgentId],
    closed: Collection[AgentId],
    *,
    elected: bool = False,
) -> bool:
    """Those that are there may form a round without the rest of the last one.

    They are the strict majority of it, or the others have certainly ended: then nobody else can
    form one as well. Half is enough for one that was `elected`: no other was.
    """
    known = sum(1 for agent in last if agent in there)
    missing = [agent for agent in last if agent not in there]
    enough = 2 * known > len(last) or (elected and 2 * known == len(last))
    return enough or all(agent in closed for agent in missing)


def _sort_key(host: Host) -> tuple[Order, int]:
    return host.order, host.agent
