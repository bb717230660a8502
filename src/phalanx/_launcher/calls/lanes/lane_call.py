"""One call of a lane: what is decided of it, what is to be said, and what has come home.

Knows no process and no descriptor: frames in, frames out.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from phalanx import _wire as wire
from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Round
from phalanx._launcher.agents.frame_checks import FrameChecker
from phalanx._launcher.payload import Inboxes
from phalanx._launcher.reporting.collected_results import CollectedResults
from phalanx._launcher.reporting.report import TraceShown
from phalanx._launcher.session.decider import host_of, make_coordinator
from phalanx._logs.losses import Loss, cut_on_host, describe
from phalanx._logs.spec import routes
from phalanx._logs.writer import finish
from phalanx._rendezvous import protocol as p
from phalanx.errors import OutputLost

if TYPE_CHECKING:
    from phalanx._core.rounds import Member
    from phalanx._launcher.payload import Function
    from phalanx._launcher.planning.plan import Plan
    from phalanx._launcher.result import LaunchResult
    from phalanx._logs.spec import LogSpec


class LaneCall:
    """A call on one host, with a coordinator of its own."""

    def __init__(self, plan: Plan, function: Function, log_spec: LogSpec, last: int) -> None:
        """`last` is the number of the agent's round before."""
        self.outgoing: list[wire.Frame] = []
        """What the agent is to be told."""
        self.verdict: p.Verdict | None = None
        self.is_expelled = False
        """The agent did not do in time what it was told."""
        self.has_joined = False
        self.number = last
        self._plan = plan
        self._function = function
        self._member = plan.members[0]
        self._agent = AgentId(self._member.agent)
        self._coordinator = make_coordinator(plan, time.monotonic())
        self._coordinator.catch_up(last, 0)
        self._inboxes = Inboxes()
        self._losses: dict[str, Loss] = {}
        self._routes = routes(log_spec, plan.members)
        self._torch = False
        self._preempted = False
        self._began = time.monotonic()
        self._checker = FrameChecker(shipped=False, began=self._began, greeted=True, local=True)

    @property
    def deadline(self) -> float | None:
        """When it has to be told that time has passed."""
        return self._coordinator.deadline

    def join(self, ready: wire.Ready, store: Endpoint) -> None:
        """The agent is there, and has loaded what it should."""
        self.has_joined = True
        backend = self._plan.options.backend
        self._torch = self._function.uses_torch or backend not in (None, "auto") or ready.torch
        host = host_of(self._plan, self._agent)
        self.feed(p.JoinedEvent(self._agent, store, host, self._torch))

    def feed(self, event: p.CoordinatorEvent) -> None:
        """Something has happened."""
        for action in self._coordinator.handle(event, time.monotonic()):
            match action:
                case p.BeginRoundAction(round_):
                    self._begin(round_)
                case p.HaltRoundAction(number, grace, _, stacks):
                    self.outgoing.append(wire.HaltRound(round=number, grace=grace, stacks=stacks))
                case p.ExpelAction(_, reason):
                    self.is_expelled = True
                    now = Interval(time.monotonic(), time.monotonic())
                    self.feed(p.AgentGoneEvent(self._agent, reason, now))
                case p.FinishAction(verdict):
                    self.verdict = verdict

    def _begin(self, round_: Round) -> None:
        self.number = round_.number
        options = self._plan.options
        key = f"{self.number:064x}"  # the agent has one function for each call
        begin = wire.BeginRound(
            round=self.number,
            membership=dataclasses.replace(round_, torch=self._torch),
            agent=self._agent,
            function=key,
            backend=options.backend,
            uses_torch=self._torch,
            process_group_timeout=options.process_group_timeout,
            heartbeat_timeout=options.heartbeat_timeout or 0.0,
            run_id=f"{self._plan.app}-{self.number}",
            is_call=True,
        )
        self.outgoing.append(begin)
        self.outgoing += (dataclasses.replace(piece, key=key) for piece in self._function.pieces())

    def hear(self, frame: wire.Frame, spool: str) -> None:
        """Take what the agent that has this spool has said of the call. Raises `WireError`."""
        if frame.round != self.number:
            return
        frame = self._checker.check(frame, self._member_of, time.monotonic())
        match frame:
            case wire.WorkersStarted():
                self.feed(p.WorkersStartedEvent(self._agent, frame.round))
            case wire.Piece() if frame.rank is not None:
                self._inboxes.collect(frame, frame.rank)
            case wire.PayloadFile() if frame.rank is not None:
                self._inboxes.adopt(frame, frame.rank, spool)
            case wire.WorkerEnded():
                outcome = frame.outcome
                if outcome.succeeded:
                    outcome = self._inboxes.complete(outcome)
                # The same machine, and the same clock.
                when = Interval(outcome.clock, outcome.clock).within(self._began, time.monotonic())
                self.feed(p.WorkerEndedEvent(self._agent, frame.round, outcome, when))
            case wire.LogData() if frame.rank is not None:
                self._log(frame, frame.rank)
            case wire.RoundCleared():
                self.feed(p.RoundClearedEvent(self._agent, frame.round))

    def _member_of(self, number: int) -> Member | None:
        return self._member if number == self.number else None

    def _log(self, frame: wire.LogData, rank: int) -> None:
        route = self._routes.get(rank)
        stream = frame.stream if frame.stream == "stdout" else "stderr"
        if route is not None:
            for raw in route.raw:
                raw.take(route.source, stream, frame.data)
        if frame.is_cut:
            loss = cut_on_host(rank, self._member.hostname)
            self._losses.setdefault(loss.place, loss)
        size = wire.cost_of(frame)
        self._checker.written(frame)
        self.outgoing.append(wire.LogsTaken(round=frame.round, size=size))

    def collect(self, verdict: p.Verdict) -> LaunchResult[Any]:
        """The values, or what is to be raised instead. Unpickles: runs the user's code."""
        coordinator = self._coordinator
        outcomes = tuple(coordinator.outcomes[rank] for rank in sorted(coordinator.outcomes))
        home = CollectedResults(verdict, self._inboxes, outcomes)
        try:
            if not home.succeeded:
                files = {k: r.file.path for k, r in self._routes.items() if r.file is not None}
                timeout = self._plan.options.start_timeout
                raise home.exception(files, coordinator.running, timeout, {}, TraceShown.WHOLE)
            result = home.result()
        finally:
            home.close()
        written = [loss for r in self._routes.values() for raw in r.raw for loss in raw.losses()]
        losses = [*self._losses.values(), *filter(None, written)]
        if losses:
            places = tuple(loss.place for loss in losses)
            raise OutputLost(describe(losses), places=places, result=result)
        return result

    def close(self) -> None:
        """Let go of its files."""
        finish(self._routes)
