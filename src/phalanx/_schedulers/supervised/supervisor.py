"""The process that an app on a scheduler of ours outlives its command with.

Two processes, each of which notices the other's death: the keeper, a subreaper, and below it the
supervisor, which has the replicas started. Whichever of the two is killed, nothing is left running.
What they know is in the app's directory: `request.json` is read, `status.json` and the times of
lines are written; that they cannot be at times does not end the app.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from phalanx._channel import tokens
from phalanx._logs.lines import LineTimes
from phalanx._registry import append, cancel_asked, read, replace, stack_requests
from phalanx._registry.recorded_app import see
from phalanx._rendezvous.tcp.tokens import VARIABLE as RENDEZVOUS_TOKEN
from phalanx._schedulers.host_paths import at_home
from phalanx._schedulers.replicas.error_text import (
    ReplicaError,
    describe_missed,
    first_error,
    with_interpreter,
)
from phalanx._schedulers.replicas.lifecycle import (
    AppLifecycle,
    FinishApp,
    LifecycleAction,
    ReplicaKey,
    StartReplica,
    StopReplica,
)
from phalanx._schedulers.replicas.replica_end import ReplicaEnd
from phalanx._schedulers.replicas.request import STREAMS, AppRequest, ReplicaRequest, times_file
from phalanx._schedulers.supervised.replicas import ReplicaStarter
from phalanx._schedulers.supervised.supervisor_process import is_supervisor, supervisor_of, title_of
from phalanx._schedulers.supervised.warning_list import WarningList
from phalanx._specs import AppState, ReplicaStatus
from phalanx._system import processes

if TYPE_CHECKING:
    from phalanx._core.stacks import RankStacks

LOG = "supervisor.log"
_SHORTEST, _LONGEST = 0.02, 0.5
"""Seconds between two looks at what replicas have printed: short while they print."""
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOTHING = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
"""Signals that would end us, and mean nothing to us."""
_NO_WORKERS = "no worker of 'phalanx torchrun' or of a launch is running there"
_AGAIN = 1.0
"""Seconds until the last status is tried to be written again, on a disk that is full."""


def main() -> None:
    """Run the app whose directory is the first argument."""
    run_app(Path(sys.argv[1]), is_fork=False)


def run_app(path: Path, *, is_fork: bool = True) -> None:
    """Run the app of a directory, in a process that is there for this alone.

    One that is a fork of a command need not look for orphans that are stopped: the command has.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # until there is somebody to hear them
    processes.close_from(3)
    request = AppRequest.from_dict(read(path / "request.json") or {})
    processes.set_title(title_of(request.app_id))
    processes.become_subreaper()
    for number in _NOTHING:
        signal.signal(number, lambda *_: None)
    _write(path / "app.json", {**(read(path / "app.json") or {}), "owner": supervisor_of()})
    ours, theirs = os.pipe()  # the supervisor reads; its end says that the keeper has
    began = time.monotonic()
    supervisor = os.fork()
    if supervisor == 0:
        os.close(theirs)
        _supervise(path, request, ours)
    os.close(ours)
    if not is_fork:
        processes.wake_orphans()
    _keep(path, supervisor, began)


