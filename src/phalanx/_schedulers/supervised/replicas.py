"""Who starts replicas and ends them: what a supervisor asks for, and this machine as one."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from phalanx._core.ranks import REPLICA
from phalanx._schedulers.replicas.lifecycle import ReplicaKey
from phalanx._schedulers.replicas.replica_end import ReplicaEnd
from phalanx._schedulers.replicas.request import RANK0_PORT, ROLE, AppRequest, ReplicaRequest
from phalanx._schedulers.supervised.supervisor_process import is_supervisor
from phalanx._system import processes, shortage
from phalanx._system.network import free_port
from phalanx._system.small_files import open_to_append

if TYPE_CHECKING:
    from phalanx._core.stacks import RankStacks

CANNOT_START = 127
"""The exit code of what cannot be started, as shells have it."""

_STOPPED = (-signal.SIGTERM, -signal.SIGKILL)
"""How what was asked to end is killed, by what asked or by us."""

Wait = Callable[[str], bool]
"""Called with what is waited for; lets a moment pass, and says whether to go on."""


TellStacks = Callable[[Mapping[ReplicaKey, Sequence["RankStacks"]]], None]
"""Called with what was found, by replica."""


class ReplicaStarter(Protocol):
    """Runs the replicas of an app somewhere. Nothing blocks, but `prepare` and `close`."""

    def __init__(self, request: AppRequest, path: Path) -> None:
        """`path` is the app's directory in the registry."""

    def prepare(self, wait: Wait, wake: Callable[[], None]) -> str | None:
        """Have what the replicas need; or say why that cannot be.

        Blocks until then, or until `wait` says that the app is to end. `wake` is called, from any
        thread, when something has happened.
        """

    def replicas(self) -> Sequence[ReplicaRequest]:
        """As they will be started."""

    def start(self, replica: ReplicaRequest) -> ReplicaEnd | None:
        """Start a replica; how it ended, if it cannot be."""

    def pid(self, replica: ReplicaKey) -> int | None:
        """The process of a replica that was started, if it is one of this machine's."""

    def stop(self, replica: ReplicaKey, grace: float) -> None:
        """Have it end: SIGTERM, after the grace SIGKILL. Again: at most with less grace."""

    def ask_stacks(self, seconds: float, tell: TellStacks, *, native: bool = False) -> None:
        """Find out where workers on other hosts are, and tell, from any thread."""

    def ended(self) -> list[tuple[ReplicaKey, ReplicaEnd]]:
        """Those that have ended since the last look."""

    def close(self) -> None:
        """End all that is left, and wait until it has."""


