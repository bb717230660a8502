"""Where agents come from: children of this process, hosts that were dialled, or an app before.

A placement starts agents and gives a channel to each; it does not know what an agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from phalanx import _wire as wire
from phalanx._channel.channel import PipeChannel
from phalanx._core.ids import HostIndex
from phalanx._core.signals import signal_name
from phalanx._launcher.planning.plan import HostPlan, Plan
from phalanx._launcher.transport.agent_process import AgentProcess
from phalanx._launcher.warm.fingerprint import Fingerprint, local_fingerprint, remote_fingerprint
from phalanx._launcher.warm.pool import AgentPool
from phalanx._logs import logger
from phalanx._remote.bootstrap import SOURCE_FAILED
from phalanx._system import daemon_thread, shortage
from phalanx._system.daemon_thread import in_daemon_thread
from phalanx._worker import leftovers
from phalanx.errors import StartFailed, WireError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from phalanx._channel.resumable import ResumableChannel
    from phalanx._launcher.transport.dial import Dial, Dials, Reattached

_TAIL = 64 << 10
_PASSED_ON, _UNWRITTEN = 256 << 20, 1 << 20
"""Bytes that an agent may say outside of its channel, and that may wait to be written."""
_FIRST_WORD = 5.0
"""Seconds in which an agent that was there already must answer, or another is started."""
_SWEEPING = 2.0
"""Seconds that a lost host's sweeping up may hold up the report of its loss."""
_SWEEPING_AT_END = 5.0
"""The same at the end of an app, which nothing waits for but its user."""
_RETRIED, _RETRIED_AT_LEAST_EVERY = 0.2, 2.0
"""Seconds after which a broken stream is tried to be replaced again, and what this grows to."""
_SECOND_WORD = 0.05
"""Seconds in which one that has lost its zygote meanwhile will have noticed."""


@dataclass(frozen=True)
class NotPlaced:
    """An agent that could not be started, and why."""

    index: HostIndex
    reason: str


@dataclass
class _Start:
    """An agent, or one that is being dialled, and where it stays after the app."""

    host: HostPlan
    fingerprint: Fingerprint
    pool: AgentPool | None
    code: str = ""
    """The digest of the agent's code, for another host."""
    child: AgentProcess | None = None
    dial: Dial | None = None
    is_opened: bool = False
    """Somebody has asked for its agent."""


