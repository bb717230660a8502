"""Hosts on which failures begin again and again: counted, and done without at some point. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx._core.ids import AgentId
from phalanx._rendezvous.causes import Failure, misses_others


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A host that takes part no more, and why."""

    agent: AgentId
    hostname: str
    failures: int
    """So many rounds failed because of it."""
    last: str
    """What the last of them failed of."""

    def describe(self) -> str:
        """Say it in one line."""
        times = "1 failure" if self.failures == 1 else f"{self.failures} failures"
        return f"{self.hostname} was excluded after {times} there, the last: {self.last}"


class FailureCounts:
    """How many rounds have failed because of each host."""

    def __init__(self, limit: int) -> None:
        """With so many a host is excluded; 0: never."""
        self._limit = limit
        self._counts: dict[AgentId, int] = {}

    def add(self, cause: Failure) -> Exclusion | None:
        """A round failed of this; gives the exclusion of its host, if that makes too many.

        One that missed others is not to blame.
        """
        if not self._limit or misses_others(cause.outcome):
            return None
        count = self._counts[cause.agent] = self._counts.get(cause.agent, 0) + 1
        if count < self._limit:
            return None
        return Exclusion(cause.agent, cause.hostname, count, cause.describe())
