"""The data of a round: who takes part, at which ranks, and how each worker ended.

Pure data that crosses between launcher, agent and worker. It knows no process, socket or clock.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
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
    WorkerCount,
)


class Ended(StrEnum):
    """How one worker ended."""

    RETURNED = "returned"
    RAISED = "raised"
    EXITED = "exited"
    KILLED = "killed"
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
class Round:
    """One agreed membership; members are in rank order."""

    number: RoundNumber
    members: tuple[Member, ...]
    store: Endpoint
    restarts: AnyCount = 0
    """How many restarts it took; the same for everybody."""
    torch: bool | None = None
    """Whether the store is carried for the workers; None: whoever begins the round decides."""
    bound: Port = 0
    """The port that was bound for the round's store, if it is found at another."""

    def member(self, agent: AgentId) -> Member:
        """The part of an agent's host."""
        return next(member for member in self.members if member.agent == agent)

    @property
    def jax_coordinator(self) -> Endpoint:
        """Where another framework's own service may be: beside the store, on a port of its own.

        An agent binds two ports in a row for a round; the second is for this.
        """
        return Endpoint(self.store.address, (self.bound or self.store.port) + 1)

    @property
    def world_size(self) -> int:
        """How many workers there are in all."""
        return sum(member.workers for member in self.members)


@dataclass(frozen=True, slots=True)
class Fault:
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
    fault: Fault | None = None
    seconds: Seconds = 0.0
    stderr: str = ""
    detail: str = ""
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
            case Ended.RAISED if self.fault is not None and self.fault.result:
                return f"returned a {self.fault.type_name} that cannot be sent back"
            case Ended.RAISED:
                return f"raised {self._said() or 'an exception'}"
            case Ended.EXITED:
                return f"exited with code {self.code}" + (
                    f": {said}" if (said := self._said()) else ""
                )
            case Ended.KILLED:
                name = signal_name(self.signal or 0)
                return f"was killed by {name}" + (f": {said}" if (said := self._said()) else "")
            case Ended.LOST:
                return f"was lost: {self.detail}" if self.detail else "was lost"

    def _said(self) -> str:
        """The exception, or what the worker's error file says, in one line."""
        if self.fault is None:
            return ""
        first = (self.fault.message.splitlines() or [""])[0]
        return f"{self.fault.type_name}: {first}".rstrip(": ")


def signal_name(number: int) -> str:
    """Name a signal as `kill -l` does, real-time ones included."""
    try:
        return signal.Signals(number).name
    except ValueError:
        if signal.SIGRTMIN < number < signal.SIGRTMAX:
            return f"SIGRTMIN+{number - signal.SIGRTMIN}"
        return f"signal {number}"
