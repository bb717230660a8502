"""Runs an app on the cluster: `AppLifecycle` decides, replicas are commands on nodes.

What replicas print and how they stand goes into the job's log, as entries; how they stand also into
a file among the node's logs, so that nobody has to read all of the log for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phalanx._channel.trust import NotTrusted
from phalanx._schedulers.ray import command_stream, job_log
from phalanx._schedulers.ray.cluster.driver_output import JobLog, StateFile
from phalanx._schedulers.ray.cluster.nodes import NodeNames, NodeServer, PlacedBundle, PlacedGroup
from phalanx._schedulers.ray.command_stream import ERR, EXIT, OUT, SIGNAL, RecordStream
from phalanx._schedulers.replicas.error_text import ReplicaError, in_text, reported, shown
from phalanx._schedulers.replicas.lifecycle import (
    AppLifecycle,
    FinishApp,
    LifecycleAction,
    ReplicaKey,
    StartReplica,
    StopReplica,
)
from phalanx._schedulers.replicas.lifecycle_record import LifecycleRecord
from phalanx._schedulers.replicas.replica_end import ReplicaEnd
from phalanx._schedulers.replicas.request import RANK0_PORT
from phalanx._specs import AppState

_LOOK = 0.1
_ASK = 5.0
"""Seconds between two questions for which resources are missing."""
_LAST_WORDS = 1 << 15
"""Characters of stderr in which an error is looked for."""


async def run_app(request: dict[str, Any]) -> int:
    """Run it to its end; gives the exit code."""
    app = _RunningApp(request)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, app.cancel)
    try:
        return await app.run()
    finally:
        app.close()


class _Replica:
    """A replica, from its bundle to its end."""

    def __init__(self, key: ReplicaKey, told: Mapping[str, Any], place: PlacedBundle) -> None:
        self.key = key
        self.told = told
        self.place = place
        self.task: asyncio.Task[ReplicaEnd] | None = None
        self.stream: RecordStream | None = None
        self.is_asked = False
        """It has been asked to end."""
        self.is_lost = False
        """Its server cannot be reached; Ray may not have noticed."""
        self.hostname = ""
        self.end: ReplicaEnd | None = None
        self.error = ReplicaError()
        self.last_words = ""


class _RunningApp:
    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        self._grace = float(request["stop_grace"])
        record = LifecycleRecord.from_text(request["lifecycle"])
        self._lifecycle = AppLifecycle(record.roles)
        self._final: AppState | None = None
        self._ended: asyncio.Queue[ReplicaKey] = asyncio.Queue()
        self._stopping: set[asyncio.Task[None]] = set()
        self._looked = asyncio.Event()
        """Set when Ray has been asked once more; then there is another one."""
        self._waiting = ""
        self._asked = 0.0
        self._said: dict[str, Any] = {}
        self._log = JobLog()
        self._file = StateFile(request["app"], len(request["replicas"]))
        names = NodeNames()
        self._groups: list[PlacedGroup] = []
        self._replicas: dict[ReplicaKey, _Replica] = {}
        required: dict[str | None, list[tuple[ReplicaKey, dict[str, Any]]]] = {}
        extra = []
        for told in request["replicas"]:
            key = (told["role"], told["id"])
            if told["is_extra"]:
                extra.append((key, told))
            else:
                required.setdefault(told["working_dir"], []).append((key, told))
        for parts in [*required.values(), *([one] for one in extra)]:
            directory = parts[0][1]["working_dir"]
            group = PlacedGroup(
                [told["bundle"] for _, told in parts],
                request["strategy"],
                request["token"],
                names,
                {"working_dir": directory} if directory else None,
            )
            self._groups.append(group)
            for place, (key, told) in zip(group.places, parts, strict=True):
                self._replicas[key] = _Replica(key, told, place)

    # ── the loop ──────────────────────────────────────────────────────────────

    async def run(self) -> int:
        self._take(self._lifecycle.begin())
        while self._final is None:
            await asyncio.to_thread(self._look)
            self._looked.set()
            self._looked = asyncio.Event()
            self._tell()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    self._end(await self._ended.get())
            self._end_what_never_began()
        if self._log.loss and self._final is AppState.SUCCEEDED:
            self._final = AppState.FAILED
        self._tell(final=True)
        cause = self._cause()
        if self._final is AppState.SUCCEEDED:
            return 0
        end = None if cause is None else self._replicas[cause].end
        return (end.code if end else 0) or 1

    def _look(self) -> None:
        """Ask Ray: on a thread, since it may be slow."""
        for group in self._groups:
            group.look()
        if time.monotonic() - self._asked > _ASK:
            self._asked = time.monotonic()
            self._waiting = next(filter(None, (g.why_waiting() for g in self._groups)), "")

    def cancel(self) -> None:
        """Ray has been asked to stop the job."""
        self._take(self._lifecycle.cancel())

    def close(self) -> None:
        """Give everything back."""
        for group in self._groups:
            group.remove()

    # ── what the lifecycle decides ────────────────────────────────────────────

    def _take(self, actions: list[LifecycleAction]) -> None:
        for action in actions:
            match action:
                case StartReplica(key):
                    self._start(self._replicas[key])
                case StopReplica(key):
                    self._stop(self._replicas[key])
                case FinishApp(state):
                    self._final = state

    def _start(self, replica: _Replica) -> None:
        replica.is_asked, replica.end = False, None
        replica.error, replica.last_words = ReplicaError(), ""
        if replica.place.end or replica.is_lost:
            replica.place.replace()
            replica.is_lost = False
        replica.task = asyncio.create_task(self._run(replica))
        replica.task.add_done_callback(lambda _: self._ended.put_nowait(replica.key))

    def _stop(self, replica: _Replica) -> None:
        replica.is_asked = True
        task, stream = replica.task, replica.stream
        assert task is not None  # only what runs is stopped
        if stream is None:
            task.cancel()
            return

        async def stop() -> None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(OSError):
                    await stream.send(SIGNAL + str(int(number)).encode())
                await asyncio.wait([task], timeout=self._grace)
                if task.done():
                    return

        stopping = asyncio.create_task(stop())
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)

    def _end(self, key: ReplicaKey) -> None:
        replica = self._replicas[key]
        task = replica.task
        if task is None or not task.done():
            return
        replica.task = None
        if task.cancelled():
            replica.end = ReplicaEnd(asked=True)
        else:
            replica.end = task.result()
        succeeded = replica.end.succeeded
        self._take(self._lifecycle.ended(key, succeeded=succeeded, asked=replica.is_asked))

    def _end_what_never_began(self) -> None:
        """Replicas beyond the least that a role needs are not waited for when all others ended."""
        running = [one for one in self._replicas.values() if one.task is not None]
        if running and all(one.told["is_extra"] and one.place.waits for one in running):
            if any(one.end is not None for one in self._replicas.values()):
                for one in running:
                    assert one.task is not None
                    one.task.cancel()
                    one.told = {**one.told, "is_superfluous": True}

    # ── a replica ─────────────────────────────────────────────────────────────

    async def _run(self, replica: _Replica) -> ReplicaEnd:
        try:
            server = await self._placed(replica)
            if server is None:
                replica.error = ReplicaError(replica.place.end)
                return ReplicaEnd(error=replica.place.end)
            replica.hostname = server.name
            first = await self._first_of(replica)
            return await self._converse(replica, server, first)
        except asyncio.CancelledError:
            if replica.told.get("is_superfluous"):
                return ReplicaEnd(exit_code=0)
            raise
        except (OSError, NotTrusted) as error:
            replica.is_lost = True
            replica.error = ReplicaError(f"cannot reach {replica.hostname}: {error}")
            return ReplicaEnd(error=replica.error.text)

    async def _placed(self, replica: _Replica) -> NodeServer | None:
        """Its node, when all that are needed are there: they start together, or not at all."""
        needed = [one.place for one in self._replicas.values() if not one.told["is_extra"]]
        while any(place.waits for place in (*needed, replica.place)):
            await self._looked.wait()
        return replica.place.server

    async def _first_of(self, replica: _Replica) -> NodeServer:
        """Where the role's first replica is: the others need its address."""
        first = self._replicas[replica.key[0], 0]
        while (server := first.place.server) is None:
            await self._looked.wait()
        return server

    async def _converse(
        self, replica: _Replica, server: NodeServer, first: NodeServer
    ) -> ReplicaEnd:
        stream = await command_stream.connect(server.address, server.port, self._request["token"])
        with contextlib.closing(stream):
            told = replica.told
            env = {
                self._request["rank0_env"]: first.address,
                RANK0_PORT: str(first.free_port),
                "PHALANX_ADDRESS": server.address,
                "TORCHELASTIC_RESTART_COUNT": str(self._lifecycle.retries[replica.key]),
                **told["env"],
            }
            wanted = {
                "argv": told["argv"],
                "env": env,
                "replica": True,
                "executables": told["executables"],
                "needs_phalanx": told["needs_phalanx"],
            }
            await stream.send(json.dumps(wanted).encode())
            replica.stream = stream
            self._tell()  # that it runs, before what it prints
            try:
                return await self._listen(replica, stream)
            finally:
                replica.stream = None

    async def _listen(self, replica: _Replica, stream: RecordStream) -> ReplicaEnd:
        lines = {OUT: job_log.LineSplitter(), ERR: job_log.LineSplitter()}
        end: ReplicaEnd | None = None
        async for record in stream.records():
            kind, data = record[:1], record[1:]
            if kind in lines:
                self._print(replica, kind, lines[kind].take(data))
            elif kind == EXIT:
                said = json.loads(data)
                replica.error = reported(said["report"])
                if said["error"]:
                    replica.error = ReplicaError(said["error"])
                end = ReplicaEnd.of(said["code"], asked=replica.is_asked)
                break
        for kind, splitter in lines.items():
            self._print(replica, kind, splitter.end())
        if end is None:
            replica.is_lost = True
            reason = replica.place.end or "the connection to its node was lost"
            text = f"lost with its node {replica.hostname}: {reason}"
            replica.error = ReplicaError(text)
            return ReplicaEnd(error=text, asked=replica.is_asked)
        if not end.succeeded and not replica.error.text:
            text = in_text(replica.last_words, killed=end.signal is not None)
            replica.error = replace(replica.error, text=text)
        return end

    def _print(self, replica: _Replica, kind: bytes, lines: list[str]) -> None:
        now = time.time()
        role, number = replica.key
        stream = 1 if kind == OUT else 2
        for line in lines:
            self._log.write(job_log.output(role, number, stream, now, line))
            if stream == 2:
                replica.last_words = f"{replica.last_words}{line}\n"[-_LAST_WORDS:]

    # ── how it stands ─────────────────────────────────────────────────────────

    def _cause(self) -> ReplicaKey | None:
        """The replica that the app's failure is told of: not one that only heard of another's."""
        first = self._lifecycle.first_failure
        if first is not None and self._replicas[first].error.is_remote:
            own = (key for key, one in self._replicas.items() if one.error.is_own)
            return next(own, first)
        return first

    def _tell(self, *, final: bool = False) -> None:
        """Write down how the app stands, where that has changed."""
        life = self._lifecycle
        replicas = []
        for key, replica in self._replicas.items():
            state = life.states[key]
            if state is AppState.RUNNING and replica.stream is None and replica.end is None:
                state = AppState.PENDING
            end = replica.end
            replicas.append(
                {
                    "role": key[0],
                    "id": key[1],
                    "state": state.name,
                    "hostname": replica.hostname,
                    "exit_code": None if end is None else end.exit_code,
                    "signal": None if end is None else end.signal,
                    "error": shown(replica.error.text),
                    "worker": replica.error.describe_worker(),
                    "traceback": replica.error.traceback,
                    "retries": life.retries[key],
                }
            )
        cause = self._cause()
        said = {
            "final": self._final.name if final and self._final else None,
            "replicas": replicas,
            "restarts": life.restarts,
            "cause": None if cause is None else list(cause),
            "waiting": self._waiting,
            "lost": self._log.loss,
        }
        if said == self._said:
            return
        self._said = said
        self._file.write(said, last=final)
        if final:
            self._log.write(job_log.status(said))
