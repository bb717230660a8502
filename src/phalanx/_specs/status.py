"""How an app stands."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from phalanx.errors import AppStatusError

if TYPE_CHECKING:
    from phalanx._core.rounds import Outcome


class AppState(StrEnum):
    """Where an app, or one of its replicas, stands; ordered as they follow each other.

    In JSON, and where a text is wanted, it is its name.
    """

    UNSUBMITTED = "UNSUBMITTED"
    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"

    @property
    def is_final(self) -> bool:
        """It will not change any more."""
        return self in (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)

    def __lt__(self, other: str) -> bool:
        """Whether it comes before the other in an app's life."""
        return _position(self) < _position(other)

    def __le__(self, other: str) -> bool:
        """Whether it does not come after the other."""
        return _position(self) <= _position(other)

    def __gt__(self, other: str) -> bool:
        """Whether it comes after the other in an app's life."""
        return _position(self) > _position(other)

    def __ge__(self, other: str) -> bool:
        """Whether it does not come before the other."""
        return _position(self) >= _position(other)


def _position(state: str) -> int:
    """How far an app is that stands there. Raises `ValueError` for what is no state."""
    return list(AppState).index(AppState(state))


def is_terminal(state: AppState) -> bool:
    """Whether a state will not change any more.

    Args:
        state: An app's or a replica's.
    """
    return state.is_final


def is_started(state: AppState) -> bool:
    """Whether it runs, or has run.

    Args:
        state: An app's or a replica's.
    """
    return state is AppState.RUNNING or state.is_final


_SAYS_HOW = re.compile(r"rank \d+ on \S+ (?:exited|was) ")
"""How a worker ended, as `phalanx torchrun` reports it: that it then exited with 1 says no more."""


@dataclass(frozen=True)
class ReplicaStatus:
    """One replica of a role at one moment."""

    id: int
    """Its number in the role, from 0."""
    role: str
    """The role's name."""
    state: AppState
    """Where it stands."""
    hostname: str = ""
    """Where it runs, if that is known."""
    exit_code: int | None = None
    """What it exited with, if it did."""
    signal: str | None = None
    """What killed it, such as `SIGKILL`, if something did."""
    error: str = ""
    """What went wrong, in one line: the first error it has reported or printed."""
    pid: int | None = None
    """Its process, if that is known."""
    retries: int = 0
    """How often it was started again."""
    traceback: str = ""
    """The traceback of the error, if it has reported one."""
    log: str | None = None
    """The file of its stderr, if that is known."""

    @property
    def structured_error_msg(self) -> str:
        """The error, by the name that TorchX has for it."""
        return self.error

    def describe(self) -> str:
        """How it ended, in a few words."""
        if _SAYS_HOW.match(self.error):
            return f"failed: {self.error}"
        if self.signal is not None:
            how = f"was killed by {self.signal}"
        elif self.exit_code is not None:
            how = f"exited with code {self.exit_code}"
        else:
            return f"failed: {self.error}" if self.error else "failed"
        return f"{how}: {self.error}" if self.error else how


@dataclass(frozen=True)
class RoleStatus:
    """The replicas of one role."""

    role: str
    """The role's name."""
    replicas: tuple[ReplicaStatus, ...]
    """Its replicas, in the order of their numbers."""


class HostState(StrEnum):
    """Where a host of a launch stands."""

    STARTING = "starting"
    """Its agent is being started, or the first round has not begun."""
    ACTIVE = "active"
    """It is in the round."""
    SPARE = "spare"
    """It is there, and waits for a round with room for it."""
    LOST = "lost"
    """It is not there; `reason` says why, where that is known."""
    SET_ASIDE = "set aside"
    """It failed its checks, as `reason` says. It is used again when it passes them."""
    EXCLUDED = "excluded"
    """It is not used any more: too many failures began there, as `reason` says."""


