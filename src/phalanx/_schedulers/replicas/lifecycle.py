"""What follows when a replica ends, for an app on a scheduler of ours. Pure.

`AppLifecycle.ended(…)` and `AppLifecycle.cancel()` give the actions to take. The first failure that
no retry makes good is the app's; everything else is stopped then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx._specs import AppState, RetryPolicy

ReplicaKey = tuple[str, int]
"""A replica: its role, and its number in it."""


@dataclass(frozen=True)
class RoleLifecycle:
    """A role, as far as its lifecycle is concerned."""

    name: str
    replicas: int
    max_retries: int = 0
    policy: RetryPolicy = RetryPolicy.APPLICATION
    min_replicas: int | None = None
    """With so many left, the app does without those that were lost with their hosts."""


@dataclass(frozen=True)
class StartReplica:
    """Start a replica, for the first time or again."""

    replica: ReplicaKey


@dataclass(frozen=True)
class StopReplica:
    """Have a replica end: SIGTERM, after the grace SIGKILL."""

    replica: ReplicaKey


@dataclass(frozen=True)
class FinishApp:
    """All replicas have ended, and none will be started again."""

    state: AppState


LifecycleAction = StartReplica | StopReplica | FinishApp


class AppLifecycle:
    """Where an app stands, and what it does next."""

    def __init__(self, parts: Sequence[RoleLifecycle]) -> None:
        """Nothing has been started."""
        self._parts = {part.name: part for part in parts}
        self._keys = [(part.name, i) for part in parts for i in range(part.replicas)]
        self._running: set[ReplicaKey] = set()
        self._again: list[set[ReplicaKey]] = []
        """Replicas to start together, each set when the running ones in it have stopped."""
        self._spent: dict[object, int] = {}
        """Retries, by replica or by the role that failed."""
        self._state: AppState | None = None
        """How it will end, once that is certain."""
        self.retries: dict[ReplicaKey, int] = dict.fromkeys(self._keys, 0)
        self.restarts = 0
        """How often something was started again."""
        self.first_failure: ReplicaKey | None = None
        self.states: dict[ReplicaKey, AppState] = dict.fromkeys(self._keys, AppState.PENDING)

    def begin(self) -> list[LifecycleAction]:
        """Start everything."""
        return self._start(self._keys)

    def ended(
        self,
        replica: ReplicaKey,
        *,
        succeeded: bool,
        asked: bool = False,
        lost: bool = False,
    ) -> list[LifecycleAction]:
        """A replica that was started has ended.

        `asked`: it had been stopped before it did; `lost`: with its host, not by itself.
        """
        self._running.discard(replica)
        if succeeded:
            self.states[replica] = AppState.SUCCEEDED
        else:
            self.states[replica] = AppState.CANCELLED if asked else AppState.FAILED
        if self._state is None and not succeeded and not self._is_stopping(replica):
            if lost and self._can_do_without(replica):
                return self._go_on()
            return self._failed(replica)
        return self._go_on()

    def cancel(self) -> list[LifecycleAction]:
        """Someone wants the end. Idempotent."""
        if self._state is not None:
            return []
        self._state = AppState.CANCELLED
        return self._stop_all()

    def fail(self) -> list[LifecycleAction]:
        """It cannot go on, for a reason other than a replica's. Idempotent."""
        if self._state is not None:
            return []
        self._state = AppState.FAILED
        return self._stop_all()

    def _can_do_without(self, replica: ReplicaKey) -> bool:
        """Enough others of its role run. One that has ended cannot take its part over."""
        part = self._parts[replica[0]]
        left = [k for k in self._running if k[0] == part.name and not self._is_stopping(k)]
        return part.min_replicas is not None and len(left) >= part.min_replicas

    def _failed(self, replica: ReplicaKey) -> list[LifecycleAction]:
        part = self._parts[replica[0]]
        scope = {
            RetryPolicy.REPLICA: [replica],
            RetryPolicy.ROLE: [key for key in self._keys if key[0] == replica[0]],
            RetryPolicy.APPLICATION: self._keys,
        }[part.policy]
        account = replica if part.policy is RetryPolicy.REPLICA else replica[0]
        spent = self._spent.get(account, 0)
        if spent >= part.max_retries:
            self._state = AppState.FAILED
            self.first_failure = replica
            return self._stop_all()
        self._spent[account] = spent + 1
        self.restarts += 1
        stops = [StopReplica(k) for k in scope if k in self._running and not self._is_stopping(k)]
        together = set(scope).union(*(group for group in self._again if group & set(scope)))
        self._again = [group for group in self._again if not group & together] + [together]
        return [*stops, *self._go_on()]

    def _is_stopping(self, replica: ReplicaKey) -> bool:
        """It has been stopped, to be started again."""
        return any(replica in group for group in self._again)

    def _stop_all(self) -> list[LifecycleAction]:
        stops = [
            StopReplica(k) for k in self._keys if k in self._running and not self._is_stopping(k)
        ]
        self._again.clear()
        for key in self._keys:
            if self.states[key] is AppState.PENDING:
                self.states[key] = AppState.CANCELLED
        return [*stops, *self._go_on()]

    def _go_on(self) -> list[LifecycleAction]:
        stopped = [group for group in self._again if not group & self._running]
        self._again = [group for group in self._again if group & self._running]
        again = [key for key in self._keys if any(key in group for group in stopped)]
        for key in again:
            self.retries[key] += 1
        if again:
            return self._start(again)
        if self._running or self._again:
            return []
        return [FinishApp(self._state or AppState.SUCCEEDED)]

    def _start(self, keys: Sequence[ReplicaKey]) -> list[LifecycleAction]:
        self._running.update(keys)
        for key in keys:
            self.states[key] = AppState.RUNNING
        return [StartReplica(key) for key in keys]
