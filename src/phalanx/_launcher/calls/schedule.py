"""Which call runs next, and on which hosts. Pure: it is told how calls ended, and starts nothing.

A host that was lost twice in a row is not used any more, and a call that lost a host is tried on
another one, as long as there is another one. This machine is never given up: where it is among
the hosts, a call that ends without it would have ended without any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

_LOSSES = 2
"""So many losses in a row, and a host is given up."""


class CallEnd(Enum):
    """How one attempt at a call ended."""

    RETURNED = auto()
    FAILED = auto()
    """By the function's own doing: trying again would not help."""
    LOST = auto()
    """A host went away, could not be used, or was preempted."""


@dataclass(frozen=True, slots=True)
class HostSlots:
    """A host, as far as calls are concerned."""

    slots: int
    """How many calls it takes at once."""
    is_here: bool = False
    """It is this machine."""


@dataclass(frozen=True, slots=True)
class CallAssignment:
    """One attempt at a call: which item, where, and how many attempts there were before it."""

    item: int
    hosts: tuple[int, ...]
    attempt: int = 0


@dataclass
class _HostState:
    slots: int
    is_here: bool
    running: int = 0
    losses: int = 0
    """Since it last did what it should."""

    @property
    def is_usable(self) -> bool:
        return self.is_here or self.losses < _LOSSES


@dataclass
class _CallState:
    item: int
    attempt: int = 0
    avoided: set[int] = field(default_factory=set)
    """The hosts that it has lost."""


class CallSchedule:
    """The calls that wait and those that run."""

    def __init__(
        self,
        items: Iterable[int],
        hosts: Sequence[HostSlots],
        *,
        hosts_per_call: int = 1,
        max_parallel: int,
        retries: int = 0,
    ) -> None:
        """All calls wait, in this order."""
        self._waiting = deque(_CallState(item) for item in items)
        self._again: deque[_CallState] = deque()
        """Those that have lost a host: they come first."""
        self._running: dict[int, tuple[_CallState, CallAssignment]] = {}
        self._hosts = [_HostState(host.slots, host.is_here) for host in hosts]
        self._wanted = hosts_per_call
        self._most = max_parallel
        self._retries = retries

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many wait, those that are tried again among them."""
        return len(self._waiting) + len(self._again)

    @property
    def is_stuck(self) -> bool:
        """Calls wait, and too few hosts are left for any of them."""
        usable = sum(host.is_usable for host in self._hosts)
        return self.waiting > 0 and not self._running and usable < self._wanted

    @property
    def is_over(self) -> bool:
        """Nothing runs, and nothing will."""
        return not self._running and (not self.waiting or self.is_stuck)

    def take(self) -> CallAssignment | None:
        """The next call to start; None when nothing can be started now."""
        if len(self._running) >= self._most:
            return None
        for waiting in (self._again, self._waiting):
            for call in waiting:
                hosts = self._choose(call)
                if hosts is not None:
                    waiting.remove(call)
                    return self._start(call, hosts)
                if not call.avoided:
                    break  # those behind it want the same
        return None

    def ended(self, item: int, end: CallEnd, lost: Collection[int] = ()) -> bool:
        """An attempt has ended; whether there will be another one.

        `lost` are the hosts that are to blame; empty: it may have been any of them.
        """
        call, assignment = self._running.pop(item)
        to_blame = set(lost) & set(assignment.hosts) or set(assignment.hosts)
        for index in assignment.hosts:
            host = self._hosts[index]
            host.running -= 1
            if end is not CallEnd.LOST:
                host.losses = 0
            elif index in to_blame:
                host.losses += 1
        if end is not CallEnd.LOST or call.attempt >= self._retries:
            return False
        call.attempt += 1
        call.avoided |= to_blame
        self._again.append(call)
        return True

    def drop_waiting(self) -> list[int]:
        """Start nothing more; gives the items that have not been done."""
        items = [call.item for call in (*self._again, *self._waiting)]
        self._again.clear()
        self._waiting.clear()
        return items

    def _start(self, call: _CallState, hosts: tuple[int, ...]) -> CallAssignment:
        for index in hosts:
            self._hosts[index].running += 1
        assignment = CallAssignment(call.item, hosts, call.attempt)
        self._running[call.item] = call, assignment
        return assignment

    def _choose(self, call: _CallState) -> tuple[int, ...] | None:
        usable = [i for i, host in enumerate(self._hosts) if host.is_usable]
        others = [i for i in usable if i not in call.avoided]
        # Where there are no others, better one that was lost once than none.
        chosen = others if len(others) >= self._wanted else usable
        free = [i for i in chosen if self._hosts[i].running < self._hosts[i].slots]
        if len(free) < self._wanted:
            return None
        free.sort(key=lambda i: (self._hosts[i].losses, self._hosts[i].running, i))
        return tuple(sorted(free[: self._wanted]))


def spread(hosts: int, hosts_per_call: int, max_parallel: int) -> int:
    """How many calls each host takes at once, so that so many run in all."""
    return -(-max_parallel * hosts_per_call // hosts)
