"""Hosts the coordinator for one launch: frames in, actions out.

Runs on the loop of the app's own thread. It decides nothing: it carries frames to the coordinator
as events, and the coordinator's actions to the agents as frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import platform
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from phalanx import __version__, wire
from phalanx.background import Background
from phalanx.clock import Interval
from phalanx.errors import LaunchError, WireError
from phalanx.launcher.agents import Agent
from phalanx.launcher.meeting import Meeting
from phalanx.launcher.payload import Function, Inbox
from phalanx.launcher.placement import NotPlaced, Placement
from phalanx.launcher.plan import Plan
from phalanx.launcher.shipping import Shipping
from phalanx.logs.lines import agent_key
from phalanx.logs.writer import LogWriter
from phalanx.rendezvous import coordinator as c
from phalanx.rounds import Endpoint, Outcome, Round

_TICK = 0.1
_SETTLE = 0.1
_START_SETTLE = 8.0
"""Once a host could not be used, how long the others are waited for: to name all that cannot be."""
_ASLEEP = 1.0
"""A tick that comes so much too late was not waited for: we were stopped."""


class Drive:
    """One app, from its agents' first word to their last."""

    def __init__(
        self,
        plan: Plan,
        placement: Placement,
        function: Future[Function],
        logs: LogWriter,
        on_event: Callable[[Drive], None],
        *,
        began: float,
    ) -> None:
        """`on_event` is called, on the loop, after every event, and every moment."""
        settings = plan.settings
        self.plan = plan
        self.inboxes: dict[int, Inbox] = {}
        self.notes: list[str] = []
        self.phases: dict[str, float] = {}
        """What was reached when, in seconds since it began."""
        self._began = began
        self._placement = placement
        self._function = function
        self._logs = logs
        self._on_event = on_event
        self._agents: dict[int, Agent] = {}
        self._verdict: asyncio.Future[c.Verdict] = asyncio.get_running_loop().create_future()
        self._background = Background(self._failed)
        self._do = self._background.do
        self._gave_up = asyncio.Event()
        self._asleep = 0.0
        self._shipping = None if plan.workspace is None else Shipping(plan.workspace)
        policy = c.Policy(
            members=plan.members,
            start_timeout=settings.start_timeout,
            stop_grace=settings.stop_grace,
            settle=_SETTLE if len(plan.members) > 1 else 0.0,
            start_settle=_START_SETTLE,
        )
        self.coordinator = c.Coordinator(policy, self._now())

    async def run(self) -> c.Verdict:
        """Run the app to its end; when this returns, nothing of it is left."""
        self._do(self._tick())
        self._do(self._ping())
        placing = self._do(self._place())
        try:
            verdict = await asyncio.shield(self._verdict)
            self._placement.abandon()
            await placing  # those that are there already are let go in order
            await self._dismiss(verdict)
            return verdict
        except BaseException:
            grace = self.plan.settings.stop_grace
            await asyncio.gather(
                *(a.dismiss(self._gave_up, grace, orderly=False) for a in self._agents.values())
            )
            raise
        finally:
            self._background.cancel()
            for agent in self._agents.values():
                agent.channel.abort()

    async def _place(self) -> None:
        async for placed in self._placement.place():
            if isinstance(placed, NotPlaced):
                now = self._now()
                self._feed(c.Gone(placed.index, placed.reason, Interval(now, now)))
                continue
            agent = self._agents[placed.index] = Agent(placed, self.plan.app)
            key = agent_key(placed.index)
            placed.on_errors(functools.partial(self._logs.write, key, "stderr"))
            agent.listening = self._do(self._listen(placed.index, agent))

    def cancel(self, grace: float | None) -> None:
        """Ask for the end."""
        self._gave_up.set()
        self._feed(c.Cancel(grace))

    def _now(self) -> float:
        """Our time, without that in which this process was stopped or the machine asleep."""
        return time.monotonic() - self._asleep

    # ── events ────────────────────────────────────────────────────────────────

    def _feed(self, event: c.Event) -> None:
        for action in self.coordinator.handle(event, self._now()):
            match action:
                case c.BeginRound(round_):
                    self._do(self._begin(round_))
                case c.HaltRound(number, grace):
                    for agent in self._agents.values():
                        self._do(agent.send(wire.Stop(round=number, grace=grace)))
                case c.Finish(verdict) if not self._verdict.done():
                    self._verdict.set_result(verdict)
                    self._reach("ended")
        self._on_event(self)

    def _reach(self, phase: str, ago: float = 0.0) -> None:
        self.phases[phase] = time.monotonic() - ago - self._began

    def describe(self) -> str:
        """Where things stand, in a few words."""
        total = sum(member.workers for member in self.plan.members)
        workers = "1 worker" if total == 1 else f"{total} workers"
        if self.coordinator.phase is c.Phase.STOPPING:
            return f"stopping {workers}"
        if "workers forked" in self.phases:
            ended = len(self.coordinator.outcomes)
            return f"running {workers}" + (f", {ended} returned" if ended else "")
        there = {i for i, agent in self._agents.items() if agent.hello is not None}
        if awaited := [m.hostname for m in self.plan.members if m.agent not in there]:
            return f"starting on {_some(awaited)}"
        if self._shipping is not None and (sending := self._shipping.describe(self.plan.members)):
            return sending
        if not all(agent.ready.done() for agent in self._agents.values()):
            tops = [item.module.partition(".")[0] for item in self.plan.prepare[0].preload]
            return f"loading {_some(tops) or 'Python'}"
        return f"starting {workers}"

    async def _listen(self, index: int, agent: Agent) -> None:
        try:
            async for frame in agent.channel.frames():
                agent.last_heard = time.monotonic()
                if frame.app not in ("", self.plan.app):
                    # Of an app that the agent served before, or of what phalanx.warm asked for.
                    if isinstance(frame, wire.Ready):
                        self.notes += [f"could not preload {failed}" for failed in frame.failed]
                    continue
                if isinstance(frame, wire.Rested):
                    agent.rests = True
                    return
                self._hear(index, agent, frame)
            reason = await agent.placed.describe_end()
        except WireError as error:
            reason = f"it sent {error}"
        self._lose(index, agent, reason)

    def _hear(self, index: int, agent: Agent, frame: wire.Frame) -> None:
        match frame:
            case wire.Hello():
                self._greet(index, agent, frame)
            case wire.Pong():
                agent.clock.observe(frame.sent, frame.clock, time.monotonic())
            case wire.Want():
                self._do(self._send_wanted(index, agent, frame.digests))
            case wire.Arrived() if self._shipping is not None:
                self._shipping.arrived(index, frame)
            case wire.Reached() if not agent.reached.done():
                agent.reached.set_result(frame.problem)
            case wire.Note():
                self.notes.append(frame.message)
            case wire.Ready() if not agent.ready.done():
                self._note(frame)
                agent.ready.set_result(frame)
                self._reach("packages loaded")
            case wire.Started():
                self._reach("workers forked")
                self._feed(c.Running(index, frame.round))
            case wire.Piece() | wire.Log() if frame.rank is not None and self._is_stale(frame):
                pass
            case wire.Piece() if frame.rank is not None:
                self._collect(frame, frame.rank)
            case wire.Report():
                when = agent.clock.interval(frame.outcome.clock).shifted(self._asleep)
                if frame.outcome.joined is not None:
                    ago = frame.outcome.clock - frame.outcome.joined
                    self._reach("group formed", ago + self._asleep + time.monotonic() - when.latest)
                self._reach("functions ended")
                outcome = self._as_here(agent, frame.outcome)
                self._feed(c.WorkerEnded(index, frame.round, outcome, when))
            case wire.Log() if frame.stream in ("stdout", "stderr", "records"):
                self._log(agent, frame, agent_key(index) if frame.rank is None else frame.rank)
            case wire.Stopped():
                self._feed(c.Cleared(index, frame.round))
            case wire.Broken():
                self._lose(index, agent, frame.message)

    def _is_stale(self, frame: wire.Frame) -> bool:
        round_ = self.coordinator.round
        return round_ is None or frame.round != round_.number

    def _note(self, ready: wire.Ready) -> None:
        notes = list(ready.notes)
        if self.plan.settings.preload != "auto":
            notes += [f"could not preload {failed}" for failed in ready.failed]
        self.notes += [note for note in notes if note not in self.notes]

    def _collect(self, piece: wire.Piece, rank: int) -> None:
        try:
            if rank not in self.inboxes:
                self.inboxes[rank] = Inbox(piece.total)
            self.inboxes[rank].add(piece)
        except OSError as error:
            raise LaunchError(
                f"the value of rank {rank} ({piece.total} bytes) cannot be kept here: {error}"
            ) from error

    def _greet(self, index: int, agent: Agent, hello: wire.Hello) -> None:
        ours, theirs = (v.rpartition(".")[0] for v in (platform.python_version(), hello.python))
        if hello.version != __version__:
            self._lose(index, agent, f"it runs phalanx {hello.version}, the launcher {__version__}")
        elif ours != theirs:
            self._lose(index, agent, f"it runs Python {hello.python}, the launcher {ours}")
        else:
            agent.hello = hello
            self._reach("agents up")
            self._do(agent.send(wire.Ping(sent=time.monotonic())))
            if hello.tree:
                self._do(self._ship(agent))
            self._feed(c.Joined(index, Endpoint(hello.address, hello.port)))

    def _as_here(self, agent: Agent, outcome: Outcome) -> Outcome:
        """What is said of files of the project, in terms of the launcher's own."""
        workspace, fault = self.plan.workspace, outcome.fault
        if agent.hello is None or not agent.hello.tree or workspace is None or fault is None:
            return outcome
        trace = fault.traceback
        for name, root in workspace.roots.items():
            trace = trace.replace(os.path.join(agent.hello.tree, name, ""), f"{root.path}{os.sep}")
        return dataclasses.replace(outcome, fault=dataclasses.replace(fault, traceback=trace))

    def _lose(self, index: int, agent: Agent, reason: str) -> None:
        agent.lost.set()
        if not agent.gone:
            agent.gone = True
            when = Interval(agent.last_heard, time.monotonic()).shifted(self._asleep)
            self._feed(c.Gone(index, reason, when))

    def _log(self, agent: Agent, frame: wire.Log, key: int) -> None:
        loop = asyncio.get_running_loop()
        taken = wire.Taken(app=frame.app, round=frame.round, size=len(frame.data))

        def done() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits for it
                loop.call_soon_threadsafe(lambda: self._do(agent.send(taken)))

        self._logs.write(key, frame.stream, frame.data, None if key < 0 else done)

    # ── actions ───────────────────────────────────────────────────────────────

    def _failed(self, error: BaseException) -> None:
        """Something in the background has failed: it ends the app."""
        if not self._verdict.done():
            self._verdict.set_exception(error)

    async def _begin(self, round_: Round) -> None:
        settings = self.plan.settings
        self.plan.tokens.remove()  # everybody has looked
        meeting = Meeting(self.plan, self._agents)
        self._do(meeting.try_to_reach())
        store = Endpoint(meeting.address, round_.store.port)
        round_ = dataclasses.replace(round_, store=store)
        function = await self._get_function()
        ready = [await agent.ready for agent in self._agents.values()]
        if self.coordinator.phase is not c.Phase.RUNNING:
            return
        # One decision for all hosts, or they would wait for each other in a group.
        uses_torch = function.uses_torch or settings.backend not in (None, "auto")
        uses_torch = uses_torch or any(r.torch for r in ready)
        if self.plan.errand is not None:
            uses_torch = uses_torch or function.names_torch
        if uses_torch:
            await meeting.check()
        for index, agent in self._agents.items():
            frame = wire.Begin(
                round=round_.number,
                membership=round_,
                agent=index,
                function=function.digest,
                backend=settings.backend,
                uses_torch=uses_torch,
                process_group_timeout=settings.process_group_timeout,
                records=self._logs.wants_records,
            )
            self._do(agent.send(frame))

    async def _ship(self, agent: Agent) -> None:
        assert self._shipping is not None
        manifest = await self._shipping.manifest()
        await agent.send(wire.Ship(manifest=manifest.digest))

    async def _send_wanted(self, index: int, agent: Agent, digests: tuple[str, ...]) -> None:
        function = await self._get_function()
        if function.digest in digests:
            for piece in function.pieces():
                await agent.send(piece)
        elif self._shipping is not None:
            await self._shipping.send(index, digests, agent.send)

    async def _get_function(self) -> Function:
        # Shielded: whoever provides it must not find it cancelled.
        return await asyncio.shield(asyncio.wrap_future(self._function))

    async def _dismiss(self, verdict: c.Verdict) -> None:
        """Let the agents go: those that can, once their logs are here; the others by force."""
        await asyncio.gather(
            *(
                agent.dismiss(
                    self._gave_up,
                    self.plan.settings.stop_grace,
                    orderly=not agent.gone and index not in verdict.unconfirmed,
                )
                for index, agent in self._agents.items()
            )
        )

    # ── time ──────────────────────────────────────────────────────────────────

    async def _tick(self) -> None:
        """Watch deadlines and silence. Time in which we ourselves were stopped does not count."""
        limit = self.plan.settings.host_timeout
        while True:
            due = self.coordinator.deadline
            wait = _TICK if due is None else min(_TICK, max(0.0, due - self._now()))
            began = time.monotonic()
            await asyncio.sleep(wait)
            overslept = time.monotonic() - began - wait
            if overslept > _ASLEEP:
                self._asleep += overslept
            self._feed(c.Tick())
            self._on_event(self)
            for index, agent in list(self._agents.items()):
                silent = agent.hello is not None and agent.channel.heard == agent.heard
                agent.silent = agent.silent + wait if silent else 0.0
                agent.heard = agent.channel.heard
                if agent.silent >= limit:
                    self._lose(index, agent, f"no heartbeat for {limit:g} s")

    async def _ping(self) -> None:
        while True:
            for agent in list(self._agents.values()):
                if not agent.gone and not agent.channel.congested:
                    await agent.send(wire.Ping(sent=time.monotonic()))
            await asyncio.sleep(self.plan.prepare[0].heartbeat)


def _some(names: Iterable[str]) -> str:
    """The first few of them."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - 4} more" if len(known) > 4 else ""
    return ", ".join(known[:4]) + more
