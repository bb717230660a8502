"""Which call runs next, and on which hosts. Pure: it is told how calls ended, and starts nothing.

A host that was lost twice in a row is not used any more, and a call that lost a host is tried on
another one, as long as there is another one. This machine is never given up: where it is among
the hosts, a call that ends without it would have ended without any. A lent host that is given up
is to be replaced, if calls have begun on it: where none could, none could on the next one either.
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
    """A host is gone, or was preempted."""
    UNPLACED = auto()
    """It has not begun: a host could not be used."""


@dataclass(frozen=True, slots=True)
class HostSlots:
    """A host, as far as calls are concerned."""

    slots: int
    """How many calls it takes at once."""
    is_local: bool = False
    """It is this machine."""
    is_lent: bool = False
    """There may be another in its place."""


@dataclass(frozen=True, slots=True)
class CallAssignment:
    """One attempt at a call: which item, where, and how many attempts there were before it."""

    item: int
    hosts: tuple[int, ...]
    attempt: int = 0


@dataclass
class _HostState:
    slots: int
    is_local: bool
    is_lent: bool
    running: int = 0
    losses: int = 0
    """Since it last did what it should."""
    has_worked: bool = False
    """A call has begun on it; of this machine that says nothing."""
    is_gone: bool = False
    """It will not come back."""
    is_awaited: bool = False
    """Another is asked for in its place."""

    @property
    def is_usable(self) -> bool:
        return self.is_local or (self.losses < _LOSSES and not self.is_gone)

    @property
    def is_to_be_replaced(self) -> bool:
        is_lost = self.is_lent and not self.is_usable and not self.running
        return is_lost and not self.is_awaited and (self.has_worked or self.is_gone)


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
        self._hosts = [_HostState(host.slots, host.is_local, host.is_lent) for host in hosts]
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
        """Calls wait, and too few hosts are left for any of them, or are to come."""
        usable = sum(
            host.is_usable or host.is_awaited or host.is_to_be_replaced for host in self._hosts
        )
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

    def ended(
        self, item: int, end: CallEnd, lost: Collection[int] = (), gone: Collection[int] = ()
    ) -> bool:
        """An attempt has ended; whether there will be another one.

        `lost` are the hosts that are to blame; empty: it may have been any of them. `gone` are
        those that will not come back.
        """
        call, assignment = self._running.pop(item)
        to_blame = {*lost, *gone} & {*assignment.hosts} or {*assignment.hosts}
        # A call that was only sent to where nobody is any more has not been tried.
        is_free = end is CallEnd.UNPLACED and all(
            self._hosts[index].has_worked or index in gone for index in to_blame
        )
        for index in assignment.hosts:
            host = self._hosts[index]
            host.running -= 1
            host.has_worked |= end is not CallEnd.UNPLACED and not host.is_local
            host.is_gone |= index in gone
            if end in (CallEnd.RETURNED, CallEnd.FAILED):
                host.losses = 0
            elif index in to_blame:
                host.losses += 1
        if end in (CallEnd.RETURNED, CallEnd.FAILED):
            return False
        if call.attempt >= self._retries and not is_free:
            return False
        call.attempt += not is_free
        call.avoided |= to_blame
        self._again.append(call)
        return True

    # ── hosts that are replaced ───────────────────────────────────────────────

    def take_lost(self) -> int | None:
        """A host in whose place another is to be asked for, each once; None if there is none."""
        for index, host in enumerate(self._hosts):
            if self.waiting and host.is_to_be_replaced:
                host.is_awaited = True
                return index
        return None

    def replaced(self, index: int, *, found: bool) -> None:
        """Another is there, or there is none to be had: then the place stays empty."""
        host = self._hosts[index]
        host.is_awaited, host.is_lent = False, found
        if found:
            host.losses, host.has_worked, host.is_gone = 0, False, False
            running = (call for call, _ in self._running.values())
            for call in (*self._again, *self._waiting, *running):
                call.avoided.discard(index)

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