def _keep(path: Path, supervisor: int, began: float) -> NoReturn:
    """Wait for the supervisor's end; see to it that nothing outlives it."""
    for number in _ENDS:
        signal.signal(number, lambda *_: processes.send(supervisor, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)  # also those whose parents have gone
        if os.WIFSTOPPED(status):
            if pid == supervisor:  # nobody else would see what its app does
                processes.send(pid, signal.SIGCONT)
        elif pid == supervisor:
            break
    processes.kill_descendants(processes.reap, sparing=is_supervisor)
    known = read(path / "status.json") or {}
    if not AppState(known.get("state", "PENDING")).is_final:
        how = processes.describe_status(status)
        _say(f"the supervisor (pid {supervisor}) ended: {how}")
        missing = "the last output of its replicas may be missing"
        known["message"] = f"its supervisor ended: {how}; {missing}{see(path / LOG)}"
        known |= {"state": "FAILED", "exit_code": 1, "updated": time.time()}
        known["seconds"] = time.monotonic() - began
        for replica in known.get("replicas", ()):
            if not AppState(replica["state"]).is_final:
                replica["state"] = "FAILED"
        _write_last(path / "status.json", known)
    os._exit(0)


def _supervise(path: Path, request: AppRequest, lifeline: int) -> NoReturn:
    code = 1
    try:
        processes.wake_with_parent()
        processes.become_subreaper()
        # Replicas that meet prove it to each other. It is in no file, and in no argument.
        os.environ[RENDEZVOUS_TOKEN] = tokens.make_token()
        Supervisor(path, request, lifeline).run()
        code = 0
    except BaseException:  # noqa: BLE001 the keeper reports the end, the log says why
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        processes.send(os.getppid(), signal.SIGCONT)  # it may be stopped, and has to end with us
        os._exit(code)


def _write(path: Path, value: Any, *, last: bool = False) -> bool:
    """Replace a file, if that can be done."""
    try:
        replace(path, value, last=last)
    except OSError as error:
        _say(f"cannot write {path}: {error.strerror}")
        return False
    return True


def _write_last(path: Path, value: Any) -> None:
    """Write how the app ended, as soon as that can be done: nobody else knows it.

    Blocks until then, or until the app's directory is gone.
    """
    while not _write(path, value, last=True) and path.parent.is_dir():
        time.sleep(_AGAIN)


_said: set[str] = set()


def _say(text: str) -> None:
    """Write a line to our log, once. It may be on the very disk that is full."""
    if text not in _said:
        with contextlib.suppress(OSError):
            os.write(2, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode())
            _said.add(text)


class Supervisor:
    """Runs one app to its end."""

    def __init__(self, path: Path, request: AppRequest, lifeline: int) -> None:
        """Nothing is started."""
        self._path = path
        self._request = request
        self._lifeline: int | None = lifeline
        self._began = time.monotonic()
        self._replicas = {replica.key: replica for replica in request.replicas}
        self._lifecycle = AppLifecycle([role.part for role in request.roles])
        self._endings: dict[ReplicaKey, ReplicaEnd] = {}
        self._errors: dict[ReplicaKey, ReplicaError] = {}
        self._cause: ReplicaKey | None = None
        """The replica that the app's failure is told of."""
        self._pids: dict[ReplicaKey, int | None] = {}
        self._told: dict[ReplicaKey, int] = {}
        """How much of a replica's stderr is of earlier tries."""
        self._message = ""
        self._warnings = WarningList()
        self._code: int | None = None
        self._state = AppState.PENDING
        self._written = True
        self._watches = [_Watch(path, r, stream) for r in request.replicas for stream in STREAMS]
        self._pause = _SHORTEST
        self._signalled = False
        self._asked: Any = None
        self._grace = request.stop_grace
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        module, _, name = request.starter.partition(":")
        self._starter: ReplicaStarter = getattr(importlib.import_module(module), name)(
            request, path
        )

    def run(self) -> None:
        """From the first replica's start to the last one's end."""
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in _ENDS:
            signal.signal(number, self._take_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it wakes us
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
        self._warnings.install()
        self._prepare()
        while not self._state.is_final:
            self._rest()
            grew = [watch.look() for watch in self._watches]
            self._pause = _SHORTEST if any(grew) else min(self._pause * 1.5, _LONGEST)
            # Of those that are seen together, first the one that the others have only heard of.
            ended = sorted(self._starter.ended(), key=lambda one: self._has_only_heard(*one))
            self._written = self._written and not ended
            self._do([action for key, ending in ended for action in self._end(key, ending)])
            self._look_for_an_end()
            self._answer_for_stacks()
            if not self._written and not self._state.is_final:
                self._tell()

    def _take_signal(self, *_: object) -> None:
        self._signalled = True

    def _prepare(self) -> None:
        """Have what the replicas need, and start them; or end without."""
        self._tell()
        failure = self._starter.prepare(self._wait_for_starter, self._wake_up)
        if self._is_to_end():
            self._look_for_an_end()
        elif failure is not None:
            self._message, self._code = failure, 1
            self._do(self._lifecycle.fail())
        else:
            self._message = ""
            prepared = self._starter.replicas()
            self._replicas |= {replica.key: replica for replica in prepared}
            self._do(self._lifecycle.begin())

    def _wait_for_starter(self, message: str) -> bool:
        """Say what the starter waits for; a moment passes. False when the app is to end."""
        if message != self._message:
            self._message = message
            self._tell()
        self._pause = _LONGEST / 2
        self._rest()
        return not self._is_to_end()

    def _wake_up(self) -> None:
        """From any thread: something has happened."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def _rest(self) -> None:
        """Wait until something happens, or a moment has passed."""
        wake = self._wake.fileno()
        watched = [wake] if self._lifeline is None else [wake, self._lifeline]
        ready, _, _ = select.select(watched, [], [], self._pause)
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)
        if self._lifeline in ready:
            self._lifeline = None

    def _is_to_end(self) -> bool:
        asked = cancel_asked(self._path)
        return asked is not None or self._signalled or self._lifeline is None

    def _look_for_an_end(self) -> None:
        """Someone asks for it, or the keeper is gone."""
        asked = cancel_asked(self._path)
        if asked is not None and asked != self._asked:
            self._asked = asked
            self._grace = self._grace if asked["grace"] is None else asked["grace"]
            self._stop_running()
        if asked is not None or self._signalled:
            self._message = self._message if self._code is not None else ""
            self._do(self._lifecycle.cancel())
        if self._lifeline is None:
            self._grace = 0.0
            self._message = self._message or (
                "its supervisor was killed: the last output of its replicas may be missing"
            )
            self._stop_running()
            self._do(self._lifecycle.fail())

    def _answer_for_stacks(self) -> None:
        for asked in stack_requests.questions(self._path):
            tell = functools.partial(self._tell_stacks, asked.name)
            self._starter.ask_stacks(asked.seconds, tell, native=asked.native)

    def _tell_stacks(self, name: str, found: Mapping[ReplicaKey, Sequence[RankStacks]]) -> None:
        """From any thread. A replica without workers has one without a process, that says why."""
        from phalanx._core.stacks import RankStacks, to_dict

        ranks = []
        for (role, number), known in found.items():
            hostname = self._replicas[role, number].hostname
            none = RankStacks(0, hostname, problem=_NO_WORKERS)
            ranks += [{**to_dict(r), "replica": f"{role}/{number}"} for r in known or [none]]
        with contextlib.suppress(OSError):
            stack_requests.reply(
                self._path, name, {"round": 0, "taken": time.time(), "ranks": ranks}
            )

    def _stop_running(self) -> None:
        """Perhaps with less grace than before."""
        self._pause = _SHORTEST
        for key, state in self._lifecycle.states.items():
            if state is AppState.RUNNING:
                self._starter.stop(key, self._grace)

    def _do(self, actions: list[LifecycleAction]) -> None:
        """Take all actions; what could not be started has ended, and has consequences as such."""
        queue, failed = deque(actions), deque[tuple[ReplicaKey, ReplicaEnd]]()
        while queue or failed:
            if not queue:
                queue.extend(self._end(*failed.popleft()))
                continue
            match queue.popleft():
                case StartReplica(key):
                    if (ending := self._start(key)) is not None:
                        failed.append((key, ending))
                case StopReplica(key):
                    self._starter.stop(key, self._grace)
                    self._pause = _SHORTEST
                case FinishApp(state):
                    self._finish(state)
        if actions and not self._state.is_final:
            self._tell()

    def _start(self, key: ReplicaKey) -> ReplicaEnd | None:
        self._state = AppState.RUNNING
        replica = self._replicas[key]
        with contextlib.suppress(OSError):
            os.unlink(replica.error_file)
        with contextlib.suppress(OSError):
            self._told[key] = os.path.getsize(replica.logs["stderr"])
        ending = self._starter.start(replica)
        self._pids[key] = self._starter.pid(key)
        self._pause = _SHORTEST
        return ending

    def _end(self, key: ReplicaKey, ending: ReplicaEnd) -> list[LifecycleAction]:
        self._endings[key] = ending
        asked = ending.asked
        if not ending.succeeded:
            error = self._errors[key] = self._error_of(key, ending)
            asked = asked and not error.is_own  # then it had failed before
        actions = self._lifecycle.ended(
            key, succeeded=ending.succeeded, asked=asked, lost=ending.lost
        )
        if self._lifecycle.first_failure == key and self._code is None:
            self._code = ending.code or 1
            self._blame(key, ending)
        elif not ending.succeeded and self._is_real_cause(key, ending):
            self._blame(key, ending)
        elif self._cause is not None and not ending.succeeded:
            self._blame(self._cause, self._endings[self._cause])  # it may know whom that missed
        return actions

    def _error_of(self, key: ReplicaKey, ending: ReplicaEnd) -> ReplicaError:
        replica = self._replicas[key]
        if ending.error:
            error = ReplicaError(ending.error)
        else:
            killed = ending.signal is not None
            error = first_error(replica, self._told.get(key, 0), killed=killed)
        text = error.text
        if ending.python and not error.is_remote:
            text = with_interpreter(text, replica.hostname, ending.python)
        if text != error.text:
            return ReplicaError(at_home(text, replica.cwd), where=error.where, is_complete=True)
        return dataclasses.replace(
            error,
            text=at_home(text, replica.cwd),
            missed=at_home(error.missed, replica.cwd),
            traceback=at_home(error.traceback, replica.cwd),
        )

    def _has_only_heard(self, key: ReplicaKey, ending: ReplicaEnd) -> bool:
        """It failed because of what happened in another."""
        return not ending.succeeded and self._error_of(key, ending).is_remote

    def _is_real_cause(self, key: ReplicaKey, ending: ReplicaEnd) -> bool:
        """The first that ended was stopped because of what happened in this one.

        One that was killed cannot say so: it is enough that nobody has asked it to end.
        """
        before = None if self._cause is None else self._errors[self._cause]
        if before is None or not before.is_remote:
            return False
        error = self._errors[key]
        return error.is_own or not (error.is_remote or ending.asked)

    def _blame(self, key: ReplicaKey, ending: ReplicaEnd) -> None:
        self._cause = key
        error = self._errors[key]
        how = ReplicaStatus(
            key[1],
            key[0],
            AppState.FAILED,
            exit_code=ending.exit_code,
            signal=ending.signal,
            error=error.text,
        )
        whose = error.describe_worker()
        missed = describe_missed([error, *self._errors.values()])
        self._message = f"{key[0]}/{key[1]} {how.describe()}{whose}{missed}"

    def _finish(self, state: AppState) -> None:
        self._starter.close()
        for watch in self._watches:
            watch.look()
        self._state = state
        if state is AppState.SUCCEEDED:
            self._code = 0
        _write_last(self._path / "status.json", self._describe())

    def _tell(self) -> None:
        self._written = _write(self._path / "status.json", self._describe())

    def _describe(self) -> dict[str, Any]:
        return {
            "state": self._state.value,
            "message": self._message,
            "warnings": list(self._warnings.texts),
            "updated": time.time(),
            "seconds": time.monotonic() - self._began,
            "num_restarts": self._lifecycle.restarts,
            "exit_code": self._code if self._state.is_final else None,
            "replicas": [self._status(replica) for replica in self._replicas.values()],
        }

    def _status(self, replica: ReplicaRequest) -> dict[str, Any]:
        key, state = replica.key, self._lifecycle.states[replica.key]
        ending = self._endings.get(key) if state.is_final else None
        error = self._errors.get(key) if state is AppState.FAILED else None
        return {
            "role": replica.role,
            "id": replica.id,
            "state": state.value,
            "hostname": replica.hostname,
            "pid": self._pids.get(key),
            "exit_code": None if ending is None else ending.exit_code,
            "signal": None if ending is None else ending.signal,
            "error": "" if error is None else f"{error.text}{describe_missed([error])}",
            "traceback": "" if error is None else error.traceback,
            "log": replica.logs["stderr"],
            "retries": self._lifecycle.retries[key],
        }


class _Watch:
    """Notes when what of a replica's stream was written."""

    def __init__(self, path: Path, replica: ReplicaRequest, stream: str) -> None:
        self._log = replica.logs[stream]
        self._marks = times_file(path, replica.role, replica.id, stream)
        self._size = 0

    def look(self) -> bool:
        """It has grown."""
        try:
            status = os.stat(self._log)
        except OSError:
            return False
        if status.st_size <= self._size:
            return False
        try:
            self._marks.parent.mkdir(exist_ok=True)
            append(self._marks, LineTimes.mark(self._size, status.st_mtime, status.st_size))
        except OSError:
            return False  # it is noted the next time
        self._size = status.st_size
        return True