class Placement:
    """Starts the agents of a plan, each on its host; or takes such as were left from before."""

    def __init__(
        self, plan: Plan, pools: Sequence[AgentPool] = (), dials: Dials | None = None
    ) -> None:
        """New agents stay in the first pool. `dials` are hosts that were dialled for the plan."""
        self._plan = plan
        self._pools = pools
        self._dials = dials
        self._starts: list[_Start] = []
        self._together = 0
        self._pythons: dict[HostIndex, str] = {}
        """The interpreters that hosts had when they came first."""
        self.given_up: list[str] = []
        """The hosts whose logins we have ended before they had led anywhere."""

    def start(self) -> None:
        """Start, dial or find the agents; does not wait. Raises `StartFailed`."""
        new: list[HostIndex] = []
        for index, host in zip(map(HostIndex, count()), self._plan.hosts, strict=False):
            # Now, not later: the program may change its environment at any time.
            fingerprint = self._fingerprint_of(host) if self._pools else {}
            pool = self._pools[0] if self._pools else None
            start = _Start(host, fingerprint, pool, self._code)
            self._starts.append(start)
            start.dial = None if self._dials is None else self._dials.pop(index)
            if start.dial is None and not self._find(start):
                new.append(index)
        self._together = len(self._starts)
        # Not sooner: what waits may be what another of our hosts takes.
        for index in new:
            for pool in self._pools:
                pool.make_room(self._starts[index].fingerprint)
        dialled = [index for index in new if self._plan.hosts[index].target is not None]
        self._dial(dialled)
        for index in new:
            if index not in dialled:
                self._start_here(self._starts[index])

    @property
    def _code(self) -> str:
        return "" if self._plan.remote_setup is None else self._plan.remote_setup.bundle.digest

    def _fingerprint_of(self, host: HostPlan) -> Fingerprint:
        setup = self._plan.remote_setup
        if host.target is None or setup is None:
            return local_fingerprint(host.prepare, self._plan.env_file)
        return remote_fingerprint(host.prepare, host.target, setup.bundle.digest, setup.env_file)

    def _find(self, start: _Start) -> bool:
        for pool in self._pools:
            while (child := pool.take(start.fingerprint)) is not None:
                frame = _first_frame(start.host, child)
                if child.process.poll() is None and child.say(wire.encode(frame)):
                    start.child, start.pool = child, pool
                    return True
                child.end(0.0)
        return False

    def _start_here(self, start: _Start) -> None:
        try:
            start.child = AgentProcess.start(self._plan.env_file, wire.encode(start.host.prepare))
        except OSError as error:
            raise StartFailed(
                f"cannot start the agent on this machine: {shortage.describe(error)}",
                hostname="localhost",
            ) from error

    def _dial(self, indexes: Sequence[HostIndex]) -> None:
        plan = self._plan
        chosen = {i: target for i in indexes if (target := plan.hosts[i].target) is not None}
        if not chosen or plan.remote_setup is None:
            return
        from phalanx._launcher.transport.dial import Dials

        dials = Dials()
        dials.start(chosen, plan.remote_setup, plan.options.parallel_logins)
        for index in chosen:
            self._starts[index].dial = dials.pop(index)

    async def place(self) -> AsyncIterator[PlacedAgent | NotPlaced]:
        """The agents, as each can be spoken to, in any order. One that has gone is replaced."""
        # Those that were started together; others are added one by one.
        opening = [asyncio.create_task(self._open(HostIndex(i))) for i in range(self._together)]
        try:
            for opened in asyncio.as_completed(opening):
                yield await opened
        finally:
            for task in opening:
                task.cancel()

    def extend(self, plan: Plan, dial: Dial | None = None) -> None:
        """Take up a plan that has one more host, which may have been dialled already."""
        self._plan = plan
        self._starts.append(_Start(plan.hosts[-1], {}, None, self._code, dial=dial))

    async def again(self, index: HostIndex) -> PlacedAgent | NotPlaced:
        """Start an agent in place of one that is lost, or was not started yet."""
        before = self._starts[index]
        if before.child is None and before.dial is not None and not before.is_opened:
            return await self._open(index)  # dialled when it was added
        start = self._starts[index] = dataclasses.replace(before, child=None, dial=None)
        try:
            if start.host.target is None:
                self._start_here(start)
            else:
                self._dial([index])
        except StartFailed as error:
            return NotPlaced(index, str(error))
        return await self._open(index)

    async def _open(self, index: HostIndex) -> PlacedAgent | NotPlaced:
        start = self._starts[index]
        start.is_opened = True
        if start.child is not None:
            agent = await PlacedAgent.open(index, start, start.child)
            if not start.child.used or await _is_well(agent.channel, start.host.prepare.app):
                return agent
            await agent.destroy(0.0, None)
            start.child = None
            if start.host.target is None:
                self._start_here(start)
            else:
                self._dial([index])
        if start.child is None and start.dial is not None:
            try:
                await asyncio.shield(asyncio.wrap_future(start.dial.future))
                child = start.child = start.dial.take()
            except StartFailed as error:
                if start.dial.is_silent:
                    self.given_up.append(start.dial.name)
                return NotPlaced(index, str(error))
            python = "" if child.remote_info is None else child.remote_info.python
            if python != self._pythons.setdefault(index, python):
                # One that is only coming up again may not have its environments mounted yet.
                await asyncio.to_thread(child.kill)
                child.close()
                start.child = None
                before = self._pythons[index]
                return NotPlaced(index, f"its Python changed from {before} to {python}")
            child.say(wire.encode(_first_frame(start.host, child)))
            if start.host.prepare.reconnect_timeout:
                from phalanx._channel.resumable import ChannelState

                child.state = (
                    ChannelState()
                )  # the first frame is not counted: it says that there is one
        assert start.child is not None
        return await PlacedAgent.open(index, start, start.child)

    def abandon(self) -> None:
        """Give up those that were not reached yet; those that were are not touched."""
        if self._dials is not None:
            self._dials.give_up()
        for start in self._starts:
            if start.dial is not None:
                if not start.dial.future.done():
                    self.given_up.append(start.dial.name)
                start.dial.give_up()

    def kill(self) -> None:
        """End the agents that were started, without waiting for anything in order."""
        self.abandon()
        for start in self._starts:
            if start.child is not None:
                start.child.kill()
                start.child.close()


