"""One round on this host, from the order to begin until no process of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TypeVar

from phalanx import _wire as wire
from phalanx._agent.rounds import output_files, round_files
from phalanx._agent.rounds.watchdog import Watchdog
from phalanx._agent.stacks.stack_reader import StackReader
from phalanx._core import heartbeats
from phalanx._core.environment import defaults
from phalanx._core.launch_guard import DEPTH
from phalanx._core.ranks import (
    APP,
    HEARTBEAT_FILE,
    STOP_FILE,
    jax_environment,
    worker_environment,
)
from phalanx._core.rounds import Ended, ExceptionInfo, Member, Outcome
from phalanx._core.signals import signal_name
from phalanx._core.stacks import RankStacks, describe_hung, describe_with, parse
from phalanx._system import cgroup, processes
from phalanx._worker import error_file
from phalanx._worker.outcome import (
    LARGE,
    PAYLOAD,
    RAISED,
    REPORT,
    SMALL,
    is_exhausted,
    open_regular,
)
from phalanx._worker.shutdown import UNWRITTEN
from phalanx.errors import WireError

T = TypeVar("T")
Send = Callable[[wire.Frame], Coroutine[None, None, None]]
Spawn = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]

_MESSAGE = 1 << 18
"""The most that a worker's report takes."""
_UCRED = struct.Struct("3i")
_CREDENTIALS = socket.CMSG_SPACE(_UCRED.size)

_FAST, _SLOW = 0.01, 0.05
"""Seconds between looks at the workers' files: after something was found, and when idle."""
_LIMITED = 1.0
"""Seconds between looks at whether they are over their limit."""
_STACKS_OF_HUNG = 1.0
"""Seconds for the stacks of a worker that has hung, before it is killed."""


