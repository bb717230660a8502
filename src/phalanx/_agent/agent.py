"""The agent's loop: frames from whoever placed it, words from its zygote, silence and ends."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import platform
import socket
import tempfile
import time
import traceback
from typing import TYPE_CHECKING

from phalanx import __version__
from phalanx import _wire as wire
from phalanx._agent import warm_wait
from phalanx._agent.files import path_mapping
from phalanx._agent.files.function_files import FunctionFiles
from phalanx._agent.files.project_tree import ProjectTree
from phalanx._agent.files.written_files import WrittenFiles
from phalanx._agent.host_checks import run_checks
from phalanx._agent.probe_port import ProbePort, reach, whereabouts
from phalanx._agent.rounds.host_round import HostRound
from phalanx._agent.rounds.host_rounds import HostRounds
from phalanx._agent.zygote_handle import ZygoteHandle
from phalanx._channel.background import Background
from phalanx._channel.channel import PipeChannel, wait_for_silence
from phalanx._core.signals import signal_name
from phalanx._logs.records import pack_message
from phalanx._system import network, processes, shortage, temporary_directory
from phalanx._worker import leftovers
from phalanx.errors import WireError

if TYPE_CHECKING:
    from phalanx._agent.reconnect_listener import ReconnectListener

_STACKS_BEFORE_STOP = 1.0
"""Seconds for workers to tell where they are before they are stopped."""
_AWAKE = 1.0
"""Seconds between looks at whether the zygote is stopped."""
_UNREAD = 3.0
"""Seconds in which nothing of the last output is taken until the rest of it is given up."""
_ENFORCED = 0.3
"""Seconds past the grace after which a zygote that does nothing is not waited for."""


class Agent:
    """Supervises one host's workers, one app after another, until nobody wants it any more."""

    def __init__(
        self,
        channel: PipeChannel,
        zygote: ZygoteHandle,
        prepare: wire.Prepare,
        spool: str,
        tree: path_mapping.TreeLocation,
        listener: ReconnectListener | None = None,
    ) -> None:
        """Take over a zygote that was started already. Owns nothing that is process-wide.

        The project is put into `tree`, if it has to come here. By the `listener` the launcher may
        come back.
        """
        self._channel = channel
        self._listener = listener
        self._zygote = zygote
        self._spool = spool
        self._functions = FunctionFiles(spool)
        self._left_out: set[str] = set()
        self._warming: str | None = prepare.app
        """The app for which the zygote is loading; while it is, it must not be spoken to."""
        self._stay_warm: wire.StayWarm | None = None
        self._parted = asyncio.Event()
        self._ending = asyncio.Event()
        self._is_breaking = False
        self._spawn = Background(self._failed).do
        self._take_up(prepare, tree)

    def _take_up(self, prepare: wire.Prepare, tree: path_mapping.TreeLocation) -> None:
        """Begin with an app."""
        self._prepare = prepare
        if self._listener is not None:
            self._listener.take_up(prepare)
        self._began = time.monotonic()
        self._listening, self._beside = network.bind_pair(anywhere=prepare.networked)
        self._interfaces: dict[str, str | None] = {}
        """Towards addresses of this host."""
        self._probe_port = ProbePort() if prepare.probed else None
        self._project = ProjectTree(tree, prepare.app, self._tell)
        self._written = WrittenFiles(
            tree.path, prepare.cwd, prepare.app, self._tell, self._project.wait_until_complete
        )
        self._ready: asyncio.Future[wire.Ready] = asyncio.get_running_loop().create_future()
        self._host_rounds = HostRounds(self._spawn)
        self._stay_warm = None
        self._serving = True
        hello = wire.Hello(
            app=prepare.app,
            version=__version__,
            python=platform.python_version(),
            hostname=socket.gethostname(),
            pid=os.getpid(),
            port=self._port,
            spool=self._spool,
            tree=tree.path,
            apart=self._written.is_apart,
            probe_port=0 if self._probe_port is None else self._probe_port.number,
            **(whereabouts(prepare.interface) if prepare.networked else {}),
        )
        self._spawn(self._tell(hello))
        place, wanted = temporary_directory.place(), os.path.abspath(tempfile.gettempdir())
        if place != wanted:
            text = f"{wanted} is open to other users: temporary files are in {place}"
            self._spawn(self._tell(wire.UserNote(app=prepare.app, message=text)))
        self._note(f"agent {os.getpid()}, phalanx {__version__}, Python {hello.python}")
        self._note(f"zygote {self._zygote.pid}, to preload: {', '.join(self._packages()) or '-'}")

    async def run(self) -> None:
        """Serve; returns when nothing of ours is left but this process."""
        asyncio.get_running_loop().add_reader(self._zygote.control, self._hear_zygote)
        try:
            await self._serve()
            while self._stay_warm is not None and not self._ending.is_set():
                facts = {"zygote": self._zygote.pid, "packages": self._packages()}
                found = await warm_wait.wait_to_be_found(self._stay_warm, facts, self._ending)
                if found is None:
                    break
                self._channel = found
                await self._serve()
        finally:
            await self._end()

    async def _serve(self) -> None:
        """Hear one channel to its end, or until it is done with us."""
        self._parted.clear()
        ends = [self._parted.wait(), self._ending.wait()]
        work = [self._hear_launcher(), self._watch(), self._keep_zygote_awake(), *ends]
        tasks = [self._spawn(one) for one in work]
        await asyncio.wait(tasks[-len(ends) :], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    def _age(self) -> float:
        return time.monotonic() - self._began

    def _packages(self) -> list[str]:
        return list(dict.fromkeys(i.module.partition(".")[0] for i in self._prepare.preload))

    def terminate(self) -> None:
        """Stop the workers and end, as if the launcher had gone."""
        self._spawn(self._break("the agent was terminated by a signal", left=True))

    def forward(self, number: int) -> None:
        """Pass a signal on to the workers that catch it; before there are any, nothing is done.

        By the one for it they also learn that the host will be taken away.
        """
        host_round = self._host_rounds.current
        if number == self._prepare.preempt:
            self._spawn(self._tell(wire.Preempted(app=self._prepare.app)))
            self._host_rounds.ask_to_stop()
        if host_round is not None and host_round.started:
            self._note(f"{signal_name(number)} is passed on to the workers")
            self._zygote.send(wire.SignalWorkers(number=number))

    # ── the launcher ──────────────────────────────────────────────────────────

    async def _hear_launcher(self) -> None:
        try:
            async for frame in self._channel.frames():
                await self._obey(frame)
        except WireError as error:
            await self._tell(wire.AgentGone(message=f"the launcher sent {error}"))
        if self._stay_warm is None or self._host_rounds.current is not None:
            self._ending.set()
        else:
            self._parted.set()  # a visitor that wanted nothing, or one that has gone already

    async def _shut_down(self) -> None:
        await self._host_rounds.wait_until_clear()
        asyncio.get_running_loop().remove_reader(self._zygote.control)
        self._zygote.end()
        await self._host_rounds.close(drain=True)
        await self._project.close()
        await self._channel.flush()  # the last of the logs, to a launcher that is slow to read
        self._ending.set()

    def _close_ports(self) -> None:
        self._listening.close()
        self._beside.close()
        if self._probe_port is not None:
            self._probe_port.close()

    async def _stay_warm_for(self, frame: wire.StayWarm) -> None:
        """Be done with the app, and ready for another."""
        if self._warming is not None:
            self._ending.set()  # what hangs in an import is of no use to anybody
            return
        await self._host_rounds.forget()
        self._close_ports()
        self._functions.forget()
        self._serving = False
        await self._project.close()
        await self._tell(wire.StayingWarm(app=frame.app))
        if frame.keep:
            self._zygote.send(frame)
            self._channel.close()
            self._parted.set()

    async def _obey(self, frame: wire.Frame) -> None:
        match frame:
            case wire.ShutDown():
                self._spawn(self._shut_down())
            case wire.StayWarm():
                self._stay_warm = frame if frame.keep else None
                self._spawn(self._stay_warm_for(frame))
            case wire.Prepare() if self._host_rounds.current is None:
                self._close_ports()
                self._take_up(*path_mapping.localize(frame))
                if self._warming is None and not self._project.tree:
                    self._warm()
            case wire.Ping() if not self._channel.congested:
                # Not awaited: what the launcher does not read must not keep us from hearing it.
                clock = time.monotonic()
                self._spawn(self._tell(wire.Pong(app=frame.app, sent=frame.sent, clock=clock)))
            case wire.BeginRound() if self._host_rounds.is_new(frame.round):
                await self._begin(frame)
            case wire.Piece():
                if not self._functions.receive(frame):
                    await self._project.receive(frame)
            case wire.ShipProject():
                self._spawn(self._ship(frame.manifest))
            case wire.SignalWorkers():
                self.forward(frame.number)
            case wire.Reach():
                self._spawn(reach(frame, self._tell))
            case wire.ListWritten():
                self._spawn(self._written.list(frame))
            case wire.FetchFile() | wire.FetchSmall():
                self._spawn(self._written.serve(frame))
            case wire.OfferFile():
                self._spawn(self._written.keep(frame))
            case wire.FilePart() | wire.SmallFiles():
                self._written.take(frame)
            case wire.ReleaseFiles():
                self._written.drop(frame)
            case wire.LogsTaken() if (host_round := self._host_rounds.find(frame)) is not None:
                host_round.taken(frame.size)
            case wire.HaltRound() if self._host_rounds.give_up(frame.round):
                # The round was given up before we heard of it, and must not begin any more.
                await self._tell(
                    wire.RoundCleared(app=frame.app, round=frame.round, port=self._port)
                )
            case wire.HaltRound() if (
                host_round := self._host_rounds.find(frame)
            ) is self._host_rounds.current:
                if host_round is not None and host_round.started and frame.stacks:
                    self._spawn(self._stop_with_stacks(host_round, frame))
                else:
                    await self._stop(frame)
            case wire.DumpStacks():
                self._spawn(self._dump_stacks(frame))
            case wire.CheckHost():
                self._spawn(self._check_host(frame))

    def _note(self, message: str, level: int = logging.INFO) -> None:
        """Say something for the agent's log."""
        data = pack_message(message, level)
        self._spawn(self._tell(wire.LogData(app=self._prepare.app, stream="records", data=data)))

    async def _tell(self, frame: wire.Frame) -> None:
        with contextlib.suppress(ConnectionError):
            await self._channel.send(frame)

    # ── a round ───────────────────────────────────────────────────────────────

    @property
    def _port(self) -> int:
        """Where the next round's store can be: not listening yet, so rank 0 may bind it too.

        The one after it is bound as well, for a framework whose own service wants one.
        """
        if self._listening.fileno() < 0:
            self._beside.close()
            self._listening, self._beside = network.bind_pair(anywhere=self._prepare.networked)
        return int(self._listening.getsockname()[1])

    async def _begin(self, begin: wire.BeginRound) -> None:
        last = self._host_rounds.current
        if last is None or last.cleared.is_set():
            self._begin_now(begin)
            return
        # Who decides takes it for ended, and does not send the next one twice.
        await self._stop(wire.HaltRound(app=begin.app, round=last.begin.round, grace=0.0))
        self._spawn(self._begin_after(last, begin))

    async def _begin_after(self, last: HostRound, begin: wire.BeginRound) -> None:
        await last.cleared.wait()
        if self._host_rounds.is_new(begin.round):
            self._begin_now(begin)

    def _begin_now(self, begin: wire.BeginRound) -> None:
        name = "call" if begin.is_call else str(begin.round)
        directory = os.path.join(self._spool, f"{begin.app}-{name}")
        environment = {**self._zygote.environment, **self._prepare.environment}
        local = self._prepare.remote is None
        host_round = HostRound(
            begin, directory, environment, self._tell, self._spawn, with_launcher=local
        )
        self._host_rounds.begin(host_round)
        self._functions.forget()
        is_new = self._functions.want(begin.function)
        self._spawn(self._start(host_round, asks=is_new and not begin.is_call))

    async def _start(self, host_round: HostRound, *, asks: bool) -> None:
        begin = host_round.begin
        if asks:
            await self._tell(wire.WantContent(app=begin.app, digests=(begin.function,)))
        path = await self._functions.path(begin.function)
        await self._project.wait_until_complete()
        await asyncio.shield(self._ready)
        store = begin.membership.store.address
        interface: str | None = self._prepare.interface
        if not interface and store in self._interfaces:
            interface = self._interfaces[store]
        elif not interface:
            interface = await asyncio.to_thread(network.interface_towards, store)
            if network.is_loopback(store):  # others may come and go
                self._interfaces[store] = interface
        if host_round.cleared.is_set():
            return
        carries_store = begin.uses_torch and host_round.member.first_rank == 0
        descriptors = [host_round.theirs.fileno()]
        if carries_store:
            # All that may come is on this machine, or does so by way of a port of it.
            if begin.membership.bound or (self._prepare.networked and network.is_loopback(store)):
                network.confine_to_loopback(self._listening)
            self._listening.listen(4096)
            descriptors.append(self._listening.fileno())
        host_round.started = True
        self._zygote.send(host_round.fork(path, interface), descriptors)
        if carries_store:
            # The store's process has it now: when that dies, its clients must not wait for us.
            self._listening.close()

    async def _stop(self, frame: wire.HaltRound) -> None:
        host_round = self._host_rounds.current
        if host_round is None:
            return
        if not host_round.started:
            await self._clear(host_round)  # nothing was forked, and nothing will be
            return
        host_round.stop_watching()
        self._note(f"stopping the workers, with a grace of {frame.grace:g} s")
        self._zygote.wake()
        self._zygote.send(dataclasses.replace(frame, spared=host_round.reported))
        self._spawn(self._enforce(host_round, frame.grace))

    async def _enforce(self, host_round: HostRound, grace: float) -> None:
        """End a zygote that is stopped again, or for good, when its workers should be gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace + _ENFORCED):
                await host_round.cleared.wait()
        if not host_round.cleared.is_set() and processes.is_stopped(self._zygote.pid):
            self._zygote.end()  # its end is seen, and all that was below it is killed

    async def _stop_with_stacks(self, host_round: HostRound, frame: wire.HaltRound) -> None:
        """Stop the workers once it is known where they are; not much later in any case."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STACKS_BEFORE_STOP + 0.5):
                await host_round.send_stacks(_STACKS_BEFORE_STOP)
        if host_round is self._host_rounds.current:
            await self._stop(frame)

    async def _dump_stacks(self, frame: wire.DumpStacks) -> None:
        host_round = self._host_rounds.find(frame)
        if host_round is None or not host_round.started or host_round.cleared.is_set():
            stamp = {"app": frame.app, "round": frame.round, "request": frame.request}
            await self._tell(wire.WorkerStacks(ranks=(), below=frame.below, **stamp))  # type: ignore[arg-type]
        else:
            wanted = {"below": frame.below, "native": frame.native}
            await host_round.send_stacks(frame.seconds, frame.request, **wanted)

    async def _check_host(self, frame: wire.CheckHost) -> None:
        await self._project.wait_until_complete()  # the user's checks may need it
        environment = self._zygote.environment
        problems = await asyncio.to_thread(
            run_checks, frame, self._prepare, environment, self._spool
        )
        for name, why in problems.items():
            self._note(f"host check {name} failed: {why}", logging.WARNING)
        answer = wire.HostChecked(app=frame.app, number=frame.number, problems=problems)
        await self._tell(answer)

    async def _clear(self, host_round: HostRound) -> None:
        """Nothing of the round is left; the next one gets another port."""
        self._listening.close()
        await host_round.processes_gone(self._port)

    # ── the zygote ────────────────────────────────────────────────────────────

    def _hear_zygote(self) -> None:
        try:
            frames = self._zygote.receive()
        except WireError as error:
            asyncio.get_running_loop().remove_reader(self._zygote.control)
            self._spawn(self._break(f"the zygote sent {error}"))
            return
        if frames is None:
            asyncio.get_running_loop().remove_reader(self._zygote.control)
            self._spawn(self._zygote_died())
            return
        for frame in frames:
            try:
                self._heed(frame)
            except (OSError, WireError) as error:
                self._spawn(self._break(f"{type(error).__name__}: {error}"))

    def _heed(self, frame: wire.Frame) -> None:
        host_round = self._host_rounds.current
        match frame:
            case wire.Ready():
                self._zygote_ready(frame)
            case wire.WorkersStarted() if host_round is not None:
                host_round.workers_started(frame.pids)
                if host_round.begin.is_call:
                    return
                pids = ", ".join(f"rank {rank}: {pid}" for rank, pid in frame.pids.items())
                self._note(f"workers started after {self._age():.2f} s: {pids}")
            case wire.WorkerExited() if host_round is not None and frame.rank is not None:
                host_round.worker_exited(frame.rank, frame.status, frame.clock, frame.signalled)
                if not host_round.begin.is_call:
                    how = processes.describe_status(frame.status)
                    self._note(f"rank {frame.rank} is gone: {how}")
            case wire.RoundCleared() if host_round is not None:
                if not host_round.begin.is_call:
                    self._note(f"nothing is left of the workers after {self._age():.2f} s")
                self._spawn(self._clear(host_round))
            case wire.AgentGone():
                self._spawn(self._break(frame.message))

    async def _ship(self, manifest: str) -> None:
        await self._project.ship(manifest)
        self._note(f"the project is in {self._project.tree} after {self._age():.2f} s")
        if self._warming is None and not self._ready.done():
            self._warm()  # it was there already, and had to see the project first

    def _warm(self) -> None:
        """Have the zygote load what this app wants and it has not loaded yet."""
        self._warming = self._prepare.app
        self._zygote.send(self._wanted())

    def _wanted(self) -> wire.Prepare:
        kept = tuple(item for item in self._prepare.preload if item.module not in self._left_out)
        return dataclasses.replace(self._prepare, preload=kept)

    def _zygote_ready(self, ready: wire.Ready) -> None:
        self._warming = None
        tainted = set(ready.left_out) - self._left_out
        if tainted or ready.stale:
            self._left_out |= tainted
            why = "what is loaded is old" if ready.stale else f"{', '.join(tainted)} read a rank"
            self._note(f"another zygote is started: {why}")
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._zygote.control)
            self._zygote.kill()
            self._zygote = ZygoteHandle(self._wanted(), self._spool)
            self._warming = self._prepare.app
            loop.add_reader(self._zygote.control, self._hear_zygote)
        elif ready.app != self._prepare.app:
            # It was still loading what phalanx.warm asked for, or an app that was given up.
            self._spawn(self._tell(ready))
            self._warm()
        else:
            self._ready.set_result(ready)
            self._spawn(self._tell(ready))
            how = "spawned" if ready.spawn else "forked"
            self._note(f"packages loaded after {self._age():.2f} s; workers are {how}")
            for problem in (*ready.failed, *ready.notes):
                self._note(problem, logging.WARNING)

    async def _keep_zygote_awake(self) -> None:
        """Wake a zygote that is stopped when workers have exited: nobody else hears of it."""
        while True:
            await asyncio.sleep(_AWAKE)
            host_round = self._host_rounds.current
            if host_round is None or not host_round.started or host_round.cleared.is_set():
                continue
            if processes.is_stopped(self._zygote.pid) and host_round.has_exited():
                self._zygote.wake()

    async def _zygote_died(self) -> None:
        how = self._zygote.describe_end()
        processes.kill_descendants(processes.reap)
        host_round = self._host_rounds.current
        if host_round is not None:
            with contextlib.suppress(TimeoutError):  # as below
                async with asyncio.timeout(1.0):
                    await host_round.zygote_lost()
        await self._break(f"the zygote died {how}, and its workers with it")
        if host_round is not None:
            host_round.cleared.set()

    async def _break(self, message: str, *, left: bool = False) -> None:
        """End by ourselves: others hear of it at once, and then what the workers have printed."""
        if self._is_breaking:
            return
        self._is_breaking = True
        self._note(message, logging.ERROR)
        with contextlib.suppress(TimeoutError):  # a launcher that does not read must not hold us
            async with asyncio.timeout(1.0):
                await self._tell(wire.AgentGone(message=message, left=left))
        await self._end_round()
        await self._host_rounds.hand_on_rest(_UNREAD)
        self._ending.set()

    # ── silence and ends ──────────────────────────────────────────────────────

    async def _watch(self) -> None:
        """End when nothing was heard for `orphan_timeout`.

        Without an app silence is expected; not on another host, which may be cut off for ever.
        """

        def expected() -> bool:
            self._project.touch()
            is_served = self._serving or self._prepare.remote is not None
            return is_served and self._channel.is_connected

        silent = await wait_for_silence(self._channel, self._prepare.orphan_timeout, expected)
        await self._break(f"no contact with its launcher for {silent:g} s")

    async def _end_round(self) -> None:
        """Have the workers end, with their grace."""
        host_round = self._host_rounds.current
        if host_round is None or not host_round.started or host_round.cleared.is_set():
            return
        if not self._zygote.is_alive():
            host_round.cleared.set()
            return
        grace, begin = self._prepare.stop_grace, host_round.begin
        await self._stop(wire.HaltRound(app=begin.app, round=begin.round, grace=grace))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace + 1.0):
                await host_round.cleared.wait()

    async def _end(self) -> None:
        await self._end_round()
        await self._host_rounds.close(drain=False)
        if self._zygote.control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._zygote.control)
        self._zygote.kill()
        processes.kill_descendants(processes.reap)
        self._close_ports()
        await self._project.close()
        if self._listener is not None:
            await self._listener.finish()
        leftovers.remove(self._spool)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._channel.flush()
        self._channel.close()

    def _failed(self, error: BaseException) -> None:
        """Something in the background has failed: say so, and end."""
        message = f"{type(error).__name__}: {error}"
        if shortage.is_shortage(error):
            message = shortage.describe(error)
        else:
            traceback.print_exception(error)
        if not self._ending.is_set():
            self._spawn(self._break(message))