def _first_frame(host: HostPlan, child: AgentProcess) -> wire.Prepare:
    """What an agent is told first: what `env_file` set there is not set from here again."""
    frame = host.prepare
    if child.remote_info is None or not child.remote_info.changed:
        return frame
    kept = child.remote_info.changed - host.own_variables.keys()
    environment = {k: v for k, v in frame.environment.items() if k not in kept}
    return dataclasses.replace(frame, environment=environment)


async def _is_well(channel: PipeChannel, app: str) -> bool:
    """An agent that was there already answers, and does not say at once that it is broken."""

    def says(kind: type[wire.Frame]) -> bool:
        return any(isinstance(f, kind) and f.app in ("", app) for f in channel.waiting)

    await channel.wait_until(lambda: says(wire.Hello) or says(wire.AgentGone), _FIRST_WORD)
    if not says(wire.Hello):
        return False
    await channel.wait_until(lambda: says(wire.Ready) or says(wire.AgentGone), _SECOND_WORD)
    return not says(wire.AgentGone) and not channel.has_ended


def _end_late(attempt: Future[Reattached]) -> None:
    """A stream that nobody waits for any more."""
    if attempt.exception() is None:
        attempt.result().child.end(0.0)


class PlacedAgent:
    """An agent that was started, and the channel to it."""

    def __init__(
        self, index: HostIndex, start: _Start, child: AgentProcess, channel: PipeChannel
    ) -> None:
        """Use `open` instead."""
        self.index = index
        self.channel = channel
        self._start = start
        self._child = child
        self._process = child.process
        self._pool = start.pool
        self._fingerprint = start.fingerprint
        self._target = start.host.target
        self._code = start.code
        self._errors = _Tail(child.early)
        child.early = b""
        self._described = False
        self._killed = True
        """Where it had to be killed, that was seen to work."""
        self._spool = ""
        self._reconnecting: asyncio.Task[None] | None = None
        self._broke = ""
        """Why a stream that broke was not replaced."""

    @classmethod
    async def open(cls, index: HostIndex, start: _Start, child: AgentProcess) -> PlacedAgent:
        """Open a channel over the child's streams."""
        read, write, errors, unsaid = child.streams()
        channel: PipeChannel
        if child.state is None:
            channel = await PipeChannel.open(read, write)
            agent = cls(index, start, child, channel)
        else:
            from phalanx._channel.resumable import ResumableChannel

            broken = asyncio.Event()
            channel = await ResumableChannel.over(read, write, child.state, lambda _: broken.set())
            agent = cls(index, start, child, channel)
            agent._reconnecting = asyncio.create_task(agent._keep_up(channel, broken))
        channel.send_raw(unsaid)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: agent._errors, errors)
        return agent

    def greet(self, hello: wire.Hello) -> None:
        """It has said where it can be found, should the stream break."""
        self._spool = self._child.spool = hello.spool

    # ── streams that break ────────────────────────────────────────────────────

    async def _keep_up(self, channel: ResumableChannel, broken: asyncio.Event) -> None:
        """Replace the stream whenever it breaks, for as long as there is somebody to reach."""
        limit = self._start.host.prepare.reconnect_timeout
        while True:
            await broken.wait()
            broken.clear()
            began = time.monotonic()
            why = await self._describe_process()
            logger.warning(
                "phalanx: the connection to %s broke (%s); reconnecting for up to %g s",
                self.host,
                why,
                limit,
            )
            problem = await self._reconnect(channel, began + limit)
            if problem:
                self._broke = f"the connection broke ({why}), and reconnecting failed: {problem}"
                channel.give_up()
                return
            seconds = time.monotonic() - began
            logger.warning("phalanx: reconnected to %s after %.1f s", self.host, seconds)

    async def _reconnect(self, channel: ResumableChannel, deadline: float) -> str:
        """Have another stream; gives why there is none."""
        from phalanx._launcher.transport.dial import ReattachRefused, reattach
        from phalanx._launcher.transport.login import LoginEnded

        assert self._target is not None
        if not self._spool:
            return "the agent has not said where it can be found"
        key = self._start.host.prepare.reconnect_key
        pause = _RETRIED
        while True:
            patience = max(1.0, deadline - time.monotonic())
            call = functools.partial(reattach, self._target, self._spool, key)
            attempt = daemon_thread.start(functools.partial(call, channel.detach(), patience))
            try:
                found = await asyncio.shield(asyncio.wrap_future(attempt))
                await self._go_on_with(channel, found)
                return ""
            except asyncio.CancelledError:
                attempt.add_done_callback(_end_late)
                raise
            except ReattachRefused as gone:
                return f"the agent is gone: {gone}"
            except LoginEnded as error:
                problem = error.describe()
                if error.is_gone:
                    return problem
            except (StartFailed, WireError) as error:
                problem = str(error)
            if time.monotonic() + pause > deadline:
                return problem
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRIED_AT_LEAST_EVERY)

    async def _go_on_with(self, channel: ResumableChannel, found: Reattached) -> None:
        child = found.child
        before = self._child
        child.remote_info, child.state = before.remote_info, before.state
        read, write, errors, _ = child.streams()
        await channel.resume(read, write, found.received, found.early)
        self._child = self._start.child = child
        self._process = child.process
        self._errors = self._errors.successor(child.early)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: self._errors, errors)
        await asyncio.to_thread(before.kill)
        before.close()

    @property
    def is_remote(self) -> bool:
        """It is on another host: what is here only leads to it."""
        return self._child.remote_info is not None

    @property
    def stay_warm(self) -> wire.StayWarm | None:
        """What to tell it so that it stays for another app."""
        return None if self._pool is None else self._pool.stay_warm(self._fingerprint)

    def return_to_pool(self) -> None:
        """It has said that it stays warm: the next app may have it."""
        whole = self.channel.is_written
        self._stop_reconnecting()
        self.channel.abort()
        self._errors.close()
        if self._pool is not None and whole:
            self._child.used = True
            self._pool.put(self._fingerprint, self._child)
        else:
            self._child.end(2.0)

    @property
    def host(self) -> str:
        """Where it is, for a message."""
        return (
            "the local agent" if self._child.remote_info is None else self._child.remote_info.host
        )

    def on_errors(self, take: Callable[[bytes, Callable[[], None]], None]) -> None:
        """Have what it says outside of its channel, from the beginning, passed on to this.

        It is given what to call, from any thread, when that is done.
        """
        self._errors.pass_on(take)

    async def describe_end(self) -> str:
        """How it ended, for an error; called when its channel has ended."""
        self._described = True
        return self._broke or await self._describe_process()

    async def _describe_process(self) -> str:
        try:
            code = await self._wait(2.0)
        except TimeoutError:
            return "it closed its channel but does not exit"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._errors.ended.wait()
        text = self._errors.text()
        if self._child.remote_info is not None:
            tool = self._child.remote_info.tool
            why = text or "no error message: the agent was killed, or the connection was lost"
            return f"{tool} exited with code {code}: {why}"
        if code == SOURCE_FAILED:
            return f"sourcing env_file failed:\n{text}"
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
        return f"it {how}" + (f":\n{text}" if text else "")

    def wake(self) -> None:
        """Have it, or what leads to it, go on if it was stopped."""
        self._child.wake()

    async def end(self, patience: float) -> bool:
        """Wait so long for it to end by itself, then kill it.

        Gives whether it is known to have left nothing: it has ended in order, or all that was below
        it was seen to die.
        """
        self.channel.part()  # all is here: one that is slow to end waits for nobody
        try:
            code = await self._wait(patience)
            if code > 0 and not self._described and not self.is_remote:
                logger.warning("phalanx: an agent failed: %s", await self.describe_end())
            clean = code == 0 and not self._child.is_found
        except TimeoutError:
            self._killed = await asyncio.to_thread(self._child.kill)
            clean = self._killed and not self.is_remote
        self._stop_reconnecting()
        self.channel.abort()
        self._errors.close()
        self._child.close()
        return clean

    def _stop_reconnecting(self) -> None:
        if self._reconnecting is not None:
            self._reconnecting.cancel()

    async def destroy(self, patience: float, hello: wire.Hello | None) -> bool:
        """End it, and whatever it can have left behind; whether nothing of it is left was seen.

        Agent and zygote may have been killed both; what workers had started is then nobody's.
        """
        clean = await self.end(patience)
        if self.is_remote:
            return clean or await self.sweep(hello, _SWEEPING_AT_END)
        spool = "" if hello is None else hello.spool
        swept = await asyncio.to_thread(leftovers.end_agent, 0, None, spool)
        return swept and self._killed

    async def sweep(self, hello: wire.Hello | None, patience: float = _SWEEPING) -> bool:
        """Log in to its host once more to end and remove what is left of it there.

        A host that does not answer is not waited for; then False.
        """
        remote_info = self._child.remote_info
        if self._target is None or remote_info is None:
            return self._killed
        from phalanx._launcher.transport.dial import sweep

        once = functools.partial(sweep, self._target, self._code, remote_info, hello)
        try:
            return await in_daemon_thread(once, patience)
        except TimeoutError:
            return False

    async def _wait(self, patience: float | None) -> int:
        """Poll: a child watcher would want this process's SIGCHLD or a thread."""
        loop = asyncio.get_running_loop()
        limit = None if patience is None else loop.time() + patience
        pause = 0.0005
        self._child.close()
        while (code := self._process.poll()) is None:
            if limit is not None and loop.time() > limit:
                raise TimeoutError
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        return code