class LocalReplicas:
    """Replicas as children of this process, each in a session of its own."""

    def __init__(self, request: AppRequest, path: Path) -> None:
        """Nothing runs."""
        self._request = request
        self._path = path
        self._replicas: Sequence[ReplicaRequest] = request.replicas
        self._running: dict[ReplicaKey, subprocess.Popen[bytes]] = {}
        self._kill_at: dict[ReplicaKey, float] = {}
        self._die_of_it: set[ReplicaKey] = set()
        """Those that were asked to end and cannot answer: if they exit, it is by themselves."""
        self._ports: dict[str, str] = {}
        """A port for the replicas of a role to meet at."""

    def prepare(self, wait: Wait, wake: Callable[[], None]) -> str | None:
        """Have GPUs for those that want them, and ports to meet at."""
        from phalanx._schedulers.supervised.gpus import NotEnough, assign

        self._ports = {role.name: str(free_port()) for role in self._request.roles}
        try:
            self._replicas = assign(self._request, self._path, wait)
        except NotEnough as error:
            return str(error)
        except OSError as error:
            return f"cannot record its GPUs: {error}"
        return None

    def replicas(self) -> Sequence[ReplicaRequest]:
        """With the GPUs they have."""
        return self._replicas

    def start(self, replica: ReplicaRequest) -> ReplicaEnd | None:
        """Start it, its streams going to its files."""
        environ = {**os.environ, RANK0_PORT: self._ports[replica.role], **replica.env}
        try:
            with open_log(replica.logs["stdout"]) as out, open_log(replica.logs["stderr"]) as err:
                self._running[replica.key] = subprocess.Popen(
                    _resolve(replica.argv, environ["PATH"]),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=environ,
                    cwd=replica.cwd,
                    start_new_session=True,
                    # For the case that we and the keeper are killed at once. There are no threads.
                    preexec_fn=functools.partial(processes.die_with_parent, os.getpid()),  # noqa: PLW1509
                )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            reason = shortage.describe(error) if shortage.is_shortage(error) else reason
            what = getattr(error, "filename", None) or replica.argv[0]
            text = f"cannot start {what!r}: {reason}"
            with contextlib.suppress(OSError), open_log(replica.logs["stderr"]) as err:
                err.write(f"phalanx: {text}\n".encode())
            return ReplicaEnd(exit_code=CANNOT_START, error=text)
        return None

    def pid(self, replica: ReplicaKey) -> int | None:
        """Its own."""
        process = self._running.get(replica)
        return None if process is None else process.pid

    def ask_stacks(self, seconds: float, tell: TellStacks, *, native: bool = False) -> None:
        """There are none: launches of this machine are asked themselves."""
        tell({})

    def stop(self, replica: ReplicaKey, grace: float) -> None:
        """To all of its group, once."""
        process = self._running.get(replica)
        if process is None:
            return
        known = self._kill_at.get(replica)
        if known is None and processes.has_died(process.pid):
            return  # by itself, before it could be asked
        moment = time.monotonic() + grace
        self._kill_at[replica] = moment if known is None else min(known, moment)
        if known is None:
            if processes.dies_of(process.pid, signal.SIGTERM):
                self._die_of_it.add(replica)
            _signal_group(process.pid, signal.SIGTERM)
            _signal_group(process.pid, signal.SIGCONT)  # one that is stopped hears nothing

    def ended(self) -> list[tuple[ReplicaKey, ReplicaEnd]]:
        """Those whose own process has; what it has left behind in its session is killed."""
        now = time.monotonic()
        for key, moment in self._kill_at.items():
            if now >= moment and key in self._running:
                _kill_session(self._running[key].pid)
        found = []
        own = {process.pid: key for key, process in self._running.items()}
        for pid in _dead_children():
            if pid not in own:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)  # an orphan that a replica has left
                continue
            key = own[pid]
            if now < self._kill_at.get(key, 0.0) and _is_anybody_else_in(pid):
                continue  # it was asked to end, and what it has started has its grace as well
            _kill_session(pid)  # before its number can be another's
            code = self._running.pop(key).wait()
            asked = self._kill_at.pop(key, None) is not None
            asked = asked and not (key in self._die_of_it and code not in _STOPPED)
            self._die_of_it.discard(key)
            found.append((key, ReplicaEnd.of(code, asked=asked)))
            self._kill_what_is_left_of(key)
        return found

    def _kill_what_is_left_of(self, key: ReplicaKey) -> None:
        """Daemons in sessions of their own have become our children; their environment says whose
        they were.
        """
        own = {process.pid for process in self._running.values()}
        wanted = {f"{ROLE}={key[0]}".encode(), f"{REPLICA}={key[1]}".encode()}
        for pid in processes.children(os.getpid()):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                if pid in own or is_supervisor(pid):
                    continue
                if wanted <= set(file.read().split(b"\0")):
                    for each in (pid, *processes.descendants(pid)):
                        processes.send(each, signal.SIGKILL)

    def close(self) -> None:
        """Everything below this process goes, but for apps that replicas have submitted."""
        processes.kill_descendants(processes.reap, sparing=is_supervisor)
        with contextlib.suppress(OSError):  # an app that has ended has none, whatever is noted
            (self._path / "gpus.json").unlink(missing_ok=True)


def _dead_children() -> list[int]:
    return [pid for pid in processes.children(os.getpid()) if processes.has_died(pid)]


def open_log(path: str) -> IO[bytes]:
    """Open a replica's log; directories that have to be made are for nobody else."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    return open_to_append(path)


def _resolve(argv: tuple[str, ...], path: str) -> list[str]:
    """With the program's own path: it is looked for where the replica would."""
    program = argv[0]
    found = program if os.sep in program else shutil.which(program, path=path)
    return [found or program, *argv[1:]]


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _is_anybody_else_in(leader: int) -> bool:
    """A session has processes that live, besides the one that began it."""
    below = processes.descendants(os.getpid())
    members = (pid for pid in below if pid != leader and processes.session_of(pid) == leader)
    return any(processes.start_time(pid) is not None for pid in members)


def _kill_session(leader: int) -> None:
    """Kill what is in the session that a process has begun, itself included."""
    _signal_group(leader, signal.SIGKILL)
    for pid in processes.descendants(os.getpid()):
        if processes.session_of(pid) == leader:
            processes.send(pid, signal.SIGKILL)
