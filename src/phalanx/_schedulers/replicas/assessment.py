"""How an app stands, from what the engine has of it; and what is to be done next. Pure.

The engine keeps every container, with when and how it ended. `AppLifecycle` is told of these ends
in their order, each time anew, and so comes to the same answer in whichever process asks: there is
no state but the engine's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from phalanx._schedulers.replicas.lifecycle import (
    AppLifecycle,
    FinishApp,
    LifecycleAction,
    ReplicaKey,
    StartReplica,
    StopReplica,
)
from phalanx._schedulers.replicas.lifecycle_record import LifecycleRecord
from phalanx._schedulers.replicas.replica_end import ReplicaEnd
from phalanx._specs import AppState

_HALF_SUBMITTED = 300.0
"""Seconds after which an app with too few containers, none of them started, is given up."""
REMOVED = "its container was removed"


@dataclass(frozen=True)
class SeenContainer:
    """A container, as the engine describes it."""

    key: ReplicaKey
    attempt: int
    id: str
    state: str
    """The engine's word: created, running, paused, exited, …"""
    exit_code: int = 0
    error: str = ""
    """Why it could not be started, in the engine's words."""
    out_of_memory: bool = False
    started: float | None = None
    finished: float | None = None
    memory: int = 0
    """Its limit in bytes; 0: none."""
    image: str = ""
    program: str = ""
    """What it runs."""
    hostname: str = ""
    pid: int | None = None
    gpus: tuple[str, ...] = ()
    """The numbers of those that it has."""

    @property
    def has_started(self) -> bool:
        """It runs, or has run."""
        return self.started is not None

    @property
    def could_not_start(self) -> bool:
        """The engine has tried, and has said why it could not."""
        return self.state == "created" and bool(self.error)

    @property
    def has_ended(self) -> bool:
        """It does not run any more, and never will."""
        return self.could_not_start or self.state in ("exited", "dead", "removing", "stopped")

    @property
    def end(self) -> ReplicaEnd:
        """How it ended. The first process gives 128 and more for what a signal killed."""
        code = self.exit_code
        if self.could_not_start:
            return ReplicaEnd(error=self.error)
        return ReplicaEnd.of(128 - code if 128 < code <= 128 + 64 else code)


@dataclass(frozen=True)
class SeenApp:
    """All that the engine has of an app."""

    app_id: str
    name: str
    session: str
    user: str
    lifecycle_record: LifecycleRecord
    containers: tuple[SeenContainer, ...]
    cancelled: float | None = None
    """When it was, in seconds since 1970."""


@dataclass
class Assessment:
    """How an app stands, and what is to be done."""

    lifecycle: AppLifecycle
    state: AppState
    message: str = ""
    current: dict[ReplicaKey, SeenContainer | None] = field(default_factory=dict)
    """The latest container of each replica."""
    to_start: list[tuple[ReplicaKey, int]] = field(default_factory=list)
    """Replicas, and the attempt."""
    to_stop: list[SeenContainer] = field(default_factory=list)
    since: float | None = None
    """When what is to be done became so."""

    @property
    def is_due(self) -> bool:
        """Something is to be done."""
        return bool(self.to_start or self.to_stop)


class _Replay:
    def __init__(self, app: SeenApp, now: float) -> None:
        self._app = app
        self._now = now
        self._known = {(c.key, c.attempt): c for c in app.containers}
        self._anything_started = any(
            c.has_started or c.could_not_start or c.attempt for c in app.containers
        )
        self.lifecycle = AppLifecycle(app.lifecycle_record.roles)
        self.running: dict[ReplicaKey, int] = {}
        """The attempts that go on."""
        self.stopping: set[ReplicaKey] = set()
        self.final: AppState | None = None
        self.last: float | None = None

    def run(self) -> None:
        """Tell the lifecycle all that has happened."""
        self._take(self.lifecycle.begin())
        cancelled = self._app.cancelled
        while self.final is None:
            ends = sorted(
                (moment, key) for key in self.running if (moment := self._ended(key)) is not None
            )
            if cancelled is not None and (not ends or cancelled <= ends[0][0]):
                self.last, cancelled = cancelled, None
                self._take(self.lifecycle.cancel())
            elif ends:
                moment, key = ends[0]
                self.last = None if math.isinf(moment) else moment
                self._end(key)
            else:
                return

    def container(self, key: ReplicaKey) -> SeenContainer | None:
        """The latest of a replica's."""
        return self._known.get((key, self.lifecycle.retries[key]))

    def _ended(self, key: ReplicaKey) -> float | None:
        """When a replica did; None while it goes on."""
        found = self.container(key)
        if self.is_removed(key) or (found is not None and found.could_not_start):
            return -math.inf  # nobody knows when: before all others, so that it stays the cause
        if found is not None and found.has_ended:
            return found.finished or 0.0
        is_stopped_before = key in self.stopping and (found is None or not found.has_started)
        return math.inf if is_stopped_before else None

    def is_removed(self, key: ReplicaKey) -> bool:
        """Its container was there, and is not."""
        is_first = self.lifecycle.retries[key] == 0
        return is_first and self.container(key) is None and self._anything_started

    def _end(self, key: ReplicaKey) -> None:
        found = self.container(key)
        asked = key in self.stopping
        succeeded = found is not None and found.has_ended and found.end.succeeded
        del self.running[key]
        self.stopping.discard(key)
        self._take(self.lifecycle.ended(key, succeeded=succeeded, asked=asked))

    def _take(self, actions: Iterable[LifecycleAction]) -> None:
        for action in actions:
            match action:
                case StartReplica(key):
                    self.running[key] = self.lifecycle.retries[key]
                    self.stopping.discard(key)
                case StopReplica(key):
                    self.stopping.add(key)
                case FinishApp(state):
                    self.final = state

    @property
    def is_half_submitted(self) -> bool:
        """Whoever submits it has not made all containers; or never will."""
        first = sum(c.attempt == 0 for c in self._app.containers)
        return not self._anything_started and first < self._app.lifecycle_record.num_replicas

    @property
    def is_given_up(self) -> bool:
        """It was killed meanwhile."""
        return self._now - self._app.lifecycle_record.created > _HALF_SUBMITTED


def assess(app: SeenApp, now: float) -> Assessment:
    """How an app stands at a time, in seconds since 1970."""
    replay = _Replay(app, now)
    replay.run()
    life = replay.lifecycle
    current = {key: replay.container(key) for key in life.states}
    if replay.final is None and replay.is_half_submitted:
        if not replay.is_given_up:
            pending = dict.fromkeys(life.states, AppState.PENDING)
            life.states.update(pending)
            return Assessment(life, AppState.PENDING, current=current)
        message = "it was not submitted completely: whoever did was killed"
        life.states.update(dict.fromkeys(life.states, AppState.FAILED))
        return Assessment(life, AppState.FAILED, message, current)
    if replay.final is not None:
        return Assessment(life, replay.final, current=current)
    assessed = Assessment(life, AppState.RUNNING, current=current, since=replay.last)
    for key, attempt in replay.running.items():
        found = current[key]
        if key in replay.stopping:
            if found is not None:
                assessed.to_stop.append(found)
        elif found is None or not found.has_started:
            assessed.to_start.append((key, attempt))
            life.states[key] = AppState.PENDING
    if not any(c.has_started for c in app.containers):
        assessed.state = AppState.PENDING
    return assessed
