"""The leader: it carries the coordinator, and speaks for it to the others."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from phalanx import __version__
from phalanx import _wire as wire
from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Round
from phalanx._core.sanitize import sanitize_line
from phalanx._logs import logger
from phalanx._rendezvous.coordinator import Coordinator
from phalanx._rendezvous.errors import RendezvousError
from phalanx._rendezvous.exclusion import Exclusion
from phalanx._rendezvous.membership import Host, Order, natural
from phalanx._rendezvous.protocol import (
    AgentGoneEvent,
    BeginRoundAction,
    CoordinatorAction,
    CoordinatorEvent,
    ExcludeAction,
    ExpelAction,
    FinishAction,
    HaltRoundAction,
    Handover,
    JoinedEvent,
    Phase,
    PreemptedEvent,
    ProgressEvent,
    Reason,
    RoundClearedEvent,
    Verdict,
    WorkerEndedEvent,
    WorkersStartedEvent,
)
from phalanx._rendezvous.restart_policy import RestartAll
from phalanx._rendezvous.succession import successors
from phalanx._rendezvous.tcp.connections.link import Link
from phalanx._rendezvous.tcp.connections.listener import Do
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.pings import Pings
from phalanx._rendezvous.tcp.verdicts import frames_of
from phalanx._wire.rendezvous_frames import (
    GivenUp,
    HostPosition,
    JoinAccepted,
    JoinRefused,
    JoinRequest,
    RendezvousClosed,
    RestartsSpent,
    RoundFormed,
)

_COMES_AGAIN, _LOOKED = 2.0, 0.25
"""Seconds in which one whose connection was closed has ended or comes again, and between looks."""
_LONGEST_CAUSE = 500
_MOST_REFUSALS = 8
"""So many are told; whoever has no token can have others refused again and again."""


class Term:
    """What an elected leader is bound to; one that was not elected is bound to nothing."""

    def __init__(
        self,
        commit: Callable[[RoundFormed], Awaitable[bool]],
        step_down: Callable[[], None],
        floor: int,
    ) -> None:
        """`commit` writes a round down before anybody is told; False: another leads.

        `step_down` lets others lead, where only a minority of the last round is here. Rounds are
        counted from `floor`.
        """
        self.commit = commit
        self.step_down = step_down
        self.floor = floor


class TellRound:
    """A round as it is told to the others, written down once.

    All members are told to those alone that may decide next; to the others as many as these are.
    """

    def __init__(
        self,
        round_: Round,
        leader: AgentId,
        contacts: Mapping[AgentId, Endpoint],
        cause: str = "",
        waiting: Iterable[AgentId] = (),
    ) -> None:
        """`contacts` are where hosts are reached, its members and those that are `waiting`.

        `cause` is what it is a restart for.
        """
        members = tuple(member.agent for member in round_.members)
        self.agents: Mapping[AgentId, int] = {agent: at for at, agent in enumerate(members)}
        """Its members, by how many are before each."""
        self._number = round_.number
        others = [agent for agent in waiting if agent not in self.agents]
        order = successors(members, others)
        self._successors = frozenset(order)
        told = RoundFormed.make(round_, leader, contacts, None, cause, order[len(members) :])
        self._whole = wire.encode(told)
        self._short = self._whole
        if len(self._successors) < len(members):
            short = RoundFormed.make(round_, leader, contacts, self._successors, cause)
            self._short = wire.encode(short)

    def to(self, agent: AgentId) -> tuple[bytes, ...]:
        """The frames for one that takes part, or waits."""
        if agent in self._successors:
            return (self._whole,)
        if agent not in self.agents or self._short is self._whole:
            return (self._short,)
        position = HostPosition(round=self._number, position=self.agents[agent])
        return wire.encode(position), self._short


class Leader:
    """Decides for itself and for all that are linked to it."""

    def __init__(
        self,
        host: TcpHost,
        now: Callable[[], float],
        act: Callable[[CoordinatorAction], None],
        do: Do,
        know: Callable[[Link], None],
        is_there: Callable[[AgentId, Endpoint], Awaitable[bool | None]],
        step_aside: Callable[[Endpoint], None],
        past: Handover | None = None,
        contacts: Mapping[AgentId, Endpoint] = MappingProxyType({}),
        term: Term | None = None,
    ) -> None:
        """`act` is told what concerns this host; `do` runs what waits; `know` is told who is in.

        `is_there` asks where a host was whether it has ended; `step_aside` has this host follow
        those that go on without it, and are reached there. `past` and `contacts` are what is known
        of the round that another has decided on; `term` is that of one who was elected.
        """
        settings = host.coordinator_settings
        self._coordinator = Coordinator(settings, RestartAll(settings), now(), past)
        self._contacts = dict(contacts)
        self._term = term
        if term is not None:
            self._coordinator.catch_up(term.floor, 0)
        self._pending: deque[CoordinatorAction] = deque()
        """What is to be done once a round is written down, that round's beginning first."""
        self._formed = None
        if past is not None:
            self._formed = TellRound(past.round, host.agent, self._contacts, waiting=contacts)
        self._restarts = 0 if past is None else past.round.restarts
        """Those of the last round that was told of."""
        """The last round that others were told of."""
        self.verdict: Verdict | None = None
        self._takes_over = past is not None
        self._own = host.agent
        self._settings = settings
        self._run_id = host.run_id
        self._now = now
        self._act = act
        self._do = do
        self._know = know
        self._keys: dict[AgentId, str] = {}
        """What agents are known by: an id is told to all, and could be taken by another."""
        self._refusals: set[str] = set()
        self._excluded: dict[AgentId, str] = {}
        """Why agents are not wanted any more."""
        self._most_links = max(settings.most, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._links: dict[AgentId, Link] = {}
        self.pings = Pings(host.settings)
        self._accepted = wire.encode(JoinAccepted(leader=self._own))
        self._held: dict[AgentId, JoinRequest] = {}
        """Those that have come and still have workers of an old round."""
        self._is_there = is_there
        self._step_aside = step_aside
        self._elsewhere: dict[AgentId, Endpoint] = {}
        """Those that are there, and have turned from us."""

    @property
    def links(self) -> list[Link]:
        """Those that take part, or wait."""
        return list(self._links.values())

    @property
    def awaited(self) -> tuple[str, ...]:
        """The hosts that another round waits for."""
        return self._coordinator.awaited

    @property
    def deadline(self) -> float | None:
        """When a `TickEvent` is due."""
        return self._coordinator.deadline

    @property
    def lacks_hosts(self) -> bool:
        """Too few have come for a round."""
        return self._coordinator.lacks_hosts

    @property
    def gathered(self) -> str:
        """Who has come, in words."""
        return self._coordinator.gathered

    @property
    def is_alone(self) -> bool:
        """No other host has ever taken part, as far as it is known here."""
        return self._contacts.keys() <= {self._own}

    @property
    def waiting(self) -> int:
        """How many hosts are linked, and not in the last round."""
        return sum(1 for agent in self._links if self._coordinator.member(agent) is None)

    def take_progress(self) -> list[ProgressEvent]:
        """What has come to pass since the last time."""
        return self._coordinator.take_progress()

    @property
    def is_taking_over(self) -> bool:
        """Those of a round that another has decided on are not all clear of it yet."""
        return self._takes_over and self._coordinator.phase is Phase.STOPPING

    def count_out(self, agent: AgentId) -> None:
        """A member of the last round has certainly ended."""
        now = self._now()
        if agent not in self._links:
            self.feed(AgentGoneEvent(agent, "it has ended", Interval(now, now)))

    def feed(self, event: CoordinatorEvent) -> None:
        """MakeDecider, and have it done here and there."""
        if isinstance(event, RoundClearedEvent) and event.agent in self._held:
            request, place = self._held[event.agent], event.endpoint
            port = request.port if place is None else place.port
            self.join(replace(request, clear=True, port=port))
            return
        for action in self._coordinator.handle(event, self._now()):
            self._carry_out(action)

    def join(self, request: JoinRequest) -> None:
        """One takes part: another host, or this; once it is clear of its last round.

        But for one whose round is being stopped: that it is clear of it is awaited then.
        """
        self._contacts[request.agent] = request.contact
        self._keys[request.agent] = request.key
        self._held.pop(request.agent, None)
        if not request.clear and not self._coordinator.awaits(request.agent):
            self._held[request.agent] = request
            return
        self._coordinator.catch_up(request.last_round, request.restarts)
        endpoint = Endpoint(request.contact.address, request.port)
        host = Host(
            request.agent, request.hostname, request.workers, order_of(request), request.role
        )
        number = self._coordinator.round_of(request.agent)
        self.feed(JoinedEvent(request.agent, endpoint, host, request.torch))
        if request.clear and number is not None:
            # Of whatever round it was in, which may be later than the one that we know of.
            self.feed(RoundClearedEvent(request.agent, number, endpoint))

    def problem_of(self, request: JoinRequest) -> str:
        """Why one cannot take part; empty if it can."""
        if request.version != __version__:
            return f"it runs phalanx {request.version}, this host {__version__}"
        if request.run_id != self._run_id:
            # Not ours: without a token, it is all that one who joins has to know.
            return f"its run id (--rdzv-id) is {request.run_id[:80]!r}, and not that of the others"
        if self._keys.get(request.agent, request.key) != request.key:
            return "it uses the identity of another host"
        if request.agent in self._excluded:
            return self._excluded[request.agent]
        if request.agent not in self._links and len(self._links) >= self._most_links:
            return f"the maximum of {self._most_links} hosts has already joined"
        if request.restarts > self._settings.max_restarts:
            return (
                f"it has seen {request.restarts} restarts, of at most {self._settings.max_restarts}"
            )
        bounds = (self._settings.least, self._settings.most)
        if request.bounds != bounds:
            told, here = _bounds(request.bounds), _bounds(bounds)
            return f"it was started for {told} hosts, the others for {here}"
        return ""

    async def serve(self, link: Link, request: JoinRequest) -> None:
        """Hear one host to its end."""
        if problem := self.problem_of(request):
            self._say_refusal(request, problem)
            await link.send(JoinRefused(reason=problem))
            link.close()
            return
        if (before := self._links.get(request.agent)) is not None:
            self.lose(before, "it rejoined", closed=True)
        self._know(link)
        link.join(request.agent, request.last_round)
        self._links[request.agent] = link
        self._elsewhere.pop(request.agent, None)
        link.post_encoded(self._accepted)
        self.pings.add(link)
        if self._formed is not None and request.agent not in self._formed.agents:
            # It may have to wait, and then must know whom to turn to when we are lost.
            link.post_encoded(*self._formed.to(request.agent))
        self.join(request)
        reason = "its connection was closed"
        async for frame in link.frames():
            if link.is_over:
                continue
            try:
                self._hear(link, frame)
            except Exception as error:  # noqa: BLE001 what one says must not end the others
                reason = f"it sent a {type(frame).__name__} that ended in {error!r}"
                break
        self.lose(link, reason, closed=await self._has_ended(link))

    async def _has_ended(self, link: Link) -> bool:
        """Whether one whose connection is closed has ended, and cannot go on with others.

        One that has heard nothing of us for long, as while we were stopped, has turned to another
        leader. One of which the connection alone was broken comes again in a moment.
        """
        if self._term is not None:
            return True  # without us nobody has begun a round, if we may begin one
        contact, there = self._contacts[link.agent], False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COMES_AGAIN):
                while self._links.get(link.agent) is link:
                    there = bool(await self._is_there(link.agent, contact))
                    if not there:
                        return True
                    await asyncio.sleep(_LOOKED)
        if there:
            self._elsewhere[link.agent] = contact
        return not there

    def _say_refusal(self, request: JoinRequest, problem: str) -> None:
        """Say it on this host as well, a few times: whoever looks here should see why few come."""
        said = f"{sanitize_line(request.hostname)} cannot join: {sanitize_line(problem)}"
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
                endpoint = (
                    Endpoint(self._contacts[agent].address, frame.port) if frame.port else None
                )
                number = frame.round
                if number == link.last_round:  # as above
                    number = self._coordinator.round_of(agent) or number
                self.feed(RoundClearedEvent(agent, number, endpoint))
            case JoinRequest() if frame.agent == agent and not self.problem_of(frame):
                self.join(frame)  # its own agent was lost, and is there again
            case wire.AgentGone():
                self.feed(AgentGoneEvent(agent, frame.message, self._lately(link)))
            case wire.Preempted():
                self.feed(PreemptedEvent(agent))
            case RendezvousClosed():
                self.close_for_all()
            case wire.ShutDown():
                self.lose(link, "it was told to leave", closed=True)
            case GivenUp() if self._may_do_without_us:
                self._elsewhere[agent] = self._contacts[agent]
                self.lose(link, "it has turned to another leader", closed=False)

    @property
    def _may_do_without_us(self) -> bool:
        """Others can have gone on without us; of two members neither can without the other."""
        members = () if self._formed is None else self._formed.agents
        return not (len(members) == 2 and self._own in members)

    def close_for_all(self) -> None:
        """It is over for everybody, at once: agents of others stop their workers by themselves."""
        self._execute(FinishAction(Verdict(Reason.CANCELLED)))

    def _is_of(self, agent: AgentId, report: wire.WorkerEnded) -> bool:
        """A worker of the agent's own."""
        member = self._coordinator.member(agent)
        return member is not None and report.outcome.rank in member.ranks

    def lose(self, link: Link, reason: str, *, closed: bool) -> None:
        """One is not there any more."""
        if link.is_over or self._links.get(link.agent) is not link:
            return
        del self._links[link.agent]
        if not closed:
            link.post_encoded(wire.encode(GivenUp()))  # it may yet read that, and go on
        link.close()
        self.feed(AgentGoneEvent(link.agent, reason, self._lately(link), closed))

    def _lately(self, link: Link) -> Interval:
        return Interval(link.last_heard, time.monotonic())

    # ── what was decided ──────────────────────────────────────────────────────

    def _carry_out(self, action: CoordinatorAction) -> None:
        """Have it done; with a term, rounds are written down first, and the rest waits behind.

        When this very host is excluded, nothing that follows: whoever decides next begins.
        """
        if self._own in self._excluded:
            return
        if self._term is None or not (self._pending or isinstance(action, BeginRoundAction)):
            self._execute(action)
            return
        if isinstance(action, BeginRoundAction):
            self._forget_last_rounds(self._links)  # what comes from now on is of the new round
        self._pending.append(action)
        if len(self._pending) == 1:
            self._do(self._execute_pending(self._term))

    async def _execute_pending(self, term: Term) -> None:
        while self._pending:
            if isinstance(begin := self._pending[0], BeginRoundAction):
                formed = RoundFormed.make(begin.round, self._own, self._contacts)
                if not await term.commit(formed):
                    return  # another leads; nobody hears of it any more
            self._execute(self._pending.popleft())

    def _execute(self, action: CoordinatorAction) -> None:
        match action:
            case BeginRoundAction(round_):
                before, self._restarts = self._restarts, round_.restarts
                cause = self._coordinator.restart_cause if round_.restarts > before else ""
                cause = cause[:_LONGEST_CAUSE]
                told = TellRound(round_, self._own, self._contacts, cause, self._links)
                self._formed = formed = told
                self._forget_last_rounds(self._links)
                for agent, link in self._links.items():
                    # Those that wait must know whom to turn to as well.
                    link.post_encoded(*formed.to(agent))
                self._act(action)
            case HaltRoundAction(number, grace, stacks=stacks):
                stop = wire.HaltRound(round=number, grace=grace, stacks=stacks)
                members = self._links if self._formed is None else self._formed.agents
                self._forget_last_rounds(members)
                self._tell([link for a, link in self._links.items() if a in members], stop)
                self._act(action)
            case ExpelAction(agent, reason) if agent in self._links:
                self.lose(self._links[agent], reason, closed=False)
            case ExcludeAction(exclusion):
                self._exclude(exclusion)
            case FinishAction(Verdict(reason=Reason.NO_QUORUM)) if self._term is not None:
                self._term.step_down()
            case FinishAction(Verdict(reason=Reason.NO_QUORUM)) if self._elsewhere:
                self._step_aside(next(iter(self._elsewhere.values())))
            case FinishAction(verdict):
                self.verdict = verdict
                for frame in frames_of(verdict):
                    self._tell(self.links, frame)
                self._act(action)
            case _:
                self._act(action)

    def _exclude(self, exclusion: Exclusion) -> None:
        """Have one of the hosts leave, which may be this one."""
        agent, reason = exclusion.agent, exclusion.describe()
        self._excluded[agent] = reason
        if agent == self._own:
            self._tell(self.links, RestartsSpent(restarts=self._coordinator.restarts))
            self._do(_leave(reason))
        elif (link := self._links.get(agent)) is not None:
            self._tell([link], JoinRefused(reason=reason))
            self.lose(link, reason, closed=True)

    def _tell(self, links: Iterable[Link], frame: wire.Frame) -> None:
        """Tell some of them; it is written down once."""
        data = wire.encode(frame)
        for link in links:
            link.post_encoded(data)

    def _forget_last_rounds(self, agents: Container[AgentId]) -> None:
        for agent, link in self._links.items():
            if agent in agents and agent not in self._held:
                link.forget_last_round()


def order_of(request: JoinRequest) -> Order:
    """Where a host stands in line: by the rank that it was given, or by its name."""
    if request.node_rank is not None:
        return (0, request.node_rank)
    return (1, natural(request.hostname), natural(request.contact.address))


async def _leave(reason: str) -> None:
    raise RendezvousError(f"this host has to leave: {reason}")


def _bounds(bounds: tuple[int, ...]) -> str:
    least, most = bounds
    return str(most) if least == most else f"{least}:{most}"
