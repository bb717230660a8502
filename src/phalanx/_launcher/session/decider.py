"""Who decides for an app, as seen by whoever carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from phalanx._core.ids import AgentId
from phalanx._core.rounds import Outcome, Round
from phalanx._launcher.planning.plan import Plan
from phalanx._rendezvous.coordinator import Coordinator
from phalanx._rendezvous.membership import Host
from phalanx._rendezvous.protocol import (
    CoordinatorAction,
    CoordinatorEvent,
    CoordinatorSettings,
    Phase,
    ProgressEvent,
)
from phalanx._rendezvous.restart_policy import RESTART_POLICIES

Act = Callable[[CoordinatorAction], None]

_FAILURE_WINDOW = 0.1
_START_WINDOW = 8.0
"""Once a host could not be used, how long the others are waited for: to name all that cannot be."""
_LAST_CALL = 8.0
"""Once enough hosts are there, how long the rest of the list is waited for."""


class Decider(Protocol):
    """Takes events; what is to be done comes back through `act`, at once or later."""

    @property
    def phase(self) -> Phase:
        """Where the app stands."""

    @property
    def round(self) -> Round | None:
        """The last round that began."""

    @property
    def outcomes(self) -> Mapping[int, Outcome]:
        """How the round's workers that have ended did, by global rank, as far as is known here."""

    @property
    def running(self) -> frozenset[AgentId]:
        """The agents whose workers have been started, as far as is known here."""

    @property
    def is_over(self) -> bool:
        """No other round will follow."""

    @property
    def awaited(self) -> tuple[str, ...]:
        """The hosts that another round waits for, where too few are left."""

    @property
    def deadline(self) -> float | None:
        """When a `TickEvent` is due, by the clock it was given."""

    def round_of(self, agent: AgentId) -> int | None:
        """The number of the round that an agent is in."""

    async def start(self, act: Act, fail: Callable[[BaseException], None]) -> None:
        """Begin, on the loop that everything else is called on; `fail` is told what ends it."""

    def tell(self, event: CoordinatorEvent) -> None:
        """Something has happened."""

    def take_progress(self) -> list[ProgressEvent]:
        """What has come to pass since the last time."""

    async def close(self) -> None:
        """The app has ended, or is given up."""


class LocalDecider:
    """Decides on this very loop, with a coordinator of its own."""

    def __init__(self, coordinator: Coordinator, now: Callable[[], float]) -> None:
        """`now` is the clock that the coordinator goes by."""
        self.coordinator = coordinator
        self._now = now
        self._act: Act = lambda _: None

    @property
    def phase(self) -> Phase:
        """Where the app stands."""
        return self.coordinator.phase

    @property
    def round(self) -> Round | None:
        """The last round that began."""
        return self.coordinator.round

    @property
    def outcomes(self) -> Mapping[int, Outcome]:
        """How the round's workers that have ended did."""
        return self.coordinator.outcomes

    @property
    def running(self) -> frozenset[AgentId]:
        """The agents whose workers have been started."""
        return self.coordinator.running

    @property
    def is_over(self) -> bool:
        """No other round will follow."""
        return self.coordinator.is_over

    @property
    def awaited(self) -> tuple[str, ...]:
        """The hosts that another round waits for."""
        return self.coordinator.awaited

    @property
    def deadline(self) -> float | None:
        """When a `TickEvent` is due."""
        return self.coordinator.deadline

    def round_of(self, agent: AgentId) -> int | None:
        """The number of the round that an agent is in."""
        return self.coordinator.round_of(agent)

    async def start(self, act: Act, fail: Callable[[BaseException], None]) -> None:
        """Begin."""
        self._act = act

    def tell(self, event: CoordinatorEvent) -> None:
        """Decide, and have it done."""
        for action in self.coordinator.handle(event, self._now()):
            self._act(action)

    def take_progress(self) -> list[ProgressEvent]:
        """What has come to pass since the last time."""
        return self.coordinator.take_progress()

    async def close(self) -> None:
        """Nothing is held."""


MakeDecider = Callable[[Plan, Callable[[], float]], Decider]
"""Makes the one that decides, given the plan and the clock to go by."""


def decide_locally(plan: Plan, now: Callable[[], float]) -> Decider:
    """The launcher decides for its own hosts."""
    return LocalDecider(make_coordinator(plan, now()), now)


def make_coordinator(plan: Plan, now: float) -> Coordinator:
    """One for the launcher's own hosts."""
    options = plan.options
    count = len(plan.hosts)
    fewest, most = plan.bounds
    settings = CoordinatorSettings(
        hosts=tuple(host_of(plan, member.agent) for member in plan.members),
        start_timeout=options.start_timeout,
        stop_grace=options.stop_grace,
        failure_window=_FAILURE_WINDOW if count > 1 else 0.0,
        start_window=_START_WINDOW,
        min_hosts=fewest,
        max_hosts=most,
        last_call=_LAST_CALL,
        max_restarts=options.max_restarts,
        backoff=options.restart_backoff,
        same_failures=options.same_failures,
        host_failures=options.host_failures,
    )
    restarts = RESTART_POLICIES[options.restart](settings)
    return Coordinator(settings, restarts, now)


def host_of(plan: Plan, agent: AgentId) -> Host:
    """A host of the plan; the order is that of the list."""
    member = plan.member(agent)
    return Host(agent, member.hostname, member.workers, (plan.index(agent),))
