"""The kinds of fault, how often each comes, and when: a plan that a seed determines. Pure."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from phalanx._core import amounts

SHORTEST_MEAN = 1.0
"""The shortest mean time between two faults of a kind, in seconds."""


class Kind(StrEnum):
    """What breaks."""

    KILL_WORKER = "kill-worker"
    KILL_AGENT = "kill-agent"
    PAUSE_WORKER = "pause-worker"
    LOSE_HOST = "lose-host"
    CUT = "cut"
    FILL_DISK = "fill-disk"
    SLOW_NETWORK = "slow-network"

    @property
    def lasts(self) -> bool:
        """It is mended after a while; otherwise it is done in a moment."""
        return self not in (Kind.KILL_WORKER, Kind.KILL_AGENT, Kind.LOSE_HOST)

    @property
    def stops_workers(self) -> bool:
        """Workers do not get on because of it: they are gone or paused, or wait for packets."""
        return self not in (Kind.FILL_DISK, Kind.SLOW_NETWORK)

    @property
    def hits_worker(self) -> bool:
        """It is one worker that it concerns, not a host."""
        return self in (Kind.KILL_WORKER, Kind.PAUSE_WORKER)


DURATIONS = {Kind.PAUSE_WORKER: 5.0, Kind.CUT: 10.0, Kind.FILL_DISK: 10.0, Kind.SLOW_NETWORK: 30.0}
"""Seconds that a fault lasts unless that is given."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A kind of fault: every so many seconds on average, for so many seconds."""

    kind: Kind
    every: float
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault that is planned."""

    at: float
    """Seconds from the beginning."""
    kind: Kind
    seconds: float
    """How long it lasts."""
    pick: float
    """Which of those that it may hit then: from 0 for the first to, not quite, 1."""


def parse_rate(kind: Kind, text: str) -> Rate:
    """`30s`, or `1m:5s` for one that lasts five seconds. Raises `ValueError`."""
    every, colon, lasting = text.partition(":")
    if colon and not kind.lasts:
        raise ValueError(f"{text!r}: this fault is over at once; write {every} alone")
    mean = amounts.seconds(every)
    if mean < SHORTEST_MEAN:
        raise ValueError(
            f"{text!r}: faults can come every {SHORTEST_MEAN:g} s on average, not more often"
        )
    seconds = amounts.seconds(lasting) if colon else DURATIONS.get(kind, 0.0)
    if kind.lasts and not seconds:
        raise ValueError(f"{text!r}: the fault must last longer than 0 s")
    return Rate(kind, mean, seconds)


def plan(seed: int, rates: Iterable[Rate]) -> Iterator[PlannedFault]:
    """Faults without end, in the order of time; the same for the same seed.

    Each kind has times of its own: leaving one out does not change the others.
    """
    return heapq.merge(*(_faults(seed, rate) for rate in rates), key=lambda fault: fault.at)


def _faults(seed: int, rate: Rate) -> Iterator[PlannedFault]:
    chance = random.Random(f"{seed} {rate.kind}")  # noqa: S311 it is to be repeatable
    at = 0.0
    while True:
        at += chance.expovariate(1.0 / rate.every)
        yield PlannedFault(at, rate.kind, rate.seconds, chance.random())
