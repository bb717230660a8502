"""Carries out what was decided for one app: frames in, actions out.

Runs on the loop of the app's own thread. It decides nothing: it carries frames to whoever decides
as events, and what was decided to the agents as frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import platform
import signal
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from phalanx import __version__
from phalanx import _wire as wire
from phalanx._channel.background import Background
from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Round
from phalanx._core.sanitize import sanitize
from phalanx._core.stacks import RankStacks
from phalanx._launcher.agents.agent_handle import ANSWER, LAST_LOGS, AgentHandle
from phalanx._launcher.agents.content import AgentContent
from phalanx._launcher.agents.host_checks import HostChecks
from phalanx._launcher.agents.log_slots import LogSlots
from phalanx._launcher.agents.round_setup import RoundSetup
from phalanx._launcher.agents.stack_collector import StackCollector
from phalanx._launcher.agents.store_address import StoreAddress
from phalanx._launcher.agents.unsent_output import UnsentOutput
from phalanx._launcher.agents.wait_messages import describe_waits
from phalanx._launcher.payload import Function, Inboxes
from phalanx._launcher.placement import NotPlaced, PlacedAgent, Placement
from phalanx._launcher.planning.plan import Plan
from phalanx._launcher.project.fetcher import FileFetcher
from phalanx._launcher.session.decider import MakeDecider, host_of
from phalanx._launcher.session.host_recalls import HostRecalls, ReplaceLost
from phalanx._launcher.session.progress import Progress, in_words
from phalanx._logs import logger
from phalanx._logs.losses import Loss, cut_on_host
from phalanx._logs.writer import LogWriter
from phalanx._rendezvous import protocol as p
from phalanx.errors import StartFailed, WireError

if TYPE_CHECKING:
    from phalanx._launcher.transport.dial import Dial

_TICK = 0.1
_ASLEEP = 1.0
"""A tick that comes so much too late was not waited for: we were stopped."""
_CHECK_AGAIN = 10.0
"""Seconds after which a host that failed its checks is checked again."""
_REASON = 16 << 10
"""How much of an agent's last words is shown."""


