"""The process that an app on a scheduler of ours outlives its command with.

Two processes, each of which notices the other's death: the keeper, a subreaper, and below it the
supervisor, which starts the replicas. Whichever is killed, nothing is left running. What they know
is in the app's directory: `request.json` is read, `status.json` and the times of lines are written.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from phalanx.logs.lines import Times
from phalanx.registry import owner, read, replace
from phalanx.schedulers.course import Action, Course, Finish, Key, Start, Stop
from phalanx.schedulers.crew import Crew, Ending, LocalCrew
from phalanx.schedulers.last_words import first_error
from phalanx.schedulers.request import STREAMS, AppRequest, ReplicaRequest
from phalanx.specs import AppState
from phalanx.worker import processes

_SHORTEST, _LONGEST = 0.02, 0.5
"""Seconds between two looks at what replicas have printed: short while they print."""


def main() -> None:
    """Run the app whose directory is the first argument."""
    path = Path(sys.argv[1])
    os.closerange(3, 1 << 16)
    request = AppRequest.from_dict(read(path / "request.json") or {})
    processes.set_title(f"phalanx: {request.app_id} supervisor")
    processes.become_subreaper()
    replace(path / "app.json", {**(read(path / "app.json") or {}), "owner": owner()})
    ours, theirs = os.pipe()  # the supervisor reads; its end says that the keeper has
    began = time.monotonic()
    supervisor = os.fork()
    if supervisor == 0:
        os.close(theirs)
        _supervise(path, request, ours)
    os.close(ours)
    _keep(path, supervisor, began)


def _keep(path: Path, supervisor: int, began: float) -> NoReturn:
    """Wait for the supervisor's end; see to it that nothing outlives it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: processes.send(supervisor, signal.SIGTERM))
    while True:
        pid, status = os.wait()  # also those whose parents have gone
        if pid == supervisor:
            break
    processes.kill_descendants(processes.reap)
    known = read(path / "status.json") or {}
    if not AppState(known.get("state", "PENDING")).is_final:
        how = processes.describe_status(status)
        known |= {"state": "FAILED", "message": f"its supervisor ended: {how}", "exit_code": 1}
        known |= {"seconds": time.monotonic() - began, "updated": time.time()}
        replace(path / "status.json", known)
    os._exit(0)


def _supervise(path: Path, request: AppRequest, lifeline: int) -> NoReturn:
    code = 1
    try:
        processes.become_subreaper()
        Supervisor(path, request, lifeline).run()
        code = 0
    except BaseException:  # noqa: BLE001 the keeper reports the end, the log says why
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


