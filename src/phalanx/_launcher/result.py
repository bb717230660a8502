"""What a launch gives back: every rank's value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from phalanx._core.rounds import Member

R = TypeVar("R")


@dataclass(frozen=True)
class LaunchResult(Generic[R]):
    """The values of all ranks. Iterating and `len` go in rank order."""

    values: tuple[R, ...]
    """Every value, by global rank."""
    members: tuple[Member, ...] = field(repr=False)
    """The hosts, in rank order."""

    @property
    def results(self) -> dict[str, list[R]]:
        """The values by host name, in rank order; a host listed twice has all of its own."""
        table: dict[str, list[R]] = {}
        for member in self.members:
            table.setdefault(member.hostname, []).extend(self.values[r] for r in member.ranks)
        return table

    def rank(self, rank: int) -> R:
        """The value of a global rank.

        Args:
            rank: The global rank, from 0.

        Raises:
            IndexError: There was no such rank.
        """
        if not 0 <= rank < len(self.values):
            raise IndexError(f"no rank {rank}; the ranks are 0 to {len(self.values) - 1}")
        return self.values[rank]

    def index(self, hostname: str, local_rank: int) -> R:
        """The value of a host's worker.

        Args:
            hostname: The host, as it was named in `hostnames`.
            local_rank: The worker's number on that host, from 0.

        Raises:
            KeyError: The host did not take part, or was listed several times.
            IndexError: It had no such local rank.
        """
        found: Sequence[Member] = [m for m in self.members if m.hostname == hostname]
        if not found:
            known = ", ".join(dict.fromkeys(m.hostname for m in self.members))
            raise KeyError(f"no host {hostname!r}; choose one of {known}")
        if len(found) > 1:
            ranks = ", ".join(f"{m.ranks.start}–{m.ranks.stop - 1}" for m in found)
            raise KeyError(
                f"{hostname!r} is listed {len(found)} times (ranks {ranks}). Use .rank(i) instead."
            )
        if not 0 <= local_rank < found[0].workers:
            raise IndexError(
                f"no local rank {local_rank}; {hostname} has 0 to {found[0].workers - 1}"
            )
        return self.values[found[0].first_rank + local_rank]

    def __iter__(self) -> Iterator[R]:
        """Iterate over the values in rank order."""
        return iter(self.values)

    def __len__(self) -> int:
        """How many ranks there were."""
        return len(self.values)


@dataclass(frozen=True)
class CallResult(LaunchResult[R]):
    """The values of one call of a map."""

    item_index: int = 0
    """The item's position among the items, from 0."""
