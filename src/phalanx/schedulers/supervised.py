"""Schedulers whose apps are run by a supervisor of ours, and found in the registry."""

from __future__ import annotations

import contextlib
import heapq
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from phalanx.errors import SubmitFailed
from phalanx.registry import directory, owner, replace
from phalanx.registry.recorded import Reader, RecordedApp, apps, get
from phalanx.registry.submitted import describe, make_place
from phalanx.schedulers import Capabilities, LogLine, Scheduler, Stream
from phalanx.schedulers.request import STREAMS, AppRequest
from phalanx.specs import (
    AppState,
    AppStatus,
    AppSummary,
    ReplicaStatus,
    RetryPolicy,
    RoleStatus,
)

_POLL = 0.02
_ANSWER = 15.0
"""Seconds past the grace for an app to end."""


class Supervised(Scheduler[Any, AppRequest]):
    """Apps under a detached supervisor on this machine, which outlives the command."""

    name: ClassVar[str]
    capabilities = Capabilities(
        streams=True, times=True, retry_policies=frozenset(RetryPolicy), several_roles=True
    )

    def submit(self, request: AppRequest) -> str:
        """Record the app and start its supervisor. Raises `SubmitFailed`."""
        try:
            path = make_place(request.app_id)
        except FileExistsError:
            raise SubmitFailed(f"{request.app_id} was submitted already.") from None
        except OSError as error:
            raise SubmitFailed(f"apps cannot be recorded in {directory()}: {error}") from error
        try:
            replace(path / "request.json", request.to_dict())
            replace(path / "status.json", _pending(request))
            facts = describe(
                request.app_id, request.name, request.scheduler, request.session, _roles(request)
            )
            facts["stop_grace"] = request.stop_grace
            replace(path / "app.json", facts)
            # From here on it can be found, whatever happens to us; the supervisor says the same.
            facts["owner"] = owner(_start(path))
            replace(path / "app.json", facts)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise SubmitFailed(f"{request.app_id} could not be started: {error}") from error
        return request.app_id

    def describe(self, app_id: str) -> AppStatus | None:
        """How an app stands."""
        app = self._find(app_id)
        return None if app is None else _status(app)

    def list(self) -> list[AppSummary]:
        """All apps of this scheduler and session that are recorded."""
        mine = [app for app in apps() if self._is_ours(app)]
        return [AppSummary(a.id, a.state, str(a.facts["name"]), a.handle) for a in mine]

    def logs(
        self,
        app_id: str,
        role: str,
        replica: int,
        *,
        stream: Stream = Stream.COMBINED,
        since: float | None = None,
        until: float | None = None,
        follow: bool = False,
    ) -> Iterator[LogLine]:
        """What a replica has printed, in the order of time as far as it is known."""
        app = self._find(app_id)
        if app is None:
            raise LookupError(f"there is no app {app_id!r}")
        wanted = STREAMS if stream is Stream.COMBINED else (stream.value,)
        files = _find_replica(app, role, replica)["streams"]
        sources = [_Source(app, role, replica, name, Path(files[name])) for name in wanted]
        return _read(app, sources, since, until, follow=follow)

    def cancel(self, app_id: str) -> None:
        """Ask the supervisor for the end, and wait for it, at most the grace and a little more."""
        app = self._find(app_id)
        if app is None or app.state.is_final:
            return
        app.ask_cancel(None)
        limit = time.monotonic() + float(app.facts["stop_grace"]) + _ANSWER
        while not app.state.is_final and time.monotonic() < limit:
            time.sleep(_POLL)

    def delete(self, app_id: str) -> None:
        """Forget an app, with its logs."""
        self.cancel(app_id)
        app = self._find(app_id)
        if app is not None:
            app.remove(logs=True)

    def _find(self, app_id: str) -> RecordedApp | None:
        app = get(app_id)
        return app if app is not None and self._is_ours(app) else None

    def _is_ours(self, app: RecordedApp) -> bool:
        session = app.facts.get("session")
        return app.scheduler == self.name and session == self.session_name


