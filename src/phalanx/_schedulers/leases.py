"""Hosts that a scheduler lends to launches: the interface. Pure; knows no scheduler.

A scheduler that sets `Capabilities.lends_hosts` has a method `lend`, which asks for hosts and
returns at once. The lease says how the request stands, has the hosts when they are there, each with
a command that leads to it, and gives them back. What runs on them is none of its concern.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar


@dataclass(frozen=True)
class LeaseRequest:
    """What a launch asks a scheduler for."""

    name: str
    """What the request is called in the scheduler's own lists."""
    num_hosts: int
    """How many hosts."""
    options: Any
    """An instance of the scheduler's class `options`."""
    image: str | None = None
    """The container image that hosts are made from, where `Capabilities.runs_images` is set."""


@dataclass(frozen=True)
class GroupCommand:
    """A command that runs another one, given behind it, on several hosts at once.

    What it reads from stdin goes to every host, whole; what they print comes in any order, a line
    of one in one piece.
    """

    command: tuple[str, ...]
    """`{hosts}` and `{count}` in its words stand for the hosts' names, with commas between them,
    and for their number."""
    host_variable: str
    """The environment variable that has the host's name there."""
    variables: tuple[tuple[str, str | None], ...] = ()
    """Variables that programs find there instead of the command's, so that a host is the same as if
    it had been started by itself. `{host}` stands for its name; None for none."""

    def words(self, hosts: Sequence[str]) -> list[str]:
        """The command for some hosts.

        Args:
            hosts: Their names.
        """
        names, count = ",".join(hosts), str(len(hosts))
        return [word.replace("{hosts}", names).replace("{count}", count) for word in self.command]


@dataclass(frozen=True)
class LentHost:
    """A host, and the command that leads there."""

    name: str
    """What users know it by; unique within a lease."""
    command: tuple[str, ...]
    """Runs another command there, which is given behind it: `("ssh", "gpu-1")`. Its stdin, stdout
    and stderr are those of the command that it runs, byte for byte and without delay; it ends when
    that ends. Several may run at once."""
    through_shell: bool = False
    """What is given is read by a shell there, as with ssh; otherwise it is taken as it is."""
    without: frozenset[str] = frozenset()
    """Environment variables of this process that the command must not have."""
    reconnect_timeout: float | None = None
    """Where what the command runs outlives it, if the command is killed: the default of the
    launcher's option of that name. None where it does not."""
    gone_code: int | None = None
    """The exit code by which the command says that there is no such host any more: nobody waits
    until it can be reached again. None where it does not say so."""
    tasks: int | None = None
    """How many workers the scheduler means it to have; None where it does not say."""
    pythons: tuple[str, ...] = ()
    """The interpreters to try there if the user names none; empty for one like this process's."""
    group: GroupCommand | None = None
    """What leads to it and to others with an equal one, by one start. Many hosts are started so;
    where they cannot connect to this machine then, each by its own command."""


class LeasePhase(Enum):
    """Where a request for hosts stands."""

    WAITING = "WAITING"
    """Not all hosts are there."""
    READY = "READY"
    """All are there."""
    ENDED = "ENDED"
    """It was refused, has expired, was cancelled or given back: no host can be used any more."""


@dataclass(frozen=True)
class LeaseStatus:
    """How a request for hosts stands."""

    phase: LeasePhase
    """Whether the hosts can be used."""
    hosts: tuple[LentHost, ...] = ()
    """Those that are there so far, in the order of ranks."""
    state: str = ""
    """The scheduler's own word for it, such as PENDING."""
    reason: str = ""
    """Why it waits or has ended, in the scheduler's own words, such as Resources."""


class Lease(ABC):
    """Hosts that were asked for. All methods may be called from any thread."""

    id: str = ""
    """What the scheduler calls the request, such as `job 17`; may be set later than the lease is
    made."""

    poll_interval: ClassVar[float] = 0.05
    """Seconds between two calls of `status` while a launch waits."""

    @abstractmethod
    def status(self) -> LeaseStatus:
        """How it stands.

        Called every `poll_interval` seconds: ask the scheduler at most once a second, and answer
        from memory otherwise. Raises nothing for a scheduler that is not there for a while.
        """

    def replace(self, name: str) -> bool:
        """Ask for another host in place of one that is lost. Return at once.

        The new one is in a later `status`, with a name that the lease has not had so far.

        Args:
            name: The name of the host that is lost.

        Returns:
            Whether it was asked for; False where that cannot be done.
        """
        return False

    @abstractmethod
    def give_back(self) -> None:
        """Give all hosts back, or withdraw the request. Idempotent; blocks until it is done.

        When the process is killed instead, the scheduler must have the hosts back within a minute.
        """
