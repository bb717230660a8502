"""Replicas on other hosts: each is a launch of one worker, which runs the program."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import random
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from phalanx._channel import tokens
from phalanx._core.option_names import as_scheduler_options
from phalanx._core.rounds import Member
from phalanx._core.signals import signal_name
from phalanx._launcher import payload
from phalanx._launcher.launch_options import LaunchOptions
from phalanx._launcher.planning import imports
from phalanx._launcher.session.app_run import AppRun
from phalanx._launcher.start import Work, prepare_app
from phalanx._logs.lines import Source
from phalanx._logs.losses import Loss
from phalanx._logs.spec import DefaultLogSpec, Handlers, LogSpec, RankFile
from phalanx._rendezvous.tcp.tokens import VARIABLE as RENDEZVOUS_TOKEN
from phalanx._schedulers.replicas.lifecycle import ReplicaKey
from phalanx._schedulers.replicas.replica_end import ReplicaEnd
from phalanx._schedulers.replicas.request import RANK0_PORT, AppRequest, ReplicaRequest
from phalanx._schedulers.supervised.replicas import TellStacks, Wait, open_log
from phalanx._system.network import free_port
from phalanx._worker import program
from phalanx.errors import AgentLost, Cancelled, OutputLost, PhalanxError

_PORTS = range(15_000, 30_000)
"""Of which the first host listens at some, for the others to try."""


class SshReplicas:
    """Starts replicas over SSH, on the launcher's placement."""

    def __init__(self, request: AppRequest, path: Path) -> None:
        """Nothing runs."""
        self._request = request
        self._wake: Callable[[], None] = lambda: None
        self._running: dict[ReplicaKey, AppRun[Any]] = {}
        self._graces: dict[ReplicaKey, float] = {}
        """Of those that are being stopped."""
        self._ended: queue.SimpleQueue[tuple[ReplicaKey, ReplicaEnd]] = queue.SimpleQueue()
        self._first: dict[str, tuple[str, int]] = {}
        """The address of the first replica and a free port there, by role."""

    def prepare(self, wait: Wait, wake: Callable[[], None]) -> str | None:
        """See that all hosts can be used, and find where first replicas are.

        Hosts that share nothing with this one have the project afterwards.
        """
        self._wake = wake
        for role in self._request.roles:
            hosts = list(dict.fromkeys(replica.hostname for replica in role.replicas))
            self._first[role.name] = ("localhost", free_port())
            if len(hosts) < 2:
                continue
            meets = role.name in self._request.starter_options["meeting_roles"]
            # Some of them may be taken on the first host.
            ports = random.sample(_PORTS, 4)
            find: Callable[..., tuple[str, int, str]] = program.rank0_endpoint
            args: tuple[Any, ...] = ()
            if meets:
                find, args = program.meeting_point, (ports, tokens.make_token())
            try:
                app = self._start(hosts, role.replicas[0], find, args)
                while not app.status().state.is_final:
                    if not wait(f"logging in to {len(hosts)} hosts"):
                        app.cancel(0.0)
                        app.wait()
                found = app.result()
                self._first[role.name] = found.rank(0)[:2]
                problems = {host: found.rank(i)[2] for i, host in enumerate(hosts)}
                if problem := _unreached(hosts, found.rank(0)[0], problems):
                    return problem
            except (PhalanxError, OSError) as error:
                return as_scheduler_options(str(error))
        return None

    def replicas(self) -> Sequence[ReplicaRequest]:
        """As they were asked for."""
        return self._request.replicas

    def start(self, replica: ReplicaRequest) -> ReplicaEnd | None:
        """Launch its program on its host; returns before that has begun."""
        self._graces.pop(replica.key, None)
        first, port = self._first[replica.role]
        rendezvous = {self._request.starter_options["rank0_env"]: first, RANK0_PORT: str(port)}
        token = {RENDEZVOUS_TOKEN: os.environ[RENDEZVOUS_TOKEN]}
        env = {**rendezvous, **token, **replica.env}
        try:
            app = self._start(
                [replica.hostname],
                replica,
                program.run,
                (list(replica.argv), env, first),
                log_spec=_Logs(replica),
                fetch=self._request.starter_options.get("fetch", []),
            )
        except (PhalanxError, OSError) as error:
            return ReplicaEnd(error=as_scheduler_options(str(error)))
        self._running[replica.key] = app
        name = f"phalanx-{replica.role}-{replica.id}"
        threading.Thread(target=self._wait, args=(replica, app), name=name, daemon=True).start()
        return None

    def pid(self, replica: ReplicaKey) -> int | None:
        """It is another host's."""
        return None

    def stop(self, replica: ReplicaKey, grace: float) -> None:
        """The program gets SIGTERM."""
        if replica in self._running and grace < self._graces.get(replica, float("inf")):
            self._graces[replica] = grace
            self._running[replica].cancel(grace)

    def ask_stacks(self, seconds: float, tell: TellStacks, *, native: bool = False) -> None:
        """Each host's agent is asked, all at once; on the side."""
        running = dict(self._running)

        def ask() -> None:
            with ThreadPoolExecutor(max(1, len(running))) as pool:
                asked = {
                    k: pool.submit(a._ask_stacks, seconds, below=True, native=native)
                    for k, a in running.items()
                }
                tell({key: answer.result() for key, answer in asked.items()})

        threading.Thread(target=ask, name="phalanx-stacks", daemon=True).start()

    def ended(self) -> list[tuple[ReplicaKey, ReplicaEnd]]:
        """As the launches tell."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                key, ending = self._ended.get_nowait()
                self._running.pop(key, None)
                found.append((key, ending))
        return found

    def close(self) -> None:
        """End all launches."""
        for app in self._running.values():
            app.cancel(0.0)
        for app in self._running.values():
            app.wait()

    def _start(
        self,
        hosts: Sequence[str],
        replica: ReplicaRequest,
        function: Callable[..., Any],
        args: Sequence[Any],
        *,
        log_spec: LogSpec | None = None,
        fetch: Sequence[str] = (),
    ) -> AppRun[Any]:
        """A launch that is part of an app, and so is not recorded as one."""
        options = LaunchOptions(
            hostnames=list(hosts),
            workers_per_host=1,
            backend=None,
            preload=[],
            name=f"{self._request.app_id}-{replica.role}-{replica.id}",
            stop_grace=self._request.stop_grace,
            log_spec=log_spec or DefaultLogSpec.nothing(),
            fetch=list(fetch),
            **self._request.starter_options["launch_options"],
        )
        needs = imports.of_function(function)
        needs = dataclasses.replace(needs, files=(*needs.files, *replica.files))
        work = Work.of(payload.pack(function, args, {}, needs), needs, function.__name__)
        return prepare_app(options, work, directory=replica.cwd).start(is_recorded=False)

    def _wait(self, replica: ReplicaRequest, app: AppRun[Any]) -> None:
        app.wait()
        stopped = replica.key in self._graces
        try:
            # Also of one that was cancelled: it may have ended by itself just then.
            returned = app.returned_by(0) if stopped else None
            code, error, reported, python, asked = returned or app.result().rank(0)
            _keep_error(replica, reported)
            ending = ReplicaEnd.of(code, error, asked=stopped and asked, python=python)
        except OutputLost as lost:
            code, _, reported, _, asked = lost.result.rank(0)
            _keep_error(replica, reported)
            ending = (
                ReplicaEnd.of(code, str(lost), asked=stopped and asked)
                if code
                else ReplicaEnd(error=str(lost))
            )
        except Cancelled:
            killed = [o.signal for o in app.status().ended if o.signal]
            name = signal_name(killed[0]) if killed else "SIGTERM"
            ending = ReplicaEnd(signal=name, asked=True)
        except Exception as error:  # noqa: BLE001 a launch's failure is the replica's
            ending = ReplicaEnd(error=_in_one_line(error), lost=isinstance(error, AgentLost))
        self._ended.put((replica.key, ending))
        self._wake()


def _unreached(hosts: Sequence[str], address: str, problems: Mapping[str, str]) -> str:
    """What to say when hosts do not reach the first one; empty when all do."""
    found = {host: problem for host, problem in problems.items() if problem}
    if not found:
        return ""
    lines = [f"{host} cannot reach {hosts[0]} at {address}: {why}" for host, why in found.items()]
    return (
        f"{'; '.join(lines)}. Replicas meet at that address. Check firewalls and networks with: "
        f"phalanx hosts check {shlex.join(hosts)}; or set another address of {hosts[0]} with "
        "-cfg address=…"
    )


def _keep_error(replica: ReplicaRequest, reported: bytes) -> None:
    """What the program has reported as its error there, where that of a local one would be."""
    if reported:
        with contextlib.suppress(OSError), open_log(replica.error_file) as file:
            file.write(reported)


def _in_one_line(error: Exception) -> str:
    text = as_scheduler_options(str(error)) if isinstance(error, PhalanxError) else str(error)
    return " ".join(text.split())[:500] or type(error).__name__


class _Logs(LogSpec):
    """A replica's streams into its files."""

    def __init__(self, replica: ReplicaRequest) -> None:
        self._replica = replica

    def get_map(self) -> Handlers:
        return {f"{self._replica.hostname}[0]": [_StreamFiles(self._replica)]}

    def for_members(self, members: Sequence[Member]) -> Handlers:
        return {f"{members[0].hostname}[0]": [_StreamFiles(self._replica)]}


class _StreamFiles(RankFile):
    """A file for each stream."""

    def __init__(self, replica: ReplicaRequest) -> None:
        super().__init__(replica.logs["stdout"])
        self._files = {name: RankFile(path) for name, path in replica.logs.items()}

    def losses(self) -> Iterable[Loss]:
        """Of both."""
        return [loss for file in self._files.values() for loss in file.losses()]

    def take(self, source: Source, stream: str, data: bytes) -> int | None:
        """Append to the stream's own; the supervisor notes the times."""
        self._files.get(stream, self._files["stderr"]).take(source, stream, data)
        return None

    def finish(self) -> None:
        """Close them."""
        for file in self._files.values():
            file.finish()