class _Tail(asyncio.Protocol):
    """Keeps the end of what an agent wrote to its stderr."""

    def __init__(self, early: bytes) -> None:
        self.ended = asyncio.Event()
        self._data = bytearray(early)
        self._transport: asyncio.ReadTransport | None = None
        self._take: Callable[[bytes, Callable[[], None]], None] | None = None
        self._unwritten = 0
        self._left = _PASSED_ON

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self._transport = transport

    def pass_on(self, take: Callable[[bytes, Callable[[], None]], None]) -> None:
        self._take = take
        if self._data:
            self._hand_on(bytes(self._data))

    def data_received(self, data: bytes) -> None:
        self._hand_on(data)
        self._data += data
        del self._data[:-_TAIL]

    def _hand_on(self, data: bytes) -> None:
        """Pass on no faster than it is written, and not without end: it may be a host that lies."""
        if self._take is None or self._left <= 0 or self._transport is None:
            return
        self._left -= len(data)
        self._unwritten += len(data)
        if self._unwritten > _UNWRITTEN:
            self._transport.pause_reading()
        loop = asyncio.get_running_loop()

        def done() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._written, len(data))

        if self._left <= 0:
            data += b"\n[phalanx: truncated]\n"
        self._take(data, done)

    def _written(self, size: int) -> None:
        self._unwritten -= size
        if self._unwritten <= _UNWRITTEN and self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    def successor(self, early: bytes) -> _Tail:
        """One for another stream, which goes on where this one stops."""
        self.close()
        tail = _Tail(early)
        tail._take, tail._left = self._take, self._left
        return tail

    def text(self) -> str:
        return self._data.decode("utf-8", "replace").strip()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