def _pending(request: AppRequest) -> dict[str, Any]:
    replicas = [
        {"role": r.role, "id": r.id, "state": "PENDING", "hostname": r.hostname}
        for r in request.replicas
    ]
    return {"state": AppState.PENDING.value, "replicas": replicas}


def _roles(request: AppRequest) -> list[dict[str, Any]]:
    return [
        {
            "name": role.name,
            "replicas": [
                {
                    "id": replica.id,
                    "hostname": replica.hostname,
                    "ranks": [],
                    "logs": {},
                    "log": None,
                    "streams": dict(replica.logs),
                }
                for replica in role.replicas
            ],
        }
        for role in request.roles
    ]


_supervisors: list[int] = []
"""Children of this process that may have ended; they are buried when the next is started."""


def _start(path: Path) -> int:
    """Start the supervisor, in a session of its own, with nothing of ours but the environment."""
    from phalanx.hosts import python_command

    for pid in list(_supervisors):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _supervisors.remove(pid)
    command = python_command("phalanx.schedulers.supervisor", str(path))
    log = str(path / "supervisor.log")
    null, append = os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        command,
        os.environ,
        setsid=True,
        setsigmask=(),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, null, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )
    _supervisors.append(pid)
    return pid


def _status(app: RecordedApp) -> AppStatus:
    status = app.status()
    replicas = [
        ReplicaStatus(
            id=r["id"],
            role=r["role"],
            state=AppState(r["state"]),
            hostname=r["hostname"],
            exit_code=r.get("exit_code"),
            signal=r.get("signal"),
            error=r.get("error", ""),
            pid=r.get("pid"),
            retries=r.get("retries", 0),
        )
        for r in status.get("replicas", ())
    ]
    state = AppState(status["state"])
    return AppStatus(
        app=app.id,
        state=state,
        message=status.get("message", ""),
        seconds=status.get("seconds"),
        roles=tuple(
            RoleStatus(role["name"], tuple(r for r in replicas if r.role == role["name"]))
            for role in app.facts["roles"]
        ),
        num_restarts=status.get("num_restarts", 0),
        exit_code=status.get("exit_code", 1 if state is AppState.FAILED else None),
    )


# ── logs ──────────────────────────────────────────────────────────────────────


def _find_replica(app: RecordedApp, role: str, replica: int) -> dict[str, Any]:
    roles = {r["name"]: r["replicas"] for r in app.facts["roles"]}
    if role not in roles:
        raise LookupError(f"{app.id} has no role {role!r}; it has: {', '.join(roles)}")
    found = next((r for r in roles[role] if r["id"] == replica), None)
    if found is None:
        last = len(roles[role]) - 1
        raise LookupError(f"{role} of {app.id} has replicas 0 to {last}, not {replica}")
    return dict(found)


@dataclass
class _Source:
    """One stream of one replica."""

    app: RecordedApp
    role: str
    replica: int
    stream: str
    path: Path

    def __post_init__(self) -> None:
        from phalanx.schedulers.supervisor import times_file

        marks = times_file(self.app.path, self.role, self.replica, self.stream)
        self._reader = Reader(self.path, marks)

    def read(self, *, final: bool) -> Iterator[LogLine]:
        stream = Stream(self.stream)
        for moment, text in self._reader.read(final=final):
            yield LogLine(self.role, self.replica, text, moment, stream)


def _read(
    app: RecordedApp,
    sources: list[_Source],
    since: float | None,
    until: float | None,
    *,
    follow: bool,
) -> Iterator[LogLine]:
    while True:
        final = not follow or app.state.is_final
        lines = heapq.merge(
            *(source.read(final=final) for source in sources), key=lambda line: line.time or 0.0
        )
        for line in lines:
            moment = line.time or time.time()
            if (since is None or moment >= since) and (until is None or moment < until):
                yield line
        if final or (until is not None and time.time() > until):
            return
        time.sleep(_POLL)
