"""Calls on this machine, in lanes: as many agents as calls are made at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from phalanx._launcher.calls.lanes.lane import Lane
from phalanx.errors import Cancelled

if TYPE_CHECKING:
    from phalanx._launcher.payload import Function
    from phalanx._launcher.planning.plan import Draft
    from phalanx._launcher.result import LaunchResult
    from phalanx._launcher.warm.pool import AgentPool
    from phalanx._logs.spec import LogSpec


class LaneCalls:
    """Makes each call in a lane that is free."""

    def __init__(self, draft: Draft, pools: Sequence[AgentPool]) -> None:
        """Nothing is started. New agents stay in the first of the pools, if there is one."""
        self._draft = draft
        self._pools = pools
        self._lock = threading.Lock()
        self._idle: list[Lane] = []
        self._all: list[Lane] = []
        self._cancelled = False

    @staticmethod
    def can_run(draft: Draft) -> bool:
        """Calls are on this machine alone, unchecked, and a failed one is not started anew."""
        here = len(draft.hosts) == 1 and draft.hosts[0].target is None
        return here and not draft.options.host_checks and not draft.finish({}).is_elastic

    def prepare(self, tell: Callable[[str], None]) -> None:
        """This machine is there."""

    def run(
        self, call: Function, hosts: Sequence[int], log_spec: LogSpec | None
    ) -> LaunchResult[Any]:
        """See `CallRunner.run`."""
        lane = self._take(hosts, log_spec)
        try:
            assert log_spec is not None
            return lane.run(call, log_spec)
        finally:
            with self._lock:
                self._idle.append(lane)

    def replace(self, host: int, is_over: Callable[[], bool]) -> bool:
        """This machine is not lent."""
        raise NotImplementedError

    def _take(self, hosts: Sequence[int], log_spec: LogSpec | None) -> Lane:
        with self._lock:
            if self._cancelled:
                raise Cancelled("the call was cancelled before it started")
            if self._idle:
                return self._idle.pop()
            lane = Lane(self._draft.only(hosts, log_spec).finish({}), self._pools)
            self._all.append(lane)
            return lane

    def cancel(self, grace: float | None) -> None:
        """See `CallRunner.cancel`."""
        with self._lock:
            self._cancelled = True
            lanes = list(self._all)
        for lane in lanes:
            lane.cancel(grace)

    def close(self) -> None:
        """See `CallRunner.close`."""
        with self._lock:
            lanes, self._all, self._idle = self._all, [], []
        for lane in lanes:
            lane.close()