@dataclass(frozen=True)
class HostStatus:
    """One host of a launch at one moment."""

    hostname: str
    """The host's name, as the launcher knows it."""
    state: HostState
    """Where it stands."""
    ranks: tuple[int, ...] = ()
    """Its ranks in the round; none unless it is active."""
    reason: str = ""
    """Why it is lost or excluded."""
    pid: int | None = None
    """Its agent's."""


class RankState(StrEnum):
    """Where a worker of a launch stands; how it ended, once it has."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    """It was told to end."""
    RETURNED = "returned"
    RAISED = "raised"
    EXITED = "exited"
    KILLED = "killed"
    HUNG = "hung"
    """It did not get on, and was killed."""
    LOST = "lost"
    UNKNOWN = "unknown"
    """The app has ended, and how this worker did is not known."""


@dataclass(frozen=True)
class WorkerStatus:
    """One worker of a launch's last round at one moment."""

    rank: int
    """The global rank."""
    hostname: str
    """The host's name, as the launcher knows it."""
    local_rank: int
    """Its number among the workers of its host, from 0."""
    state: RankState
    """Where it stands."""
    pid: int | None = None
    """Its process, once it has one."""
    log: str | None = None
    """The file of its output, where it has one of its own."""
    steps: int = 0
    """How many steps it has done in this round, by its calls of `phalanx.step()`."""
    step_seconds: float | None = None
    """The median time of its last steps, 64 at most."""
    outcome: Outcome | None = field(default=None, repr=False)
    """How it ended, once it has."""


@dataclass(frozen=True)
class StepStatus:
    """How the ranks of a launch's last round get on, by their calls of `phalanx.step()`."""

    done: int
    """How many steps every rank that counts them has done."""
    seconds: float
    """How long a step takes: the median over ranks of their medians."""
    slowest_rank: int
    """The rank whose steps take longest."""
    slowest_hostname: str
    """Its host."""
    slowest_seconds: float
    """How long they take there."""

    @property
    def excess(self) -> float:
        """By how much the slowest is slower than the median: 0.25 for a quarter."""
        return self.slowest_seconds / self.seconds - 1 if self.seconds > 0 else 0.0

    @classmethod
    def of(cls, workers: Iterable[WorkerStatus]) -> StepStatus | None:
        """What follows from the workers' own.

        Args:
            workers: How each stands.

        Returns:
            The steps of all; None while none has done two.
        """
        timed = [(w.step_seconds, w) for w in workers if w.step_seconds is not None]
        if not timed:
            return None
        from phalanx._core.heartbeats import median

        slowest_seconds, slowest = max(timed, key=lambda one: (one[0], -one[1].rank))
        return cls(
            done=min(worker.steps for _, worker in timed),
            seconds=median(seconds for seconds, _ in timed),
            slowest_rank=slowest.rank,
            slowest_hostname=slowest.hostname,
            slowest_seconds=slowest_seconds,
        )

    def describe(self) -> str:
        """In one line."""
        text = f"{self.done} steps, {self.seconds:.3g} s each"
        if self.excess < 0.005:
            return text
        who = f"rank {self.slowest_rank} on {self.slowest_hostname}"
        return f"{text}; slowest: {who}, {self.slowest_seconds:.3g} s (+{self.excess:.0%})"


@dataclass(frozen=True)
class RoundStatus:
    """A round of a launch that has begun, and why it did."""

    number: int
    """Its number, from 1."""
    began: float
    """Seconds since 1970."""
    hosts: tuple[str, ...]
    """The hosts in it, in rank order."""
    world_size: int
    """How many workers it has."""
    restarts: int
    """How many restarts it had taken by then."""
    cause: str = ""
    """What ended the round before, in one line; empty for the first."""