class Supervisor:
    """Runs one app to its end."""

    def __init__(self, path: Path, request: AppRequest, lifeline: int) -> None:
        """Nothing is started."""
        self._path = path
        self._request = request
        self._lifeline = lifeline
        self._began = time.monotonic()
        self._replicas = {replica.key: replica for replica in request.replicas}
        self._course = Course([role.part for role in request.roles])
        self._endings: dict[Key, Ending] = {}
        self._errors: dict[Key, str] = {}
        self._pids: dict[Key, int | None] = {}
        self._message = ""
        self._code: int | None = None
        self._state = AppState.PENDING
        self._watches = [_Watch(path, r, stream) for r in request.replicas for stream in STREAMS]
        self._pause = _SHORTEST
        self._asked: Any = None
        self._grace = request.stop_grace
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        self._crew: Crew = LocalCrew()

    def run(self) -> None:
        """From the first replica's start to the last one's end."""
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        asked = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: asked.append(True))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if self._prepare():
            self._do(self._course.begin())
        self._write()
        while not self._state.is_final:
            alive = self._rest()
            grew = [watch.look() for watch in self._watches]
            self._pause = _SHORTEST if any(grew) else min(self._pause * 1.5, _LONGEST)
            for key, ending in self._crew.ended():
                self._end(key, ending)
            if self._cancel_asked() or asked:
                asked.clear()
                self._do(self._course.cancel())
            if not alive:
                self._grace = 0.0
                self._message = "its keeper was killed"
                self._do(self._course.fail())

    def _prepare(self) -> bool:
        """Have what the replicas need; False when the app ends without it."""
        if self._request.scheduler == "ssh":
            from phalanx.schedulers.abroad import SshCrew

            crew = SshCrew(self._request, self._waker)
            self._crew = crew
            self._message = "logging in to the hosts"
            self._write()
            failure = crew.prepare(self._cancel_asked)
        else:
            from phalanx.schedulers.gpus import assign

            failure = None
            replicas = assign(self._request, self._path, self._wait_for_gpus)
            self._replicas |= {replica.key: replica for replica in replicas}
        self._message = ""
        if self._cancel_asked():
            self._do(self._course.cancel())
            return False
        if failure is not None:
            self._message, self._code = failure, 1
            self._do(self._course.fail())
            return False
        return True

    def _wait_for_gpus(self, message: str) -> bool:
        """They are taken: say so, and wait a little; False when the app is to end."""
        if message != self._message:
            self._message = message
            self._write()
        self._pause = _LONGEST
        going = self._rest() and not self._cancel_asked()
        self._message = self._message if going else ""
        return going

    def _rest(self) -> bool:
        """Wait until something happens, or a moment has passed; False when the keeper is gone."""
        wake = self._wake.fileno()
        ready, _, _ = select.select([wake, self._lifeline], [], [], self._pause)
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)
        return self._lifeline not in ready

    def _cancel_asked(self) -> bool:
        asked = read(self._path / "cancel.json")
        if asked is None or asked == self._asked:
            return asked is not None
        self._asked = asked
        grace = asked.get("grace")
        self._grace = float(grace) if isinstance(grace, int | float) else self._grace
        for key, state in self._course.states.items():
            if state is AppState.RUNNING:
                self._crew.stop(key, self._grace)
        return True

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(key):
                    self._start(key)
                case Stop(key):
                    self._crew.stop(key, self._grace)
                case Finish(state):
                    self._finish(state)
        if not self._state.is_final:
            self._write()

    def _start(self, key: Key) -> None:
        self._state = AppState.RUNNING
        self._message = ""
        for watch in self._watches:
            watch.look()
        failure = self._crew.start(self._replicas[key])
        self._pids[key] = self._crew.pid(key)
        self._pause = _SHORTEST
        if failure is not None:
            self._end(key, failure)

    def _end(self, key: Key, ending: Ending) -> None:
        self._endings[key] = ending
        if not ending.succeeded:
            self._errors[key] = ending.error or first_error(self._replicas[key])
        actions = self._course.ended(key, succeeded=ending.succeeded)
        if self._course.first_failure == key and self._code is None:
            self._code = ending.code or 1
            self._message = f"{key[0]}/{key[1]} {_describe(ending, self._errors[key])}"
        self._do(actions)

    def _finish(self, state: AppState) -> None:
        self._crew.close()
        for watch in self._watches:
            watch.look()
        self._state = state
        if state is AppState.SUCCEEDED:
            self._code = 0
        self._write()

    def _write(self) -> None:
        replace(
            self._path / "status.json",
            {
                "state": self._state.value,
                "message": self._message,
                "updated": time.time(),
                "seconds": time.monotonic() - self._began,
                "num_restarts": self._course.restarts,
                "exit_code": self._code if self._state.is_final else None,
                "replicas": [self._status(replica) for replica in self._replicas.values()],
            },
        )

    def _status(self, replica: ReplicaRequest) -> dict[str, Any]:
        key, state = replica.key, self._course.states[replica.key]
        ending = self._endings.get(key) if state.is_final else None
        return {
            "role": replica.role,
            "id": replica.id,
            "state": state.value,
            "hostname": replica.hostname,
            "pid": self._pids.get(key),
            "exit_code": None if ending is None else ending.exit_code,
            "signal": None if ending is None else ending.signal,
            "error": self._errors.get(key, "") if state is AppState.FAILED else "",
            "retries": self._course.retries[key],
        }


def _describe(ending: Ending, error: str) -> str:
    if ending.signal is not None:
        how = f"was killed by {ending.signal}"
    elif ending.exit_code is not None:
        how = f"exited with code {ending.exit_code}"
    else:
        return f"failed: {error}"
    return f"{how}: {error}" if error else how


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
        with contextlib.suppress(OSError):
            self._marks.parent.mkdir(exist_ok=True)
            with open(self._marks, "a") as file:
                file.write(Times.mark(self._size, status.st_mtime))
        self._size = status.st_size
        return True


def times_file(path: Path, role: str, replica: int, stream: str) -> Path:
    """Where the times of a replica's lines are."""
    return path / "times" / f"{role}-{replica}-{stream}"