class HostRound:
    """The workers of one round: who runs, how they ended, what they printed."""

    def __init__(
        self,
        begin: wire.BeginRound,
        directory: str,
        environment: Mapping[str, str],
        send: Send,
        spawn: Spawn,
        *,
        with_launcher: bool = False,
    ) -> None:
        """Make the directory that the workers' own are put in.

        `environment` is the workers'; `spawn` runs something whose failure is not overlooked.
        `with_launcher`: it is on the same machine, and can read our files.
        """
        self._with_launcher = with_launcher
        self.begin = begin
        self.member: Member = begin.membership.member(begin.agent)
        self.directory = directory
        self.reports, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.reports.setblocking(False)
        self.reports.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.started = False
        self._said_started = False
        self.stop_file = os.path.join(directory, "stop")
        self.cleared = asyncio.Event()
        self._environment = environment
        self._send = send
        self._spawn = spawn
        self._pids: dict[int, int] = {}
        self._entered: set[int] = set()
        self._ended: set[int] = set()
        self._payloads: dict[int, bytes] = {}
        """Values and exceptions that have come with a report."""
        self._oom_kills = cgroup.oom_kills()
        """How many processes had been killed for want of memory before."""
        self._held: dict[int, Outcome] = {}
        """Programs that have come to their end, and are only leaving."""
        self._stacks = StackReader(directory)
        timeout = begin.heartbeat_timeout
        self._watchdog = Watchdog(directory, timeout, self._running, self._look_at)
        self._watching: asyncio.Task[None] | None = None
        self._window = wire.LOG_WINDOW
        self.handed_on = 0
        """How much of the output was sent."""
        self._room = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._streams = list(
            output_files.streams(directory, self.member.ranks, records=self._records)
        )
        self._cut: list[output_files.OutputFile] = []
        """Those of which it was said that something is missing."""
        for path in (directory, *(os.path.join(directory, str(r)) for r in self.member.ranks)):
            os.makedirs(path, 0o700, exist_ok=begin.is_call)  # as the last call has left it
        self._following = spawn(self._follow())
        if not begin.is_call:
            spawn(self._limit_files())

    # ── start ─────────────────────────────────────────────────────────────────

    def fork(self, function: str, interface: str | None) -> wire.ForkWorkers:
        """The order to the zygote. `interface` is the network's that workers are to use."""
        return wire.ForkWorkers(
            app=self.begin.app,
            round=self.begin.round,
            function=function,
            directory=self.directory,
            workers=tuple(self._variables(rank, interface) for rank in self.member.ranks),
            backend=self.begin.backend,
            uses_torch=self.begin.uses_torch,
            process_group_timeout=self.begin.process_group_timeout,
            records=self._records,
            is_call=self.begin.is_call,
        )

    @property
    def _records(self) -> tuple[int, ...]:
        return tuple(self.member.first_rank + local for local in self.begin.records)

    def _variables(self, rank: int, interface: str | None) -> dict[str, str]:
        variables = worker_environment(
            self.begin.membership,
            self.member,
            rank,
            run_id=self.begin.run_id or self.begin.app,
            max_restarts=self.begin.max_restarts,
            error_file=os.path.join(self.directory, str(rank), "error.json"),
            agent_store=self.begin.uses_torch,
        )
        variables |= {APP: self.begin.app, STOP_FILE: self.stop_file}
        variables[HEARTBEAT_FILE] = os.path.join(self.directory, str(rank), heartbeats.FILE)
        depth = self._environment.get(DEPTH, "0")
        variables[DEPTH] = str(int(depth) + 1 if depth.isdigit() else 1)
        wanted = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
        wanted |= jax_environment(self.begin.membership, self._environment)
        if interface is not None:
            wanted |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
        return variables | defaults(self._environment, wanted)

    def workers_started(self, pids: dict[int, int]) -> None:
        """The zygote has forked them."""
        self._pids = {rank: pid for rank, pid in pids.items() if rank in self.member.ranks}
        self.theirs.close()
        self._spawn(self._say_started())
        # Not sooner: only now do we know who is who.
        # By its number: asyncio would look up a socket's addresses, for a message nobody reads.
        asyncio.get_running_loop().add_reader(self.reports.fileno(), self._hear_workers)
        self._watching = self._spawn(self._watchdog.run(self._hung, self._tell_steps))

    async def zygote_lost(self) -> None:
        """It may have forked workers without saying so, and they may have run."""
        if self.started and not self._said_started:
            await self._say_started()

    async def _say_started(self) -> None:
        self._said_started = True
        await self._send(self._stamp(wire.WorkersStarted(pids=self._pids)))

    def ask_to_stop(self) -> None:
        """Let the workers know that the host will be taken away."""
        try:
            with open(self.stop_file, "w"):
                pass
        except OSError as error:
            text = f"cannot tell workers about the preemption of the host: {error}"
            self._spawn(self._send(wire.UserNote(app=self.begin.app, message=text)))

    def _running(self) -> dict[int, int]:
        """The pids of those whose functions have not ended."""
        return {rank: pid for rank, pid in self._pids.items() if rank not in self._ended}

    async def send_stacks(
        self, seconds: float, request: int = 0, *, below: bool = False, native: bool = False
    ) -> None:
        """Send home where the workers are whose functions run, or those of launches below them."""
        pids = self._running()
        if below:
            dumps = await self._stacks.take_below(pids.values(), seconds, native=native)
        else:
            dumps = await self._stacks.take(pids, seconds, native=native)
        await self._send(self._stamp(wire.WorkerStacks(request=request, ranks=dumps, below=below)))

    # ── hangs ─────────────────────────────────────────────────────────────────

    def stop_watching(self) -> None:
        """The workers are told to stop: they need not get on any more."""
        if self._watching is not None:
            self._watching.cancel()

    async def _look_at(self, ranks: Sequence[int]) -> dict[int, RankStacks]:
        """Where workers are that have hung."""
        running = self._running()
        pids = {rank: running[rank] for rank in ranks if rank in running}
        dumps = await self._stacks.take_hung(pids, _STACKS_OF_HUNG)
        return {
            dump.rank: RankStacks(
                rank=dump.rank,
                hostname=self.member.hostname,
                pid=dump.pid,
                threads=parse(dump.text),
                problem=dump.problem,
                native=dump.native,
                collectives=dump.collectives,
            )
            for dump in dumps
        }

    def _hung(self, rank: int, reason: str, looked_at: Mapping[int, RankStacks]) -> None:
        """Give a worker up that does not get on: whatever it hangs in, SIGKILL ends it."""
        stacks = looked_at[rank]
        self._hear_workers()
        if rank in self._ended:
            return
        processes.send(self._pids[rank], signal.SIGKILL)
        exception = ExceptionInfo(
            type_name="Hang",
            message=describe_hung(reason, stacks),
            traceback=describe_with([stacks], looked_at.values()),
            communication=stacks.waits_for_others,
            reraise=False,
        )
        pid, clock = self._pids[rank], time.monotonic()
        self._end(Outcome(rank, Ended.HUNG, clock, pid, signal=signal.SIGKILL, exception=exception))

    async def _tell_steps(self) -> None:
        if not self.begin.is_call and (steps := self._watchdog.steps(self.member.ranks)):
            await self._send(self._stamp(wire.WorkerSteps(ranks=steps)))

    # ── ends ──────────────────────────────────────────────────────────────────

    def has_exited(self) -> bool:
        """A worker is gone, and the zygote has not said so."""
        return any(processes.is_zombie(pid) for pid in self._pids.values())

    @property
    def reported(self) -> tuple[int, ...]:
        """The ranks whose function has ended; they are only leaving."""
        return tuple(sorted(self._ended))

    def worker_exited(self, rank: int, status: int, clock: float, signalled: int | None) -> None:
        """A process is gone; unless it said how its function ended, this is how."""
        if rank not in self.member.ranks:
            return
        self._hear_workers()
        if rank not in self._ended:
            self._read_report(rank)
        if (held := self._held.pop(rank, None)) is not None and status == 0:
            self._end(held)
        if rank in self._ended:
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) not in (9, signal.SIGTERM):
                name = signal_name(os.WTERMSIG(status))
                print(f"rank {rank} was killed by {name} after its function ended", file=sys.stderr)
            elif os.WIFEXITED(status) and os.WEXITSTATUS(status) == UNWRITTEN:
                text = f"rank {rank} could not write its output after its function ended"
                self._spawn(self._send(wire.UserNote(app=self.begin.app, message=text)))
            return
        killed = os.WIFSIGNALED(status)
        if self.begin.exits and status == 0:
            self._end(Outcome(rank, Ended.RETURNED, clock, self._pids.get(rank)))
            return
        outcome = Outcome(
            rank=rank,
            kind=Ended.KILLED if killed else Ended.EXITED,
            clock=clock,
            pid=self._pids.get(rank),
            code=None if killed else os.waitstatus_to_exitcode(status),
            signal=os.WTERMSIG(status) if killed else None,
            stopped=killed and os.WTERMSIG(status) == signalled,
            detail="out of memory" if self._was_out_of_memory(status, signalled) else "",
        )
        self._end(outcome)

    def _was_out_of_memory(self, status: int, signalled: int | None) -> bool:
        """The kernel has killed it, as far as its own count tells."""
        if status != signal.SIGKILL or signalled == signal.SIGKILL:
            return False
        count = cgroup.oom_kills()
        if count is None or self._oom_kills is None or count <= self._oom_kills:
            return False
        self._oom_kills += 1
        return True

    async def processes_gone(self, port: int) -> None:
        """Nothing of the round is left: once the last outcomes are sent, say so.

        `port` is bound for the next round's store.
        """
        self._hear_workers()
        while self._sending:
            await asyncio.wait(self._sending)
        if self.cleared.is_set():
            return
        self.stop_watching()
        self.cleared.set()
        with contextlib.suppress(OSError, asyncio.CancelledError):  # the agent knows of it
            if self.begin.is_call:
                await asyncio.shield(self._following)
                round_files.clear(self.directory, self.member.ranks)
            await self._tell_steps()
            await self._send(self._stamp(wire.RoundCleared(port=port)))

    async def close(self, *, drain: bool) -> None:
        """End following; with `drain`, only after everything printed was handed on. Idempotent."""
        if self.reports.fileno() < 0:
            return
        self.stop_watching()
        if not drain:
            self._following.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await self._following
        asyncio.get_running_loop().remove_reader(self.reports.fileno())
        self.reports.close()
        self.theirs.close()

    def _hear_workers(self) -> None:
        while True:
            try:
                message, said, *_ = self.reports.recvmsg(_MESSAGE, _CREDENTIALS)
            except (BlockingIOError, OSError):
                return
            pid = _sender(said)
            if not message and not pid:
                asyncio.get_running_loop().remove_reader(self.reports.fileno())
                return
            # All workers have the socket; each speaks for itself.
            rank = next((rank for rank, own in self._pids.items() if own == pid), None)
            if rank is not None:
                self._take_report(rank, message)

    def _read_report(self, rank: int) -> None:
        """Look for the report of a worker that could not send it."""
        path = os.path.join(self.directory, str(rank), REPORT)
        try:
            with self._with_descriptors(lambda: open_regular(path)) as file:
                self._take_report(rank, file.read(_MESSAGE))
        except OSError as error:
            if is_exhausted(error):
                raise

    def _take_report(self, rank: int, message: bytes) -> None:
        """What a worker says of itself, and nothing else: its socket and files are the user's."""
        try:
            frames = wire.Decoder().feed(message)
        except WireError:
            return  # whatever has the socket: its end will be seen
        for frame in frames:
            match frame:
                case wire.Piece() if rank not in self._ended and 0 < len(frame.data) <= SMALL:
                    self._payloads[rank] = frame.data
                case wire.WorkerEnded(outcome=Outcome() as ended) if rank not in self._ended:
                    if ended.rank == rank and _makes_sense(ended):
                        self._take_outcome(dataclasses.replace(ended, pid=self._pids.get(rank)))
                case wire.WorkerEntered() if rank not in self._entered and math.isfinite(
                    frame.clock
                ):
                    self._entered.add(rank)
                    entered = wire.WorkerEntered(rank=rank, clock=frame.clock)
                    self._spawn(self._send(self._stamp(entered)))

    def _take_outcome(self, outcome: Outcome) -> None:
        if self.begin.exits and outcome.succeeded:
            self._held[outcome.rank] = outcome  # it may still fail
        else:
            self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        self._ended.add(outcome.rank)
        task = self._spawn(self._bring_home(outcome))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _bring_home(self, outcome: Outcome) -> None:
        directory = os.path.join(self.directory, str(outcome.rank))
        if not outcome.succeeded:
            stderr = output_files.tail(os.path.join(directory, "stderr"))
            exception = outcome.exception or error_file.read(os.path.join(directory, "error.json"))
            outcome = dataclasses.replace(outcome, stderr=stderr, exception=exception)
        with contextlib.suppress(ConnectionError):
            await self._send_payload(outcome.rank, os.path.join(directory, PAYLOAD))
            await self._send(self._stamp(wire.WorkerEnded(rank=outcome.rank, outcome=outcome)))

    async def _send_payload(self, rank: int, path: str) -> None:
        if (small := self._payloads.pop(rank, None)) is not None:
            piece = wire.Piece(key=PAYLOAD, offset=0, total=len(small), data=small, rank=rank)
            await self._send(self._stamp(piece))
            return
        try:
            file = self._with_descriptors(lambda: open_regular(path))
        except OSError as error:
            if is_exhausted(error):
                raise
            return
        with file:
            total = os.fstat(file.fileno()).st_size
            if self._with_launcher and total > LARGE:
                # Out of the round's directory, which may be gone before it is taken.
                name = f"{os.path.basename(self.directory)}-{self.begin.round}-payload-{rank}"
                os.rename(path, os.path.join(os.path.dirname(self.directory), name))
                await self._send(self._stamp(wire.PayloadFile(name=name, total=total, rank=rank)))
                return
            offset = 0
            # Not more than was announced, though the worker may still write.
            while offset < total and (data := file.read(min(wire.PIECE, total - offset))):
                piece = wire.Piece(key=PAYLOAD, offset=offset, total=total, data=data, rank=rank)
                offset += len(data)
                if offset == total:
                    file.close()  # sending may take a while, and there may be hundreds
                await self._send(self._stamp(piece))
        if total:
            with contextlib.suppress(OSError):  # it goes with the directory
                os.unlink(path)

    # ── logs ──────────────────────────────────────────────────────────────────

    def taken(self, size: int) -> None:
        """The launcher has written so much of the log away."""
        self._window += size
        self._room.set()

    def _with_descriptors(self, action: Callable[[], T]) -> T:
        """Do what opens a file; where none can be opened, in place of those that are followed."""
        try:
            return action()
        except OSError as error:
            if not is_exhausted(error):
                raise
        for stream in self._streams:
            stream.close()  # it is opened again where it is read next
        return action()

    async def _follow(self) -> None:
        streams = self._streams
        pause = _FAST
        while True:
            final = self.cleared.is_set()
            found = False
            for stream in streams:
                if any(o.unfinished for o in streams if o.rank == stream.rank and o is not stream):
                    found = True  # the other stream of this rank is in the middle of a line
                    continue
                data = self._with_descriptors(functools.partial(stream.read, final=final))
                if data:
                    found = True
                    if stream.name == RAISED:  # what was printed before comes first
                        await self._send_rest(o for o in streams if o.rank == stream.rank)
                    await self._send_log(stream, data)
                    stream.free(wire.LOG_WINDOW - self._window)
                if stream.is_cut and stream not in self._cut:
                    self._cut.append(stream)
                    await self._send_log(stream, output_files.GAP, is_cut=True)
            if final and not found:
                break
            pause = _FAST if found else min(pause * 1.5, _SLOW)
            if not found:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self.cleared.wait()
        for stream in streams:
            stream.close()

    async def _limit_files(self) -> None:
        """Keep files within their limit while nobody takes what is in them."""
        while not (await asyncio.wait({self._following}, timeout=_LIMITED))[0]:
            for stream in self._streams:
                stream.limit()

    async def _send_rest(self, streams: Iterable[output_files.OutputFile]) -> None:
        for stream in streams:
            read = functools.partial(stream.read, final=True)
            while stream.name != RAISED and (data := self._with_descriptors(read)):
                await self._send_log(stream, data)

    async def _send_log(
        self, stream: output_files.OutputFile, data: bytes, *, is_cut: bool = False
    ) -> None:
        while self._window <= 0:
            self._room.clear()
            await self._room.wait()
        log = wire.LogData(rank=stream.rank, stream=stream.name, data=data, is_cut=is_cut)
        self._window -= wire.cost_of(log)
        self.handed_on += len(data)
        await self._send(self._stamp(log))

    def _stamp(self, frame: wire.Frame) -> wire.Frame:
        return dataclasses.replace(frame, app=self.begin.app, round=self.begin.round)


def _sender(said: Sequence[tuple[int, int, bytes]]) -> int:
    """The process that has sent a message, as the kernel says; 0 at the end of the stream."""
    for level, kind, data in said:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(_UCRED.unpack_from(data)[0])
    return 0


def _makes_sense(outcome: Outcome) -> bool:
    """A worker can say this of itself."""
    numbers = (outcome.clock, outcome.seconds, outcome.joined or 0.0)
    return (
        outcome.kind in (Ended.RETURNED, Ended.RAISED, Ended.EXITED)
        and all(map(math.isfinite, numbers))
        and 0 <= (outcome.code or 0) < 256
        and outcome.signal is None
        and not outcome.detail
        and not outcome.stopped
    )
