"""The host that decides: it carries the coordinator, and speaks for it to the others."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from phalanx import __version__
from phalanx import _wire as wire
from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Round
from phalanx._core.sanitize import sanitize_line
from phalanx._logs import logger
from phalanx._rendezvous.coordinator import Coordinator
from phalanx._rendezvous.membership import Host, Order, natural
from phalanx._rendezvous.protocol import (
    AgentGoneEvent,
    BeginRoundAction,
    CoordinatorAction,
    CoordinatorEvent,
    ExpelAction,
    FinishAction,
    HaltRoundAction,
    Inheritance,
    JoinedEvent,
    Phase,
    Policy,
    PreemptedEvent,
    RoundClearedEvent,
    WorkerEndedEvent,
    WorkersStartedEvent,
)
from phalanx._rendezvous.tcp.link import Link
from phalanx._rendezvous.tcp.verdicts import frames_of
from phalanx._wire import rendezvous_frames

Do = Callable[[Coroutine[None, None, Any]], Any]
_MOST_REFUSALS = 8
"""So many are told; whoever has no token can have others refused again and again."""


class Leader:
    """Decides for itself and for all that are linked to it."""

    def __init__(
        self,
        own: AgentId,
        policy: Policy,
        run_id: str,
        now: Callable[[], float],
        act: Callable[[CoordinatorAction], None],
        do: Do,
        know: Callable[[Link], None],
        past: Inheritance | None = None,
    ) -> None:
        """`act` is told what concerns this host; `do` runs what sends; `know` is told who is in."""
        self.coordinator = Coordinator(policy, now(), past)
        self.contacts: dict[AgentId, Endpoint] = {}
        self._takes_over = past is not None
        self._own = own
        self._policy = policy
        self._run_id = run_id
        self._now = now
        self._act = act
        self._do = do
        self._know = know
        self._keys: dict[AgentId, str] = {}
        """What agents are known by: an id is told to all, and could be taken by another."""
        self._refusals: set[str] = set()
        self._most_links = max(policy.most, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._links: dict[AgentId, Link] = {}
        self._held: dict[AgentId, rendezvous_frames.JoinRequest] = {}
        """Those that have come and still have workers of an old round."""

    @property
    def links(self) -> list[Link]:
        """Those that take part, or wait."""
        return list(self._links.values())

    @property
    def is_taking_over(self) -> bool:
        """Those of a round that another has decided on are not all clear of it yet."""
        return self._takes_over and self.coordinator.phase is Phase.STOPPING

    def count_out(self, agent: AgentId) -> None:
        """A member of the last round has certainly ended."""
        now = self._now()
        if agent not in self._links:
            self.feed(AgentGoneEvent(agent, "it has ended", Interval(now, now)))

    def feed(self, event: CoordinatorEvent) -> None:
        """Decide, and have it done here and there."""
        for action in self.coordinator.handle(event, self._now()):
            self._carry_out(action)

    def join(self, meet: rendezvous_frames.JoinRequest) -> None:
        """One takes part: another host, or this; once it is clear of its last round.

        But for one whose round is being stopped: that it is clear of it is awaited then.
        """
        self.contacts[meet.agent] = meet.contact
        self._keys[meet.agent] = meet.key
        self._held.pop(meet.agent, None)
        if not meet.clear and not self.coordinator.awaits(meet.agent):
            self._held[meet.agent] = meet
            return
        self.coordinator.catch_up(meet.last_round, meet.restarts)
        endpoint = Endpoint(meet.contact.address, meet.port)
        host = Host(meet.agent, meet.hostname, meet.workers, order_of(meet))
        number = self.coordinator.round_of(meet.agent)
        self.feed(JoinedEvent(meet.agent, endpoint, host, meet.torch))
        if meet.clear and number is not None:
            # Of whatever round it was in, which may be later than the one that we know of.
            self.feed(RoundClearedEvent(meet.agent, number, endpoint))

    def problem_of(self, meet: rendezvous_frames.JoinRequest) -> str:
        """Why one cannot take part; empty if it can."""
        if meet.version != __version__:
            return f"it runs phalanx {meet.version}, this host {__version__}"
        if meet.run_id != self._run_id:
            return f"it belongs to another run, {meet.run_id[:80]!r}"
        if self._keys.get(meet.agent, meet.key) != meet.key:
            return "it uses the identity of another host"
        if meet.agent not in self._links and len(self._links) >= self._most_links:
            return f"the maximum of {self._most_links} hosts has already joined"
        if meet.restarts > self._policy.max_restarts:
            return f"it has seen {meet.restarts} restarts, of at most {self._policy.max_restarts}"
        bounds = (self._policy.least, self._policy.most)
        if meet.bounds != bounds:
            told, here = _bounds(meet.bounds), _bounds(bounds)
            return f"it was started for {told} hosts, the others for {here}"
        return ""

    async def serve(self, link: Link, meet: rendezvous_frames.JoinRequest) -> None:
        """Hear one host to its end."""
        if problem := self.problem_of(meet):
            self._say_refusal(meet, problem)
            await link.send(rendezvous_frames.JoinRefused(reason=problem))
            link.close()
            return
        if (before := self._links.get(meet.agent)) is not None:
            self.lose(before, "it rejoined", closed=True)
        self._know(link)
        link.agent, link.last_round = meet.agent, meet.last_round
        self._links[meet.agent] = link
        await link.send(rendezvous_frames.JoinAccepted(leader=self._own))
        await link.ping()
        round_ = self.coordinator.round
        if round_ is not None and all(m.agent != meet.agent for m in round_.members):
            # It may have to wait, and then must know whom to turn to when we are lost.
            await link.send(rendezvous_frames.RoundFormed.make(round_, self._own, self.contacts))
        self.join(meet)
        reason = "its connection was closed"
        async for frame in link.frames():
            if link.is_over:
                continue
            try:
                self._hear(link, frame)
            except Exception as error:  # noqa: BLE001 what one says must not end the others
                reason = f"it sent a {type(frame).__name__} that ended in {error!r}"
                break
        self.lose(link, reason, closed=True)

    def _say_refusal(self, meet: rendezvous_frames.JoinRequest, problem: str) -> None:
        """Say it on this host as well, a few times: whoever looks here should see why few come."""
        said = f"{sanitize_line(meet.hostname)} cannot join: {sanitize_line(problem)}"
        if said not in self._refusals and len(self._refusals) < _MOST_REFUSALS:
            self._refusals.add(said)
            logger.warning("phalanx: %s", said)

    def _hear(self, link: Link, frame: wire.Frame) -> None:
        agent = link.agent
        match frame:
            case wire.WorkersStarted():
                self.feed(WorkersStartedEvent(agent, frame.round))
            case wire.WorkerEnded() if self._is_of(agent, frame):
                when = link.clock.interval(frame.outcome.clock)
                self.feed(WorkerEndedEvent(agent, frame.round, frame.outcome, when))
            case wire.RoundCleared():
                place = Endpoint(self.contacts[agent].address, frame.port) if frame.port else None
                number = frame.round
                if (meet := self._held.get(agent)) is not None:
                    self.join(replace(meet, clear=True, port=frame.port or meet.port))
                    return
                if number == link.last_round:  # as above
                    number = self.coordinator.round_of(agent) or number
                self.feed(RoundClearedEvent(agent, number, place))
            case rendezvous_frames.JoinRequest() if frame.agent == agent and not self.problem_of(
                frame
            ):
                self.join(frame)  # its own agent was lost, and is there again
            case wire.AgentGone():
                self.feed(AgentGoneEvent(agent, frame.message, self._lately(link)))
            case wire.Preempted():
                self.feed(PreemptedEvent(agent))
            case wire.ShutDown():
                self.lose(link, "it was told to leave", closed=True)

    def _is_of(self, agent: AgentId, report: wire.WorkerEnded) -> bool:
        """A worker of the agent's own."""
        round_ = self.coordinator.round
        members = () if round_ is None else round_.members
        return any(m.agent == agent and report.outcome.rank in m.ranks for m in members)

    def lose(self, link: Link, reason: str, *, closed: bool) -> None:
        """One is not there any more."""
        if link.is_over or self._links.get(link.agent) is not link:
            return
        del self._links[link.agent]
        link.close()
        self.feed(AgentGoneEvent(link.agent, reason, self._lately(link), closed))

    def _lately(self, link: Link) -> Interval:
        return Interval(link.last_heard, time.monotonic())

    # ── what was decided ──────────────────────────────────────────────────────

    def _carry_out(self, action: CoordinatorAction) -> None:
        match action:
            case BeginRoundAction(round_):
                assemble = rendezvous_frames.RoundFormed.make(round_, self._own, self.contacts)
                self._tell(None, assemble)  # those that wait must know whom to turn to as well
                self._act(action)
            case HaltRoundAction(number, grace, stacks=stacks):
                stop = wire.HaltRound(round=number, grace=grace, stacks=stacks)
                self._tell(self.coordinator.round, stop)
                self._act(action)
            case ExpelAction(agent, reason) if agent in self._links:
                self.lose(self._links[agent], reason, closed=False)
            case FinishAction(verdict):
                for link in self.links:
                    for frame in frames_of(verdict):
                        self._do(link.send(frame))
                self._act(action)
            case _:
                self._act(action)

    def _tell(self, round_: Round | None, frame: wire.Frame) -> None:
        """Tell the members of a round, or everybody."""
        members = self._links.keys() if round_ is None else {m.agent for m in round_.members}
        data = wire.encode(frame)  # once: a round of many hosts is long
        for agent, link in self._links.items():
            if agent in members:
                if agent not in self._held:
                    link.last_round = 0
                self._do(link.send_encoded(data))


def order_of(meet: rendezvous_frames.JoinRequest) -> Order:
    """Where a host stands in line: by the rank that it was given, or by its name."""
    if meet.node_rank is not None:
        return (0, meet.node_rank)
    return (1, natural(meet.hostname), natural(meet.contact.address))


def _bounds(bounds: tuple[int, ...]) -> str:
    least, most = bounds
    return str(most) if least == most else f"{least}:{most}"
