"""Hosts the coordinator for one launch: frames in, actions out.

Runs on the loop of the app's own thread. It decides nothing: it carries frames to the coordinator
as events, and the coordinator's actions to the agents as frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import platform
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future

from phalanx import __version__, wire
from phalanx.channel import Channel
from phalanx.clock import ClockOffset, Interval
from phalanx.errors import LaunchError, WireError
from phalanx.launcher.payload import Function, Inbox
from phalanx.launcher.placement import Placed, Placement
from phalanx.launcher.plan import Plan
from phalanx.logs import logger
from phalanx.logs.lines import agent_key
from phalanx.logs.writer import LogWriter
from phalanx.rendezvous import coordinator as c
from phalanx.rounds import Endpoint, Round

_TICK = 0.1
_SETTLE = 0.1
_ASLEEP = 1.0
"""A tick that comes so much too late was not waited for: we were stopped."""
_LAST_LOGS = 3.0
"""How long a cancelled app's logs may take to be written before they are given up."""


class _Agent:
    """What the launcher knows of one agent."""

    def __init__(self, placed: Placed) -> None:
        self.placed = placed
        self.channel: Channel = placed.channel
        self.clock = ClockOffset()
        self.heard = 0
        self.silent = 0.0
        self.last_heard = time.monotonic()
        self.gone = False
        self.rests = False
        self.lost = asyncio.Event()
        self.hello: wire.Hello | None = None
        self.ready: asyncio.Future[wire.Ready] = asyncio.get_running_loop().create_future()
        self.listening: asyncio.Task[None] | None = None


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
        self._agents: dict[int, _Agent] = {}
        self._verdict: asyncio.Future[c.Verdict] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._gave_up = asyncio.Event()
        self._asleep = 0.0
        policy = c.Policy(
            members=plan.members,
            start_timeout=settings.start_timeout,
            stop_grace=settings.stop_grace,
            settle=_SETTLE if len(plan.members) > 1 else 0.0,
        )
        self.coordinator = c.Coordinator(policy, self._now())

    async def run(self) -> c.Verdict:
        """Run the app to its end; when this returns, nothing of it is left."""
        self._do(self._tick())
        self._do(self._ping())
        try:
            async for placed in self._placement.place():
                agent = self._agents[placed.index] = _Agent(placed)
                key = agent_key(placed.index)
                placed.on_errors(functools.partial(self._logs.write, key, "stderr"))
                agent.listening = self._do(self._listen(placed.index, agent))
            verdict = await asyncio.shield(self._verdict)
            await self._dismiss(verdict)
            return verdict
        except BaseException:
            await asyncio.gather(
                *(self._dismiss_one(a, orderly=False) for a in self._agents.values())
            )
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            for agent in self._agents.values():
                agent.channel.abort()

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
                        self._do(self._send(agent, wire.Stop(round=number, grace=grace)))
                case c.Finish(verdict):
                    self._verdict.set_result(verdict)
                    self._reach("ended")
        self._on_event(self)

    def _reach(self, phase: str, ago: float = 0.0) -> None:
        self.phases[phase] = time.monotonic() - ago - self._began

    def describe(self) -> str:
        """Where things stand, in a few words."""
        agents = list(self._agents.values())
        total = sum(member.workers for member in self.plan.members)
        workers = "1 worker" if total == 1 else f"{total} workers"
        if self.coordinator.phase is c.Phase.STOPPING:
            return f"stopping {workers}"
        if "workers forked" in self.phases:
            ended = len(self.coordinator.outcomes)
            return f"running {workers}" + (f", {ended} returned" if ended else "")
        if len(agents) < len(self.plan.members) or not all(a.hello for a in agents):
            return "starting on " + ", ".join(dict.fromkeys(m.hostname for m in self.plan.members))
        if not all(agent.ready.done() for agent in agents):
            tops = [item.module.partition(".")[0] for item in self.plan.prepare[0].preload]
            names = list(dict.fromkeys(tops))
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            return f"loading {', '.join(names[:4]) or 'Python'}{more}"
        return f"starting {workers}"

    async def _listen(self, index: int, agent: _Agent) -> None:
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

    def _hear(self, index: int, agent: _Agent, frame: wire.Frame) -> None:
        match frame:
            case wire.Hello():
                self._greet(index, agent, frame)
            case wire.Pong():
                agent.clock.observe(frame.sent, frame.clock, time.monotonic())
            case wire.Want():
                self._do(self._send_function(agent))
            case wire.Ready():
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
                self._feed(c.WorkerEnded(index, frame.round, frame.outcome, when))
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

    def _greet(self, index: int, agent: _Agent, hello: wire.Hello) -> None:
        ours, theirs = (v.rpartition(".")[0] for v in (platform.python_version(), hello.python))
        if hello.version != __version__:
            self._lose(index, agent, f"it runs phalanx {hello.version}, the launcher {__version__}")
        elif ours != theirs:
            self._lose(index, agent, f"it runs Python {hello.python}, the launcher {ours}")
        else:
            agent.hello = hello
            self._reach("agents up")
            self._do(self._send(agent, wire.Ping(sent=time.monotonic())))
            self._feed(c.Joined(index, Endpoint("127.0.0.1", hello.port)))

    def _lose(self, index: int, agent: _Agent, reason: str) -> None:
        agent.lost.set()
        if not agent.gone:
            agent.gone = True
            when = Interval(agent.last_heard, time.monotonic()).shifted(self._asleep)
            self._feed(c.Gone(index, reason, when))

    def _log(self, agent: _Agent, frame: wire.Log, key: int) -> None:
        loop = asyncio.get_running_loop()
        taken = wire.Taken(app=frame.app, round=frame.round, size=len(frame.data))

        def done() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits for it
                loop.call_soon_threadsafe(lambda: self._do(self._send(agent, taken)))

        self._logs.write(key, frame.stream, frame.data, None if key < 0 else done)

    # ── actions ───────────────────────────────────────────────────────────────

    def _do(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        """Let nothing that fails in the background go unheard: it ends the app."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._verdict.done():
            self._verdict.set_exception(task.exception())  # type: ignore[arg-type]

    async def _send(self, agent: _Agent, frame: wire.Frame) -> None:
        with contextlib.suppress(ConnectionError):  # its end is heard where it is listened to
            await agent.channel.send(dataclasses.replace(frame, app=self.plan.app))

    async def _begin(self, round_: Round) -> None:
        settings = self.plan.settings
        function = await self._get_function()
        ready = [await agent.ready for agent in self._agents.values()]
        if self.coordinator.phase is not c.Phase.RUNNING:
            return
        # One decision for all hosts, or they would wait for each other in a group.
        uses_torch = function.uses_torch or settings.backend not in (None, "auto")
        uses_torch = uses_torch or any(r.torch for r in ready)
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
            self._do(self._send(agent, frame))

    async def _send_function(self, agent: _Agent) -> None:
        function = await self._get_function()
        for piece in function.pieces():
            await self._send(agent, piece)

    async def _get_function(self) -> Function:
        # Shielded: whoever provides it must not find it cancelled.
        return await asyncio.shield(asyncio.wrap_future(self._function))

    async def _dismiss(self, verdict: c.Verdict) -> None:
        """Let the agents go: those that can, once their logs are here; the others by force."""
        await asyncio.gather(
            *(
                self._dismiss_one(agent, orderly=not agent.gone and i not in verdict.unconfirmed)
                for i, agent in self._agents.items()
            )
        )

    async def _dismiss_one(self, agent: _Agent, *, orderly: bool) -> None:
        if orderly:
            await self._send(agent, agent.placed.rest or wire.Leave())
            await self._await_logs(agent)
            if agent.rests:
                agent.placed.keep()
            else:
                await agent.placed.end(2.0)
            return
        agent.channel.close()
        await agent.placed.end(self.plan.settings.stop_grace + 3.0)
        if agent.hello is not None:
            agent.placed.sweep(self.plan.app, agent.hello.spool)

    async def _await_logs(self, agent: _Agent) -> None:
        """Until the agent has nothing left to say; not much longer once the app was given up."""
        if agent.listening is None:
            return
        ends = [asyncio.create_task(event.wait()) for event in (self._gave_up, agent.lost)]
        await asyncio.wait({agent.listening, *ends}, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if not agent.listening.done():
            await asyncio.wait({agent.listening}, timeout=_LAST_LOGS)
            if not agent.listening.done():
                logger.warning("phalanx: the last of the workers' output was given up")

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
                    await self._send(agent, wire.Ping(sent=time.monotonic()))
            await asyncio.sleep(self.plan.prepare[0].heartbeat)