@dataclass(frozen=True)
class AppStatus:
    """An app at one moment."""

    app: str
    """Its id."""
    state: AppState
    """Where it stands."""
    message: str = ""
    """What went wrong, or is waited for, in one line; empty while there is nothing to say."""
    ended: tuple[Outcome, ...] = ()
    """How the workers of a launch that have ended did, in rank order."""
    seconds: float | None = None
    """How long it has been going, or went, where that is known."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """When a launch reached what, in seconds since its start: see `docs/performance.md`."""
    roles: tuple[RoleStatus, ...] = ()
    """The replicas of an app on a scheduler, as far as it tells of them."""
    num_restarts: int = 0
    """How often it was started anew."""
    exit_code: int | None = None
    """What `phalanx run --wait` exits with: that of the replica that failed first."""
    ui_url: str | None = None
    """Where a browser shows it."""
    round: int = 0
    """The number of a launch's last round; 0 before the first."""
    hosts: tuple[HostStatus, ...] = ()
    """The hosts of a launch: those in the round in rank order, then spares, lost, excluded ones."""
    workers: tuple[WorkerStatus, ...] = ()
    """The workers of a launch's last round, in rank order."""
    rounds: tuple[RoundStatus, ...] = ()
    """A launch's last rounds, the latest last."""
    steps: StepStatus | None = None
    """How a launch's ranks get on, where they call `phalanx.step()`."""
    warnings: tuple[str, ...] = ()
    """What did not end the app and is worth knowing, such as files that were not copied back."""

    @property
    def msg(self) -> str:
        """The message, by the name that TorchX has for it."""
        return self.message

    @property
    def structured_error_msg(self) -> str:
        """The first error of a replica, by the name that TorchX has for it."""
        return next((r.error for role in self.roles for r in role.replicas if r.error), "")

    def is_terminal(self) -> bool:
        """It will not change any more."""
        return self.state.is_final

    def raise_for_status(self) -> None:
        """Do nothing if the app has succeeded.

        Raises:
            AppStatusError: It has not; `status` is this.
        """
        if self.state is not AppState.SUCCEEDED:
            raise AppStatusError(f"{self.app} did not succeed: {self.format()}", status=self)

    def format(self, filter_roles: Collection[str] | None = None) -> str:
        """The status as text, a line for each replica.

        Args:
            filter_roles: Show only replicas of these roles; by default all.
        """
        lines = [f"{self.app}: {self.state}"]
        if self.num_restarts:
            lines.append(f"  restarts: {self.num_restarts}")
        lines += [f"  {text}" for text in (self.message, self.ui_url) if text]
        lines += [f"  warning: {text}" for text in self.warnings]
        for role in self._chosen(filter_roles):
            for replica in role.replicas:
                ended = replica.exit_code is not None or replica.signal or replica.error
                how = f" {replica.describe()}" if ended else ""
                lines.append(f"  {role.role}/{replica.id}: {replica.state}{how}")
        return "\n".join(lines)

    def __str__(self) -> str:
        """As `format`."""
        return self.format()

    def to_json(self, filter_roles: Collection[str] | None = None) -> dict[str, Any]:
        """The status as plain dicts, lists and texts.

        Args:
            filter_roles: Only replicas of these roles; by default all.
        """
        roles = [asdict(role) for role in self._chosen(filter_roles)]
        for role in roles:
            role["replicas"] = [
                {**replica, "state": str(replica["state"])} for replica in role["replicas"]
            ]
        return {
            "app": self.app,
            "state": str(self.state),
            "num_restarts": self.num_restarts,
            "roles": roles,
            "msg": self.message,
            "structured_error_msg": self.structured_error_msg,
            "url": self.ui_url,
        }

    def _chosen(self, roles: Collection[str] | None) -> list[RoleStatus]:
        return [role for role in self.roles if not roles or role.role in roles]


@dataclass(frozen=True)
class AppSummary:
    """An app in a listing."""

    app_id: str
    """Its id."""
    state: AppState
    """Where it stands."""
    name: str = ""
    """Its name, where it is known."""
    app_handle: str = ""
    """Its handle, `SCHEDULER://SESSION/APP`."""
    seconds: float | None = None
    """How long it has run, or ran, where it is known."""
