"""The agent's loop: frames from whoever placed it, words from its zygote, silence and ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Coroutine

from phalanx import __version__, wire
from phalanx.agent.nursery import Nursery
from phalanx.agent.turn import Turn
from phalanx.channel import PipeChannel
from phalanx.errors import WireError
from phalanx.worker import processes

_TICK = 0.5


class Agent:
    """Supervises one host's workers until its channel ends or it is told to leave."""

    def __init__(
        self, channel: PipeChannel, nursery: Nursery, prepare: wire.Prepare, spool: str
    ) -> None:
        """Take over a zygote that was started already. Owns nothing that is process-wide."""
        self._channel = channel
        self._nursery = nursery
        self._prepare = prepare
        self._spool = spool
        self._listening = _reserve_port()
        self._ready: asyncio.Future[wire.Ready] = asyncio.get_running_loop().create_future()
        self._functions: dict[str, asyncio.Future[str]] = {}
        self._turn: Turn | None = None
        self._stopped: set[int] = set()
        self._ending = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve; returns when nothing of ours is left but this process."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._nursery.control, self._hear_zygote)
        hello = wire.Hello(
            version=__version__,
            python=platform.python_version(),
            hostname=socket.gethostname(),
            pid=os.getpid(),
            port=self._listening.getsockname()[1],
            spool=self._spool,
        )
        hearing = self._spawn(self._hear_launcher())
        watching = self._spawn(self._watch())
        try:
            await self._tell(hello)
            await self._ending.wait()
        finally:
            await self._end(hearing, watching)

    def terminate(self) -> None:
        """Stop the workers and end, as if the launcher had gone."""
        self._spawn(self._break("the agent was told to end by a signal"))

    def forward(self, number: int) -> None:
        """Pass a signal on to the workers that catch it; before there are any, nothing is done."""
        if self._turn is not None and self._turn.started:
            self._nursery.send(wire.Signal(number=number))

    # ── the launcher ──────────────────────────────────────────────────────────

    async def _hear_launcher(self) -> None:
        try:
            async for frame in self._channel.frames():
                if isinstance(frame, wire.Leave):
                    self._spawn(self._leave())
                else:
                    await self._obey(frame)
        except WireError as error:
            await self._tell(wire.Broken(message=f"the launcher sent {error}"))
        self._ending.set()

    async def _leave(self) -> None:
        if self._turn is not None:
            await self._turn.cleared.wait()
        asyncio.get_running_loop().remove_reader(self._nursery.control)
        self._nursery.dismiss()
        if self._turn is not None:
            await self._turn.close(drain=True)
        self._ending.set()

    async def _obey(self, frame: wire.Frame) -> None:
        match frame:
            case wire.Ping() if not self._channel.congested:
                # Not awaited: what the launcher does not read must not keep us from hearing it.
                clock = time.monotonic()
                self._spawn(self._tell(wire.Pong(app=frame.app, sent=frame.sent, clock=clock)))
            case wire.Begin() if self._turn is None and frame.round not in self._stopped:
                spool = os.path.join(self._spool, f"round-{frame.round}")
                environment = {**os.environ, **self._prepare.environment}
                self._turn = Turn(frame, spool, environment, self._tell, self._spawn)
                self._spawn(self._start(self._turn))
            case wire.Piece():
                self._receive_function(frame)
            case wire.Taken() if self._turn is not None and self._is_current(frame):
                self._turn.taken(frame.size)
            case wire.Stop() if self._is_current(frame):
                await self._stop(frame)
            case wire.Stop() if self._turn is None:
                # The round was given up before we heard of it, and must not begin any more.
                self._stopped.add(frame.round)
                await self._tell(wire.Stopped(app=frame.app, round=frame.round))

    def _is_current(self, frame: wire.Frame) -> bool:
        turn = self._turn
        return turn is not None and (turn.begin.app, turn.begin.round) == (frame.app, frame.round)

    async def _tell(self, frame: wire.Frame) -> None:
        with contextlib.suppress(ConnectionError):
            await self._channel.send(frame)

    # ── a round ───────────────────────────────────────────────────────────────

    async def _start(self, turn: Turn) -> None:
        begin = turn.begin
        function = self._functions.get(begin.function)
        if function is None:
            function = self._functions[begin.function] = asyncio.get_running_loop().create_future()
            await self._tell(wire.Want(app=begin.app, digest=begin.function))
        path = await function
        await asyncio.shield(self._ready)
        if turn.cleared.is_set():
            return
        carries_store = begin.uses_torch and turn.member.first_rank == 0
        descriptors = [turn.theirs.fileno()]
        if carries_store:
            self._listening.listen(1024)
            descriptors.append(self._listening.fileno())
        turn.started = True
        self._nursery.send(turn.fork(path), descriptors)
        if carries_store:
            # The store's process has it now: when that dies, its clients must not wait for us.
            self._listening.close()

    def _receive_function(self, piece: wire.Piece) -> None:
        path = os.path.join(self._spool, piece.key)
        with open(path, "ab", opener=lambda p, f: os.open(p, f, 0o600)) as file:
            file.write(piece.data)
            done = file.tell() >= piece.total
        waiting = self._functions.get(piece.key)
        if done and waiting is not None and not waiting.done():
            waiting.set_result(path)

    async def _stop(self, frame: wire.Stop) -> None:
        turn = self._turn
        if turn is None:
            return
        if not turn.started:
            # Nothing was forked, and nothing will be.
            await turn.processes_gone()
            return
        self._nursery.send(
            wire.Stop(app=frame.app, round=frame.round, grace=frame.grace, spared=turn.reported)
        )

    # ── the zygote ────────────────────────────────────────────────────────────

    def _hear_zygote(self) -> None:
        frames = self._nursery.receive()
        if frames is None:
            asyncio.get_running_loop().remove_reader(self._nursery.control)
            self._spawn(self._zygote_died())
            return
        for frame in frames:
            try:
                self._heed(frame)
            except (OSError, WireError) as error:
                self._spawn(self._break(f"{type(error).__name__}: {error}"))

    def _heed(self, frame: wire.Frame) -> None:
        turn = self._turn
        match frame:
            case wire.Ready():
                self._zygote_ready(frame)
            case wire.Started() if turn is not None:
                turn.workers_started(frame.pids)
            case wire.Exit() if turn is not None and frame.rank is not None:
                turn.worker_exited(frame.rank, frame.status, frame.clock, frame.signalled)
            case wire.Stopped() if turn is not None:
                self._spawn(turn.processes_gone())
            case wire.Broken():
                self._spawn(self._break(frame.message))

    def _zygote_ready(self, ready: wire.Ready) -> None:
        if ready.left_out:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._nursery.control)
            self._nursery = self._nursery.without(ready.left_out)
            loop.add_reader(self._nursery.control, self._hear_zygote)
            return
        self._ready.set_result(ready)
        self._spawn(self._tell(ready))

    async def _zygote_died(self) -> None:
        how = self._nursery.describe_end()
        processes.kill_descendants(_reap)
        await self._break(f"the zygote died {how}, and its workers with it")
        if self._turn is not None:
            self._turn.cleared.set()

    async def _break(self, message: str) -> None:
        with contextlib.suppress(TimeoutError):  # a launcher that does not read must not hold us
            await asyncio.wait_for(self._tell(wire.Broken(message=message)), 1.0)
        self._ending.set()

    # ── silence and ends ──────────────────────────────────────────────────────

    async def _watch(self) -> None:
        """End when nothing was heard for `orphan_timeout`; time asleep does not count."""
        heard, silent = self._channel.heard, 0.0
        while silent < self._prepare.orphan_timeout:
            await asyncio.sleep(_TICK)
            silent = silent + _TICK if self._channel.heard == heard else 0.0
            heard = self._channel.heard
        await self._break(f"it heard nothing from its launcher for {silent:g} s")

    async def _end(self, *tasks: asyncio.Task[None]) -> None:
        for task in tasks:
            task.cancel()
        turn = self._turn
        if turn is not None:
            if turn.started and not turn.cleared.is_set() and self._nursery.is_alive():
                grace = self._prepare.stop_grace
                begin = turn.begin
                await self._stop(wire.Stop(app=begin.app, round=begin.round, grace=grace))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(turn.cleared.wait(), grace + 1.0)
            await turn.close(drain=False)
        asyncio.get_running_loop().remove_reader(self._nursery.control)
        self._nursery.kill()
        processes.kill_descendants(_reap)
        self._listening.close()
        shutil.rmtree(self._spool, ignore_errors=True)
        self._channel.close()

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        """Let nothing that fails in the background go unheard: the agent says so, and ends."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            traceback.print_exception(error)
            if not self._ending.is_set():
                self._spawn(self._break(f"{type(error).__name__}: {error}"))


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _reserve_port() -> socket.socket:
    """Bind a free port without listening yet: until then rank 0 may bind it as well."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def handle_signals(agent: Agent) -> None:
    """In a process of the agent's own: SIGTERM and SIGINT end it, user signals are passed on."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, agent.terminate)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, agent.forward, number)
