"""One agent on this machine that makes one call after another, each a round of its own.

A launch of its own costs a call two threads, a loop, and a dozen frames; here it is a fork and a
few frames, read on the caller's own thread. What is decided is decided by the same coordinator.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from phalanx import _wire as wire
from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint
from phalanx._core.signals import signal_name
from phalanx._core.silence import Silence
from phalanx._launcher.agents.store_address import LOOPBACK
from phalanx._launcher.calls.call_runner import CallLost
from phalanx._launcher.calls.lanes.lane_call import LaneCall
from phalanx._launcher.transport.agent_process import AgentProcess
from phalanx._launcher.warm.fingerprint import local_fingerprint
from phalanx._logs import logger
from phalanx._rendezvous import protocol as p
from phalanx._system import shortage
from phalanx.errors import AgentLost, Cancelled, StartFailed, WireError

if TYPE_CHECKING:
    from phalanx._launcher.payload import Function
    from phalanx._launcher.planning.plan import Plan
    from phalanx._launcher.result import LaunchResult
    from phalanx._launcher.warm.pool import AgentPool
    from phalanx._logs.spec import LogSpec

_STEP = 0.5
"""Seconds between looks at the time."""
_PATIENCE = 3.0
"""Seconds for an agent that has nothing to do to say so, or to end."""
_TAIL = 64 << 10


class Lane:
    """An agent, and the call that it makes. Used by one thread at a time; `cancel` by any."""

    def __init__(self, plan: Plan, pools: Sequence[AgentPool]) -> None:
        """Nothing is started yet."""
        self._plan = plan
        self._host = plan.hosts[0]
        self._pools = pools
        prepare = self._host.prepare
        # What every call unpickles with: in each worker it would take longer than all the rest.
        preload = dict.fromkeys((*prepare.preload, wire.Import("cloudpickle")))
        self._first = wire.encode(dataclasses.replace(prepare, preload=tuple(preload)))
        self._fingerprint = local_fingerprint(prepare, plan.env_file) if pools else {}
        self._child: AgentProcess | None = None
        self._decoder = wire.Decoder()
        self._hello: wire.Hello | None = None
        self._ready: wire.Ready | None = None
        self._port = 0
        self._number = 0
        self._heard = 0
        self._errors = b""
        self._told: set[str] = set()
        self._woken, self._wake = os.pipe()
        self._grace: float | None = None
        self._cancelled = False
        self._is_used = False

    def run(self, function: Function, log_spec: LogSpec) -> LaunchResult[Any]:
        """Make a call; block until its end. Raises as `CallRunner.run`."""
        if self._cancelled:
            raise Cancelled("the call was cancelled before it started")
        try:
            self._ensure_agent()
        except OSError as error:
            text = f"cannot start the agent on this machine: {shortage.describe(error)}"
            raise CallLost(StartFailed(text, hostname=self._host.member.hostname)) from None
        call = LaneCall(self._plan, function, log_spec, self._number)
        try:
            verdict = self._drive(call)
            return call.collect(verdict)
        except (AgentLost, StartFailed) as lost:
            raise CallLost(lost) from None
        finally:
            self._number = call.number
            call.close()

    def cancel(self, grace: float | None) -> None:
        """End the call that is made, and make no other; does not wait."""
        self._cancelled, self._grace = True, grace
        with contextlib.suppress(OSError):
            os.write(self._wake, b"x")

    def close(self) -> None:
        """Let the agent go, or leave it to the pool that it came from."""
        child, self._child = self._child, None
        if child is not None and not self._stay_warm(child):
            child.say(wire.encode(wire.ShutDown(app=self._plan.app)))
            child.end(_PATIENCE)
        for number in (self._woken, self._wake):
            os.close(number)

    # ── the agent ─────────────────────────────────────────────────────────────

    def _ensure_agent(self) -> None:
        """Have an agent that has been told what to prepare, and may still be loading."""
        if self._child is not None:
            return
        self._decoder, self._hello, self._ready = wire.Decoder(), None, None
        self._number = 0
        self._errors = b""
        for pool in self._pools:
            while (child := pool.take(self._fingerprint)) is not None:
                if child.process.poll() is None and child.say(self._first):
                    self._child, self._is_used = child, True
                    return
                child.end(0.0)
        for pool in self._pools:
            pool.make_room(self._fingerprint)
        self._child, self._is_used = AgentProcess.start(self._plan.env_file, self._first), False

    def _stay_warm(self, child: AgentProcess) -> bool:
        """Have the agent stay warm in the first pool; False where it cannot."""
        pool = self._pools[0] if self._pools else None
        frame = None if pool is None else pool.stay_warm(self._fingerprint)
        if pool is None or frame is None or self._cancelled or self._ready is None:
            return False
        child.say(wire.encode(dataclasses.replace(frame, app=self._plan.app)))
        limit = time.monotonic() + _PATIENCE
        while time.monotonic() < limit:
            frames = self._receive(child, _STEP)
            if frames is None:
                return False
            if any(isinstance(frame, wire.StayingWarm) for frame in frames):
                child.used = True
                pool.put(self._fingerprint, child)
                return True
        return False

    def _lose(self, child: AgentProcess) -> str:
        """Clear away an agent that has gone or is given up; how it ended."""
        self._child = None
        try:
            code: int | None = child.process.wait(2.0)
        except subprocess.TimeoutExpired:
            code = None
        self._read_errors(child)
        child.kill()
        child.close()
        text = self._errors.decode("utf-8", "replace").strip()
        if code is None:
            how = "it closed its channel but does not exit"
        elif code < 0:
            how = f"it was killed by {signal_name(-code)}"
        else:
            how = f"it exited with code {code}"
        return how + (f":\n{text}" if text else "")

    # ── one call ──────────────────────────────────────────────────────────────

    def _drive(self, call: LaneCall) -> p.Verdict:
        """Have the coordinator's word carried out, until it gives a verdict."""
        silence = Silence(self._heard)
        asked = False
        pinged = time.monotonic()
        while True:
            if self._ready is not None and self._hello is not None and not call.has_joined:
                call.join(self._ready, Endpoint(LOOPBACK, self._port))
            if self._cancelled and not asked:
                asked = True
                call.feed(p.CancelEvent(self._grace))
            self._say(call)
            if call.verdict is not None:
                self._part(call)
                return call.verdict
            child = self._child
            if child is None:  # without it there is a verdict at once
                raise RuntimeError("a call without an agent has no verdict")
            wait = _STEP
            if call.deadline is not None:
                wait = min(_STEP, max(0.0, call.deadline - time.monotonic()))
            frames = self._receive(child, wait)
            if frames is None:
                self._gone(call, self._lose(child))
                continue
            for frame in frames:
                self._hear(call, frame)
            now = time.monotonic()
            call.feed(p.TickEvent())
            if now - pinged > self._host.prepare.heartbeat:
                pinged = now
                call.outgoing.append(wire.Ping(sent=now))
            limit = self._plan.options.host_timeout
            expected = self._hello is not None
            if silence.pass_time(wait, self._heard, expected=expected) >= limit:
                self._lose(child)
                self._gone(call, f"no heartbeat for {limit:g} s")

    def _gone(self, call: LaneCall, reason: str) -> None:
        now = time.monotonic()
        agent = AgentId(self._host.member.agent)
        call.feed(p.AgentGoneEvent(agent, reason, Interval(now, now)))

    def _part(self, call: LaneCall) -> None:
        """A call has ended: an agent that did not confirm that nothing is left is not kept."""
        if (call.is_expelled or (call.verdict and call.verdict.unconfirmed)) and self._child:
            self._lose(self._child)

    def _hear(self, call: LaneCall, frame: wire.Frame) -> None:
        if frame.app not in ("", self._plan.app):
            return  # of an app that the agent served before
        match frame:
            case wire.Hello():
                self._hello, self._port = frame, frame.port
                if self._child is not None:
                    self._child.spool = frame.spool
            case wire.Ready():
                self._ready = frame
                self._note([*frame.notes])
            case wire.UserNote():
                self._note([frame.message])
            case wire.RoundCleared():
                self._port = frame.port or self._port
                call.hear(frame, self._spool)
            case wire.AgentGone():
                child = self._child
                if child is not None:
                    self._lose(child)
                self._gone(call, frame.message)
            case _:
                call.hear(frame, self._spool)

    @property
    def _spool(self) -> str:
        return "" if self._hello is None else self._hello.spool

    def _note(self, notes: Sequence[str]) -> None:
        for note in notes:
            if note not in self._told:
                self._told.add(note)
                logger.warning("phalanx: %s", note)

    # ── the channel ───────────────────────────────────────────────────────────

    def _say(self, call: LaneCall) -> None:
        outgoing, call.outgoing = call.outgoing, []
        if self._child is not None and outgoing:
            app = self._plan.app
            frames = (dataclasses.replace(frame, app=app) for frame in outgoing)
            self._child.say(b"".join(map(wire.encode, frames)))

    def _receive(self, child: AgentProcess, wait: float) -> list[wire.Frame] | None:
        """What the agent has said, or nothing after so long; None when it is gone."""
        read, write, errors = child.descriptors
        poll = select.poll()
        poll.register(read, select.POLLIN)
        poll.register(errors, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        if child.is_behind:
            poll.register(write, select.POLLOUT)
        frames: list[wire.Frame] = []
        for number, _ in poll.poll(wait * 1000):
            if number == self._woken:
                os.read(number, 4096)
            elif number == errors:
                self._read_errors(child)
            elif number == write:
                child.say(b"")
            elif number == read:
                data = os.read(read, 1 << 16)
                if not data:
                    return None
                self._heard += len(data)
                try:
                    frames = self._decoder.feed(data)
                except WireError as error:
                    self._errors += f"\nit sent {error}".encode()
                    return None
        return frames

    def _read_errors(self, child: AgentProcess) -> None:
        number = child.descriptors[2]
        for data in _available(number):
            self._errors = (self._errors + data)[-_TAIL:]


def _available(number: int) -> Iterator[bytes]:
    """What can be read without waiting."""
    while select.select([number], [], [], 0)[0]:
        data = os.read(number, 1 << 16)
        if not data:
            return
        yield data
