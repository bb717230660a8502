"""One run of `phalanx chaos`: faults at their times, and the app watched meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from phalanx._chaos.fault_history import FaultHistory, FaultRecord, Observation, observation
from phalanx._chaos.faults import PlannedFault
from phalanx._chaos.hosts import ChaosHosts, NotDone
from phalanx._chaos.victims import choose, victims

_LOOK = 0.1
"""Seconds between looks at how the app stands."""


class Experiment:
    """Breaks an app for a while, and takes down what comes of it."""

    def __init__(
        self,
        status: Callable[[], dict[str, Any]],
        hosts: ChaosHosts,
        told: Callable[[FaultRecord], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`status` says how the app stands.

        `told` hears of each fault twice: when it is made, and when it is overcome.
        """
        self.history = FaultHistory()
        self._status = status
        self._hosts = hosts
        self._told = told
        self._now = now
        self._began = now()

    def run(self, faults: Iterable[PlannedFault], duration: float, settle: float) -> None:
        """Until the app ends, or so long; then wait so long at most until it runs again."""
        for fault in faults:
            if fault.at > duration or not self._watch_until(fault.at):
                break
            self._strike(fault)
        if self._watch_until(duration):
            limit = duration + settle
            while not self.history.has_recovered and self._elapsed < limit and self._look():
                time.sleep(_LOOK)

    @property
    def _elapsed(self) -> float:
        return self._now() - self._began

    def _watch_until(self, at: float) -> bool:
        """Watch the app until a moment; False if it has ended."""
        while self._look():
            left = at - self._elapsed
            if left <= 0:
                return True
            time.sleep(min(_LOOK, left))
        return False

    def _look(self) -> bool:
        """See how the app stands; whether it goes on."""
        seen, _ = self._see()
        return not seen.state.is_final

    def _see(self) -> tuple[Observation, dict[str, Any]]:
        status = self._status()
        seen = observation(status, self._elapsed)
        for fault in self.history.observe(seen):
            self._told(fault)
        return seen, status

    def _strike(self, fault: PlannedFault) -> None:
        seen, status = self._see()
        if seen.state.is_final:
            return
        record = FaultRecord(seen.at, fault.kind, seconds=fault.seconds, round=seen.round)
        victim = choose(fault, victims(fault.kind, status, self._hosts.allow(fault.kind)))
        if victim is None:
            record.problem = "no worker that it may hit is running"
        else:
            record.where = victim.describe()
            try:
                record.effect = self._hosts.strike(fault, victim)
            except NotDone as error:
                record.problem = str(error)
        self.history.add(record)
        self._told(record)