class Session:
    """One app, from its agents' first word to their last."""

    def __init__(
        self,
        plan: Plan,
        placement: Placement,
        function: Future[Function],
        logs: LogWriter,
        on_event: Callable[[Session], None],
        decide: MakeDecider,
        *,
        began: float,
        replace_lost: ReplaceLost | None = None,
    ) -> None:
        """`on_event` is called, on the loop, after every event, and every moment.

        `decide` makes the one that decides, given the plan and the clock to go by. For
        `replace_lost` see `HostRecalls`.
        """
        self.plan = plan
        self.inboxes = Inboxes()
        self.notes: list[str] = []
        self.losses: dict[str, Loss] = {}
        """Output that hosts had no room for."""
        self.progress = Progress(plan, began)
        self.stacks = StackCollector()
        self._placement = placement
        self._log_slots = LogSlots(logs)
        self._on_event = on_event
        self._agents: dict[AgentId, AgentHandle] = {}
        self._former: list[AgentHandle] = []
        """Agents that were lost, and have been replaced."""
        self._verdict: asyncio.Future[p.Verdict] = asyncio.get_running_loop().create_future()
        self._background = Background(self._failed)
        self._do = self._background.do
        self._recalls = HostRecalls(
            placement,
            self._do,
            self._wait_for_end,
            lambda: self._is_ending,
            self._welcome,
            replace_lost,
            self.progress.replace,
        )
        self._gave_up = asyncio.Event()
        self._stopped_by: float | None = None
        """When the workers should be gone, once they are told to stop."""
        self._asked_for = 0.0
        """Seconds for which agents have been asked all the time whether they are there."""
        self.waits: dict[str, str] = {}
        """What each host had not done yet when the start was given up."""
        self.preempted: set[AgentId] = set()
        """The agents whose hosts are taken away."""
        self._excluded: set[AgentId] = set()
        self.cut_off: set[AgentId] = set()
        """Agents that had started, and were lost without a word."""
        """The agents whose hosts are not used any more."""
        self.left: list[str] = []
        """The hosts of which it was not seen that nothing is left."""
        self._ended = False
        self._asleep = 0.0
        self._stop_with: int = signal.SIGTERM
        self._content = AgentContent(plan, function)
        self._host_checks = HostChecks(plan)
        self.fetch = FileFetcher(
            plan.options,
            plan.directory,
            lambda agent_id: self.plan.member(agent_id).hostname,
            self._content.hold,
            self._delay,
            self._do,
        )
        self.decider = decide(plan, self._now)

    async def run(self) -> p.Verdict:
        """Run the app to its end; when this returns, nothing of it is left."""
        await self.decider.start(self._act, self._failed)
        self._do(self._tick())
        self._do(self._ping())
        placing = self._do(self._place())
        try:
            verdict = await asyncio.shield(self._verdict)
            self._placement.abandon()
            await placing  # those that are there already are let go in order
            await self.fetch.bring_home(verdict.members, self._confirmed(verdict))
            await self._dismiss(verdict.unconfirmed)
            if verdict.reason is not p.Reason.CANCELLED:
                self.left += [name for name in self._placement.given_up if name not in self.left]
            return verdict
        except BaseException:
            await self._dismiss(self._agents)
            raise
        finally:
            self._ended = True
            await self.decider.close()
            self._content.close()
            self._background.cancel()
            for agent in (*self._agents.values(), *self._former):
                agent.channel.abort()

    async def _place(self) -> None:
        async for placed in self._placement.place():
            self._welcome(placed)

    def _welcome(self, placed: PlacedAgent | NotPlaced) -> None:
        agent_id = self.plan.hosts[placed.index].member.agent
        if isinstance(placed, NotPlaced):
            now = self._now()
            self.progress.tracker.lost(agent_id, placed.reason)
            self._feed(p.AgentGoneEvent(agent_id, placed.reason, Interval(now, now)))
            if self.plan.is_elastic:
                self._recalls.begin(self._recalls.recall(self.plan, placed.index))
            return
        shipped = placed.is_remote and self.plan.project is not None
        agent = self._agents[agent_id] = AgentHandle(placed, self.plan.app, shipped=shipped)
        placed.on_errors(functools.partial(self._log_slots.write_errors, agent_id))
        agent.listening = self._do(self._listen(agent_id, agent))

    @property
    def missing(self) -> dict[AgentId, str]:
        """Why hosts that were lost have not come back so far, by their numbers."""
        return self._recalls.missing

    @property
    def _is_ending(self) -> bool:
        """No agent is started any more."""
        return self.decider.is_over or self._verdict.done()

    async def _wait_for_end(self, seconds: float) -> None:
        await asyncio.wait([self._verdict], timeout=seconds)

    def add(self, plan: Plan, dial: Dial | None) -> None:
        """Start the agent of a host that the plan has got in addition, the last one."""
        if self._is_ending:
            if dial is not None:
                dial.give_up()
            return
        self.plan = plan
        self.progress.tracker.expect(plan.members)
        self._recalls.extend(plan, dial)

    def cancel(self, grace: float | None, number: int = signal.SIGTERM) -> None:
        """Ask for the end; workers are told by this signal."""
        self._gave_up.set()
        self._stop_with = number
        for agent in self._agents.values():
            agent.placed.wake()
        if grace == 0:
            self.fetch.give_up()
        self._feed(p.CancelEvent(grace))

    def signal(self, number: int) -> None:
        """Pass a signal on to the workers that catch it."""
        for agent in self._agents.values():
            self._do(agent.send(wire.SignalWorkers(number=number)))

    def dump_stacks(
        self,
        seconds: float,
        answer: Future[tuple[RankStacks, ...]],
        *,
        below: bool = False,
        native: bool = False,
    ) -> None:
        """Find out where every rank is, and tell; nothing when the app ends meanwhile."""

        async def ask() -> None:
            found: tuple[RankStacks, ...] = ()
            try:
                there = {i: agent for i, agent in self._agents.items() if not agent.is_gone}
                found = await self.stacks.ask(there, seconds, below=below, native=native)
            finally:
                answer.set_result(found)

        self._do(ask())

    def _now(self) -> float:
        """Our time, without that in which this process was stopped or the machine asleep."""
        return time.monotonic() - self._asleep

    # ── events ────────────────────────────────────────────────────────────────

    def _feed(self, event: p.CoordinatorEvent) -> None:
        self.decider.tell(event)
        for progress in self.decider.take_progress():
            self.progress.note(progress, time.monotonic() - self._now())
            if self.plan.is_elastic and (said := in_words(progress, self.plan)):
                logger.warning("phalanx: %s", said)
        self._on_event(self)

    def _act(self, action: p.CoordinatorAction) -> None:
        match action:
            case p.BeginRoundAction(round_, agents):
                for line in self.stacks.headlines():
                    logger.warning("phalanx: %s", line)
                self.stacks.begin(round_, agents)
                self._log_slots.begin(round_)
                again = [rank for a in agents or () for rank in round_.member(a).ranks]
                self.inboxes.forget(again if agents is not None else None)
                self.progress.begin(round_, agents)
                self._do(self._begin(round_, agents))
            case p.HaltRoundAction(number, grace, agents, stacks):
                self.fetch.stop()
                self.progress.halted(time.monotonic(), agents)
                self._stopped_by = self._now() + grace
                if self.decider.is_over and not self.waits:
                    self.waits = self._describe_waits()  # it may do so when it is told to stop
                for agent_id, agent in self._agents.items():
                    if agents is None or agent_id in agents:
                        with_ = self._stop_with
                        stop = wire.HaltRound(
                            round=number, grace=grace, number=with_, stacks=stacks
                        )
                        self._do(agent.send(stop))
            case p.ExpelAction(agent_id, reason) if agent_id in self._agents:
                self._lose(agent_id, self._agents[agent_id], reason)
            case p.ExcludeAction(exclusion):
                self._exclude(exclusion.agent, exclusion.describe())
            case p.FinishAction(verdict) if not self._verdict.done():
                if verdict.reason is p.Reason.START_TIMEOUT:
                    self._gave_up.set()
                    self.waits = self.waits or self._describe_waits()
                self._verdict.set_result(verdict)
                self.progress.reach("ended")

    def describe(self) -> str:
        """Where things stand, in a few words."""
        if moving := self.fetch.describe():
            return moving
        ready = all(agent.ready.done() for agent in self._agents.values())
        there = {i for i, agent in self._agents.items() if agent.hello is not None}
        sending = self._content.describe(self.plan)
        return self.progress.describe(self.plan, self.decider, there, sending, ready=ready)

    def _describe_waits(self) -> dict[str, str]:
        running, known = self.decider.running, self._content.has_function
        return describe_waits(self.plan, self._agents, running, has_function=known)

    async def _listen(self, agent_id: AgentId, agent: AgentHandle) -> None:
        member_of = functools.partial(self._log_slots.member, agent=agent_id)
        try:
            async for frame in agent.channel.frames():
                agent.last_heard = time.monotonic()
                if frame.app not in ("", self.plan.app):
                    # Of an app that the agent served before, or of what phalanx.warm asked for.
                    agent.checker.skip(frame, agent.last_heard)
                    if isinstance(frame, wire.Ready):
                        self._add_notes(agent, _not_preloaded(frame.failed))
                    continue
                checked = agent.checker.check(frame, member_of, agent.last_heard)
                if isinstance(checked, wire.StayingWarm) and agent.is_released:
                    agent.stays_warm = True
                    return
                self._hear(agent_id, agent, checked)
            reason = await agent.placed.describe_end()
        except WireError as error:
            self._disown(agent_id, agent, error)
            return
        self._lose_contact(agent_id, agent, sanitize(reason, _REASON))

    def _disown(self, agent_id: AgentId, agent: AgentHandle, lie: WireError) -> None:
        """Do without an agent that says what cannot be true, now and later."""
        agent.has_left = True
        agent.channel.abort()
        said = sanitize(str(lie), _REASON)
        self._lose(agent_id, agent, f"it sent {said} and was removed from the app")

    def _hear(self, agent_id: AgentId, agent: AgentHandle, frame: wire.Frame) -> None:
        match frame:
            case wire.Hello():
                self._greet(agent_id, agent, frame)
            case wire.Pong():
                agent.clock.observe(frame.sent, frame.clock, time.monotonic())
            case wire.WantContent():
                self._do(self._provide(agent_id, agent, frame))
            case wire.ProjectArrived():
                self._content.arrived(agent_id, frame)
            case (
                wire.WrittenList()
                | wire.FileStored()
                | wire.FetchFile()
                | wire.FilePart()
                | wire.FetchSmall()
                | wire.SmallFiles()
            ):
                self.fetch.hear(agent, frame)
            case wire.Reached() if agent.tried == (frame.address, frame.port):
                if not agent.reached.done():
                    agent.reached.set_result(frame.problem)
            case wire.HostChecked():
                agent.host_checked(frame)
            case wire.UserNote():
                hostname = self.plan.member(agent_id).hostname
                self._add_notes(agent, [f"{hostname}: {frame.message}"])
            case wire.Ready() if not agent.ready.done():
                self._note(agent, frame)
                agent.ready.set_result(frame)
                self.progress.reach("packages loaded")
            case wire.LogData():
                self._log(agent_id, agent, frame)
            case wire.RoundCleared() if frame.round == self.decider.round_of(agent_id):
                agent.port = frame.port or agent.port
                hello = agent.hello
                address = "" if hello is None else hello.address
                endpoint = Endpoint(address, frame.port) if frame.port else None
                self._feed(p.RoundClearedEvent(agent_id, frame.round, endpoint))
            case wire.WorkerStacks():
                self.stacks.hear(agent_id, agent, frame, self.plan)
            case wire.Preempted():
                self.preempted.add(agent_id)
                self._feed(p.PreemptedEvent(agent_id))
            case wire.AgentGone():
                agent.is_ending = True
                agent.has_left = agent.was_preempted = frame.left
                if frame.left:
                    self.preempted.add(agent_id)
                self._lose(agent_id, agent, frame.message)
            case _ if frame.round == self.decider.round_of(agent_id):
                self._hear_workers(agent_id, agent, frame)

    def _hear_workers(self, agent_id: AgentId, agent: AgentHandle, frame: wire.Frame) -> None:
        """What concerns the round that the agent is in."""
        match frame:
            case wire.WorkersStarted():
                self.progress.forked(frame.pids)
                self._feed(p.WorkersStartedEvent(agent_id, frame.round))
            case wire.WorkerEntered():
                self.progress.entered(agent.clock.interval(frame.clock).latest)
            case wire.WorkerSteps():
                self.progress.stepped(frame.ranks)
            case wire.Piece() if frame.rank is not None:
                self.inboxes.collect(frame, frame.rank)
            case wire.PayloadFile() if frame.rank is not None and agent.hello is not None:
                self.inboxes.adopt(frame, frame.rank, agent.hello.spool)
            case wire.WorkerEnded():
                # Whatever its clock says: not before the round began, and not after now.
                heard = agent.clock.interval(frame.outcome.clock)
                awake = heard.within(self._log_slots.begun_at(frame.round), time.monotonic())
                hostname = self.plan.member(agent_id).hostname
                outcome = agent.translate(frame.outcome, self.plan.project)
                if outcome.succeeded and not self.plan.exits:
                    outcome = self.inboxes.complete(outcome)
                self.progress.ended(outcome.rank, hostname, outcome, awake)
                when = awake.shifted(self._asleep)
                self._feed(p.WorkerEndedEvent(agent_id, frame.round, outcome, when))

    async def _provide(self, agent_id: AgentId, agent: AgentHandle, want: wire.WantContent) -> None:
        try:
            await self._content.send(agent_id, agent, want.digests)
        except WireError as error:
            self._disown(agent_id, agent, error)

    def _note(self, agent: AgentHandle, ready: wire.Ready) -> None:
        named = ready.failed if self.plan.options.preload != "auto" else ()
        self._add_notes(agent, [*ready.notes, *_not_preloaded(named)])

    def _add_notes(self, agent: AgentHandle, notes: Sequence[str]) -> None:
        new = [note for note in notes if note not in self.notes]
        self.notes += agent.checker.fit_notes(new)

    def _greet(self, agent_id: AgentId, agent: AgentHandle, hello: wire.Hello) -> None:
        ours, theirs = (v.rpartition(".")[0] for v in (platform.python_version(), hello.python))
        if hello.version != __version__:
            self._lose(agent_id, agent, f"it runs phalanx {hello.version}, not {__version__}")
        elif ours != theirs:
            self._lose(agent_id, agent, f"it runs Python {hello.python}, the launcher runs {ours}")
        elif agent_id in self._excluded:
            agent.has_left = True
            self._lose(agent_id, agent, "its host was excluded")
        else:
            agent.hello, agent.port = hello, hello.port
            agent.placed.greet(hello)
            self._recalls.missing.pop(agent_id, None)
            self.progress.reach("agents up")
            self.progress.tracker.greeted(agent_id, hello.pid)
            self._do(agent.send(wire.Ping(sent=time.monotonic())))
            if hello.tree:
                self._do(self._content.ship(agent))
            self._do(self._join(agent_id, agent))

    async def _join(self, agent_id: AgentId, agent: AgentHandle) -> None:
        """Have it take part: at once where we decide, or when we know what it will need.

        While others run, one whose host fails its checks waits until it passes them: it must not
        disturb them. Where hosts meet by themselves it leaves.
        """
        assert agent.hello is not None
        torch = None
        if self.plan.meets_others or self.decider.round is not None:
            if (ready := await agent.wait_until_ready()) is None:
                return
            torch = await self._content.uses_torch(self.plan, [ready])
            while problem := await self._host_checks.problem(agent):
                self.progress.tracker.set_aside(agent_id, problem)
                if self.plan.meets_others:
                    self._leave(agent_id, problem)
                    return
                await self._wait_for_end(_CHECK_AGAIN)
                if agent.is_gone or self._is_ending:
                    return
            if self._host_checks:
                self.progress.tracker.greeted(agent_id, agent.hello.pid)
        if not agent.is_gone:
            host = host_of(self.plan, agent_id)
            endpoint = Endpoint(agent.hello.address, agent.port)
            agent.has_joined = True
            self._feed(p.JoinedEvent(agent_id, endpoint, host, torch))

    def _set_aside(self, agent_id: AgentId, agent: AgentHandle, problem: str) -> None:
        """Do without a host that fails its checks until it passes them; its agent stays."""
        now = time.monotonic()
        self.progress.set_aside(agent_id, problem, now)
        if self.plan.meets_others:
            self._leave(agent_id, problem)
            return
        self._feed(p.AgentGoneEvent(agent_id, problem, Interval(now, now).shifted(self._asleep)))
        if self.plan.is_elastic and not self._is_ending and not agent.is_gone:
            self._do(self._join(agent_id, agent))
            if self._recalls.can_replace:
                self._recalls.begin(
                    self._recalls.replace_beside(self.plan, self.plan.index(agent_id))
                )

    def _leave(self, agent_id: AgentId, problem: str) -> None:
        """Leave the hosts that we have met: they go on, and nobody waits for us in vain."""
        hostname = self.plan.member(agent_id).hostname
        self._failed(StartFailed(f"{hostname}: {problem}", hostname=hostname))

    def _lose_contact(self, agent_id: AgentId, agent: AgentHandle, reason: str) -> None:
        """Lose an agent that has not said that it ends, nor sent all that its workers printed."""
        if agent.hello is not None and not agent.is_gone:
            self.cut_off.add(agent_id)
        is_missed = not agent.is_gone and not self._verdict.done() and agent.placed.is_remote
        if is_missed and self.decider.round_of(agent_id):
            self._miss_output(agent_id)
        self._lose(agent_id, agent, reason)

    def _lose(self, agent_id: AgentId, agent: AgentHandle, reason: str) -> None:
        agent.lost.set()
        if agent.is_gone:
            return
        agent.is_gone = True
        when = Interval(agent.last_heard, time.monotonic()).shifted(self._asleep)
        if not self._verdict.done():  # otherwise it has only left
            self.progress.lost(agent_id, reason, time.monotonic() - agent.silent)
        replaced = self._is_replaced(agent_id, agent)
        left = agent.has_left and not self.plan.meets_others and not replaced
        self._feed(p.AgentGoneEvent(agent_id, reason, when, left=left))
        if self.plan.is_elastic and not self._is_ending:
            self._recalls.begin(self._replace(agent_id, agent))

    def _is_replaced(self, agent_id: AgentId, agent: AgentHandle) -> bool:
        """Its host was taken away or is excluded, and another is asked for."""
        given_up = agent.was_preempted or agent_id in self._excluded
        return given_up and self.plan.is_elastic and self._recalls.can_replace

    def _exclude(self, agent_id: AgentId, reason: str) -> None:
        """Do without a host for good, and have another in its place if there is one."""
        self._excluded.add(agent_id)
        self._recalls.exclude(self.plan.index(agent_id))
        agent = self._agents[agent_id]
        if agent.is_gone:
            self._recalls.begin(self._replace_host(agent_id, reason))
        else:
            agent.has_left = True
            self._lose(agent_id, agent, reason)
        self.progress.tracker.excluded(agent_id, reason)

    async def _replace_host(self, agent_id: AgentId, why: str) -> None:
        """Have another host in place of one that will not come back, or say that none will."""
        index = self.plan.index(agent_id)
        if not self._recalls.can_replace or not await self._recalls.replace(self.plan, index):
            now = time.monotonic()
            reason = f"{why}, and there is no other"
            self._feed(p.AgentGoneEvent(agent_id, reason, Interval(now, now), left=True))

    async def _replace(self, agent_id: AgentId, agent: AgentHandle) -> None:
        """Leave nothing of a lost agent behind, and try to have another in its place."""
        self._former.append(agent)
        await self._release(agent_id, agent, orderly=False)
        index = self.plan.index(agent_id)
        if self.plan.meets_others or not agent.has_left:
            await self._recalls.recall(self.plan, index)
        elif self._is_replaced(agent_id, agent):
            await self._replace_host(agent_id, "its host was taken away")

    def _log(self, agent_id: AgentId, agent: AgentHandle, frame: wire.LogData) -> None:
        loop = asyncio.get_running_loop()
        if frame.is_cut:
            loss = cut_on_host(frame.rank, self.plan.member(agent_id).hostname)
            self.losses.setdefault(loss.place, loss)

        async def tell() -> None:
            if frame.rank is not None:
                size = wire.cost_of(frame)
                await agent.send(wire.LogsTaken(app=frame.app, round=frame.round, size=size))
            # Not sooner: one that does not read what it is told must not be able to go on.
            agent.checker.written(frame)

        def done() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits for it
                loop.call_soon_threadsafe(lambda: None if self._ended else self._do(tell()))

        self._log_slots.write(self.plan, agent_id, frame, done)

    # ── actions ───────────────────────────────────────────────────────────────

    def _failed(self, error: BaseException) -> None:
        """Something in the background has failed: it ends the app."""
        if not self._verdict.done():
            self._verdict.set_exception(error)

    async def _begin(self, round_: Round, only: tuple[AgentId, ...] | None) -> None:
        """Send a round to its members, or to these; unless it was given up meanwhile."""
        if not self.plan.is_elastic:
            self.plan.shared.remove()  # everybody has looked
        if not await self.fetch.exchange(round_, dict(self._agents)):
            return  # the round was halted
        members = {member.agent for member in round_.members}
        agents = {i: a for i, a in self._agents.items() if i in members}
        chosen = agents if only is None else {i: a for i, a in agents.items() if i in only}
        if failed_checks := await self._host_checks.problems(chosen):
            for agent_id, problem in failed_checks.items():
                self._set_aside(agent_id, agents[agent_id], problem)
            return  # the round was halted by that
        opening = RoundSetup(self.plan, self._content, self._log_slots, agents)
        if not self.plan.meets_others:
            try:
                store_address = StoreAddress(self.plan, round_, agents)
            except StartFailed as error:
                first = round_.members[0].agent
                if not self.plan.is_elastic or first not in agents:
                    raise
                agents[first].has_left = True
                self._lose(first, agents[first], str(error))
                return
            self._do(store_address.try_to_reach())
            store = Endpoint(store_address.address, round_.store.port)
            round_ = dataclasses.replace(round_, store=store, torch=await opening.uses_torch())
            if round_.torch and (unreached := await store_address.problems()):
                self._part_with(store_address, unreached)
        parts = round_.parts()
        for agent_id, agent in agents.items():
            if only is None or agent_id in only:
                frame = await opening.frame(agent_id, parts[agent_id])
                if agent.has_joined and self.decider.round_of(agent_id) == round_.number:
                    agent.has_begun = True
                    self._do(agent.send(frame))

    def _delay(self) -> None:
        """A round waits for files: that is not a host which does not start."""
        if self.decider.round is not None and not self.decider.is_over:
            self._feed(p.DelayedEvent(self.decider.round.number))

    def _confirmed(self, verdict: p.Verdict) -> dict[AgentId, AgentHandle]:
        return {
            agent_id: agent
            for agent_id, agent in self._agents.items()
            if not agent.is_gone and agent_id not in verdict.unconfirmed
        }

    def _part_with(self, store_address: StoreAddress, unreached: dict[AgentId, str]) -> None:
        """Do without hosts that do not reach the first; that may be the end."""
        if not self.plan.is_elastic:
            raise store_address.failure(unreached)
        for agent_id, problem in unreached.items():
            agent = self._agents[agent_id]
            agent.has_left = True
            self._lose(agent_id, agent, f"it cannot reach {store_address.address}: {problem}")

    async def _dismiss(self, by_force: Container[AgentId]) -> None:
        """Let the agents go: those that can, once their logs are here; the others by force."""
        self._placement.abandon()
        await self._recalls.wait()  # one that is there already has to be let go as well
        agents, former = list(self._agents.items()), [a for a in self._former if not a.is_cleared]
        await asyncio.gather(
            *(
                self._release(
                    agent_id, agent, orderly=not agent.is_gone and agent_id not in by_force
                )
                for agent_id, agent in agents
            ),
            # What was lost may be reached again by now.
            *(agent.clear_host() for agent in former),
        )
        gone = [a for a in (*former, *self._agents.values()) if not a.is_cleared]
        names = [self.plan.hosts[agent.placed.index].member.hostname for agent in gone]
        self.left = list(dict.fromkeys(names))

    async def _release(self, agent_id: AgentId, agent: AgentHandle, *, orderly: bool) -> None:
        """Let an agent go; what it has not sent of its workers' output is still in its files."""
        unsent = None if orderly else self._find_unsent(agent_id, agent)
        options = self.plan.options
        await agent.release(
            self._gave_up, options.stop_grace, orderly=orderly, patience=options.host_timeout
        )
        if unsent is not None:
            try:
                await self._write_unsent(agent_id, agent, unsent)
            except OSError:
                self._miss_output(agent_id)
            finally:
                unsent.close()

    def _find_unsent(self, agent_id: AgentId, agent: AgentHandle) -> UnsentOutput | None:
        if agent.placed.is_remote or agent.hello is None:
            return None
        members = self._log_slots.members(agent_id)
        records = functools.partial(self._log_slots.wanted_records, self.plan)
        try:
            return UnsentOutput(agent.hello.spool, self.plan.app, members, records)
        except OSError:
            if not agent.is_ending:  # else it has sent all, and removed them
                self._miss_output(agent_id)
            return None

    async def _write_unsent(
        self, agent_id: AgentId, agent: AgentHandle, unsent: UnsentOutput
    ) -> None:
        loop = asyncio.get_running_loop()
        frames = unsent.frames(agent.checker.received)
        while (frame := await asyncio.to_thread(next, frames, None)) is not None:
            written = asyncio.Event()

            def done(written: asyncio.Event = written) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(written.set)

            self._log_slots.write(self.plan, agent_id, frame, done)
            try:
                async with asyncio.timeout(LAST_LOGS):
                    await written.wait()
            except TimeoutError:
                logger.warning("phalanx: the last worker output was dropped")
                return

    def _miss_output(self, agent_id: AgentId) -> None:
        hostname = self.plan.member(agent_id).hostname
        logger.warning("phalanx: %s: the last output of its workers may be missing", hostname)

    # ── time ──────────────────────────────────────────────────────────────────

    async def _tick(self) -> None:
        """Watch deadlines and silence. Time in which we ourselves were stopped does not count."""
        limit = self.plan.options.host_timeout
        while True:
            due = self.decider.deadline
            wait = _TICK if due is None else min(_TICK, max(0.0, due - self._now()))
            began = time.monotonic()
            await asyncio.sleep(wait)
            overslept = time.monotonic() - began - wait
            if overslept > _ASLEEP:
                self._asleep += overslept
            self._feed(p.TickEvent())
            self._asked_for = self._asked_for + wait if self._is_due(before=ANSWER) else 0.0
            for agent_id, agent in list(self._agents.items()):
                silent = agent.pass_time(wait)
                if silent >= limit and not agent.channel.break_off():
                    self._give_up(agent_id, agent, f"no heartbeat for {limit:g} s")
                elif not agent.channel.is_connected:
                    if self._is_due():
                        self._give_up(agent_id, agent, "there was no connection to stop it")
                elif min(silent, self._asked_for) >= ANSWER and self._is_due():
                    self._give_up(agent_id, agent, "it did not answer the request to stop")

    def _is_due(self, before: float = 0.0) -> bool:
        """No other round will follow, and the workers should be gone by now, or so long later."""
        stopping = self.decider.phase is p.Phase.STOPPING
        over = self._gave_up.is_set() or (stopping and self.decider.is_over)
        return over and self._stopped_by is not None and self._now() > self._stopped_by - before

    def _give_up(self, agent_id: AgentId, agent: AgentHandle, reason: str) -> None:
        """Do without an agent that does not answer."""
        agent.is_silent = True
        self._lose_contact(agent_id, agent, reason)

    async def _ping(self) -> None:
        beat = self.plan.hosts[0].prepare.heartbeat
        while True:
            for agent in list(self._agents.values()):
                if not agent.is_gone and not agent.channel.congested:
                    # Not awaited: one that does not read must not keep others from being asked.
                    self._do(agent.send(wire.Ping(sent=time.monotonic())))
            # Who is told to stop is asked often: one that does not answer is not waited for.
            waited, step = 0.0, min(_TICK, beat)
            while waited < (min(beat, ANSWER / 4) if self._is_due(before=ANSWER) else beat):
                await asyncio.sleep(step)
                waited += step


def _not_preloaded(failed: Sequence[str]) -> list[str]:
    return [f"could not preload {name}" for name in failed]
