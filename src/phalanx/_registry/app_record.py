"""The record of an app, kept by the process that runs it."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from phalanx._core.rounds import Member
from phalanx._core.stacks import RankStacks, to_dict
from phalanx._logs import logger
from phalanx._logs.lines import LineTimes, agent_key
from phalanx._logs.losses import Loss
from phalanx._registry import (
    LAUNCH,
    append,
    cancel_asked,
    owner,
    read,
    replace,
    reserve,
    stack_requests,
)
from phalanx._registry.submission import facts_of, make_directory
from phalanx._specs import AppState, AppStatus, WorkerStatus

_MARK_EVERY = 0.1
_UPDATE_EVERY = 0.2

_SAID: set[type[Exception]] = set()
"""Why an app of this process was not recorded, as far as that was said."""


class AppRecord:
    """The record of an app that this process runs. Nothing it does fails the app."""

    def __init__(self, path: Path | None) -> None:
        """Use `create`. Without a path nothing is recorded."""
        self._path = path
        self._marks: dict[int, float] = {}
        self._seen: tuple[object, object] = (None, None)
        self._next_at = 0.0
        self.loss = Loss("")
        """Why what is recorded is not how it stands, if it is not."""

    @classmethod
    def create(
        cls,
        app: str,
        name: str,
        members: Sequence[Member],
        logs: Mapping[int, Path],
        stop_grace: float,
        max_restarts: int | None = None,
        part_of: str = "",
        targets: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> AppRecord:
        """Record an app; where that cannot be, one that records nothing is given.

        `max_restarts` is None where each host has its own. `part_of` is the handle of the app
        on a scheduler whose replica this is. `targets` say how hosts are reached, by their agents,
        unless they are this machine. `more` are other facts.
        """
        path = None
        try:
            path = make_directory(app)
            facts = _describe(app, name, members, logs, stop_grace, targets)
            facts |= {"max_restarts": max_restarts, "part_of": part_of, **more}
            replace(path / "app.json", facts)
            replace(path / "status.json", {"state": AppState.PENDING.value})
            reserve(path / "status.json", sum(member.workers for member in members))
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            # A home that cannot be written stays so; a replica is found by its scheduler.
            if (kind := type(error)) not in _SAID and not part_of:
                _SAID.add(kind)
                text = (
                    "phalanx: cannot record %s (%s): list, status, log and cancel will not find it"
                )
                logger.warning(text, app, error)
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)
            path = None
        return cls(path)

    def extend(
        self,
        members: Sequence[Member],
        logs: Mapping[int, Path],
        targets: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        """It has other members, in addition to those it began with."""
        if self._path is None or (facts := read(self._path / "app.json")) is None:
            return
        (role,) = facts["roles"]
        with contextlib.suppress(OSError):
            roles = [{**role, "replicas": _replicas(members, logs, targets)}]
            replace(self._path / "app.json", {**facts, "roles": roles})
            reserve(self._path / "status.json", sum(member.workers for member in members))

    def is_old(self, urgent: object, rest: object) -> bool:
        """Something else is seen than when this last said so. For the rest that is not said too
        often: thousands of workers that end one by one are not written down a thousand times.
        """
        if self._path is None or self._seen == (urgent, rest):
            return False
        if self._seen[0] == urgent and time.monotonic() < self._next_at:
            return False
        self._seen = urgent, rest
        return True

    def update(self, status: AppStatus) -> None:
        """Replace the status."""
        if self._path is None:
            return
        path = self._path / "status.json"
        began = time.monotonic()
        self.loss = Loss(str(path))
        try:
            replace(path, _status(status), last=status.state.is_final)
        except FileNotFoundError:
            pass  # someone has removed it: then so be it
        except OSError as error:
            self.loss.add(0, error)
        now = time.monotonic()
        self._next_at = now + max(_UPDATE_EVERY, 10 * (now - began))

    def remove(self) -> None:
        """Have no record of it."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)

    def cancel_asked(self) -> Mapping[str, Any] | None:
        """What someone who wants the end has written, if anyone has: at least a `grace`."""
        return None if self._path is None else cancel_asked(self._path)

    def stacks_asked(self) -> list[stack_requests.StackQuestion]:
        """Who wants to know where the workers are."""
        return [] if self._path is None else stack_requests.questions(self._path)

    def tell_stacks(self, name: str, round_: int, found: Sequence[RankStacks]) -> None:
        """Answer one who asked."""
        ranks = [to_dict(one) for one in found]
        if self._path is not None:
            with contextlib.suppress(OSError):
                told = {"round": round_, "taken": time.time(), "ranks": ranks}
                stack_requests.reply(self._path, name, told)

    def mark(self, rank: int, offset: int) -> None:
        """Note that what is from this offset on in a rank's log comes now; not too often."""
        now = time.time()
        if self._path is None or now - self._marks.get(rank, 0.0) < _MARK_EVERY:
            return
        self._marks[rank] = now
        with contextlib.suppress(OSError):
            append(self._path / f"times-{rank}", LineTimes.mark(offset, now))


def _describe(
    app: str,
    name: str,
    members: Sequence[Member],
    logs: Mapping[int, Path],
    stop_grace: float,
    targets: Mapping[int, Mapping[str, Any]],
) -> dict[str, Any]:
    roles = [{"name": name, "replicas": _replicas(members, logs, targets)}]
    facts = facts_of(app, name, LAUNCH, "phalanx", roles)
    return {**facts, "owner": owner(), "stop_grace": stop_grace}


def _replicas(
    members: Sequence[Member],
    logs: Mapping[int, Path],
    targets: Mapping[int, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    return [
        {
            "id": member.agent,
            "hostname": member.hostname,
            "target": targets.get(member.agent),
            "ranks": list(member.ranks),
            "logs": {str(rank): str(logs[rank]) for rank in member.ranks if rank in logs},
            "log": str(logs[key]) if (key := agent_key(member.agent)) in logs else None,
        }
        for member in members
    ]


def _status(status: AppStatus) -> dict[str, Any]:
    """How a launch stands, as data: the one that everybody reads who asks about it."""
    return {
        "state": status.state.value,
        "message": status.message,
        "updated": time.time(),
        "seconds": status.seconds,
        "phases": status.phases,
        "round": status.round,
        "num_restarts": status.num_restarts,
        "steps": None if status.steps is None else dataclasses.asdict(status.steps),
        "rounds": [dataclasses.asdict(round_) for round_ in status.rounds],
        "hosts": [dataclasses.asdict(host) for host in status.hosts],
        "workers": [_worker(worker) for worker in status.workers],
    }


def _worker(worker: WorkerStatus) -> dict[str, Any]:
    ended = worker.outcome
    return {
        "rank": worker.rank,
        "hostname": worker.hostname,
        "local_rank": worker.local_rank,
        "state": worker.state.value,
        "pid": worker.pid,
        "log": worker.log,
        "steps": worker.steps,
        "step_seconds": worker.step_seconds,
        "ended": None if ended is None else ended.kind.value,
        "code": None if ended is None else ended.code,
        "signal": None if ended is None else ended.signal,
        "seconds": None if ended is None else ended.seconds,
        "message": "" if ended is None else ended.describe(),
    }
