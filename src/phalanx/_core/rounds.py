"""The data of a round: who takes part, at which ranks, and how each worker ended.

Pure data that crosses between launcher, agent and worker. It knows no process, socket or clock.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from phalanx._core.ids import AgentId
from phalanx._core.limits import (
    AgentNumber,
    AnyCount,
    ExitCode,
    Moment,
    Name,
    Pid,
    Port,
    RoundNumber,
    Seconds,
    SignalNumber,
    Size,
    WorkerCount,
)
from phalanx._core.signals import signal_name


class Ended(StrEnum):
    """How one worker ended."""

    RETURNED = "returned"
    RAISED = "raised"
    EXITED = "exited"
    KILLED = "killed"
    HUNG = "hung"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address and a port: of the round's store, or where a host is reached."""

    address: Name
    port: Port


@dataclass(frozen=True, slots=True)
class Member:
    """One host's part in a round: `workers` ranks from `first_rank` on."""

    agent: AgentNumber
    hostname: Name
    first_rank: AnyCount
    workers: WorkerCount
    role: Name = "default"
    """What its workers are, for programs whose hosts do different things."""

    @property
    def ranks(self) -> range:
        """The global ranks of this member."""
        return range(self.first_rank, self.first_rank + self.workers)


@dataclass(frozen=True, slots=True)
class EqualHosts:
    """So many hosts one after the other, in rank order, each with so many workers of a role."""

    hosts: WorkerCount
    workers: WorkerCount
    role: Name = "default"


@dataclass(frozen=True, slots=True)
class Round:
    """One agreed membership; members are in rank order."""

    number: RoundNumber
    members: tuple[Member, ...]
    """All of them, or with `excerpt_of` those that have to be known here."""
    store: Endpoint
    restarts: AnyCount = 0
    """How many restarts it took; the same for everybody."""
    torch: bool | None = None
    """Whether the store is carried for the workers; None: whoever begins the round decides."""
    bound: Port = 0
    """The port that was bound for the round's store, if it is found at another."""
    excerpt_of: tuple[EqualHosts, ...] = ()
    """All hosts, where not every one of them is among the members."""

    def member(self, agent: AgentId) -> Member:
        """The part of an agent's host."""
        return next(member for member in self.members if member.agent == agent)

    def parts(self) -> dict[AgentId, Round]:
        """What each member has to know of it: its own part, and what the other hosts are."""
        hosts = self.hosts
        return {m.agent: replace(self, members=(m,), excerpt_of=hosts) for m in self.members}

    @property
    def hosts(self) -> tuple[EqualHosts, ...]:
        """All hosts of it."""
        return self.excerpt_of or runs_of(self.members)

    @property
    def jax_coordinator(self) -> Endpoint:
        """Where another framework's own service may be: beside the store, on a port of its own.

        An agent binds two ports in a row for a round; the second is for this.
        """
        return Endpoint(self.store.address, (self.bound or self.store.port) + 1)

    @property
    def world_size(self) -> int:
        """How many workers there are in all."""
        return sum(run.hosts * run.workers for run in self.hosts)


def runs_of(members: Iterable[Member]) -> tuple[EqualHosts, ...]:
    """All hosts, without their names: as many runs as neighbours differ."""
    alike = itertools.groupby(members, lambda member: (member.workers, member.role))
    return tuple(EqualHosts(sum(1 for _ in group), *kind) for kind, group in alike)


@dataclass(frozen=True, slots=True)
class RankSteps:
    """How many steps a worker has done in the round, and the median time of its last ones."""

    rank: AnyCount
    steps: Size
    seconds: Seconds | None = None


@dataclass(frozen=True, slots=True)
class ExceptionInfo:
    """What is known of an exception without unpickling it."""

    type_name: str
    message: str
    traceback: str
    communication: bool = False
    """The exception is likely the echo of another rank's end."""
    reraise: bool = True
    """The exception itself may be raised in the caller (not KeyboardInterrupt and its like)."""
    result: bool = False
    """The function returned; it is its value that could not be carried."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the worker of `rank` ended, at `clock` by its host's monotonic clock."""

    rank: AnyCount
    kind: Ended
    clock: Moment
    pid: Pid | None = None
    code: ExitCode | None = None
    signal: SignalNumber | None = None
    exception: ExceptionInfo | None = None
    seconds: Seconds = 0.0
    stderr: str = ""
    detail: str = ""
    """Why it was lost or killed, where that is known."""
    joined: Moment | None = None
    """When the process group that we make had formed, by the same clock; None without one."""
    stopped: bool = False
    """It died of the very signal that it was stopped with."""

    @property
    def succeeded(self) -> bool:
        """The function returned, and its value is there."""
        return self.kind is Ended.RETURNED

    def describe(self) -> str:
        """Say it in a few words, to follow a rank's name."""
        match self.kind:
            case Ended.RETURNED:
                return "returned"
            case Ended.RAISED if self.exception is not None and self.exception.result:
                return f"returned a {self.exception.type_name} that cannot be sent back"
            case Ended.RAISED:
                return f"raised {self._said() or 'an exception'}"
            case Ended.EXITED:
                return f"exited with code {self.code}" + (
                    f": {said}" if (said := self._said()) else ""
                )
            case Ended.KILLED if self.stopped:
                usual = self.signal in (signal.SIGTERM, signal.SIGINT)
                return (
                    "was stopped" if usual else f"was stopped with {signal_name(self.signal or 0)}"
                )
            case Ended.KILLED:
                name = signal_name(self.signal or 0)
                said = self._said() or self.detail
                return f"was killed by {name}" + (f": {said}" if said else "")
            case Ended.HUNG:
                return self._first_line() or "hung"
            case Ended.LOST:
                return f"was lost: {self.detail}" if self.detail else "was lost"

    def _said(self) -> str:
        """The exception, or what the worker's error file says, in one line."""
        if self.exception is None:
            return ""
        return f"{self.exception.type_name}: {self._first_line()}".rstrip(": ")

    def _first_line(self) -> str:
        return (
            next(iter(self.exception.message.splitlines()), "")
            if self.exception is not None
            else ""
        )
