"""The record of an app, kept by the process that runs it."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.logs import logger
from phalanx.logs.lines import Times, agent_key
from phalanx.registry import LAUNCH, cancel_asked, owner, replace
from phalanx.registry.submitted import facts_of, make_place
from phalanx.rounds import Member
from phalanx.specs import AppState, AppStatus

_MARK_EVERY = 0.1


class Entry:
    """The record of an app that this process runs. Nothing it does fails the app."""

    def __init__(self, path: Path | None) -> None:
        """Use `create`. Without a path nothing is recorded."""
        self._path = path
        self._marks: dict[int, float] = {}

    @classmethod
    def create(
        cls,
        app: str,
        name: str,
        members: Sequence[Member],
        logs: Mapping[int, Path],
        stop_grace: float,
    ) -> Entry:
        """Record an app; where that cannot be, one that records nothing is given."""
        path = None
        try:
            path = make_place(app)
            replace(path / "app.json", _describe(app, name, members, logs, stop_grace))
            replace(path / "status.json", {"state": AppState.PENDING.value})
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            logger.info("phalanx: %s is not recorded: %s", app, error)
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)
            path = None
        return cls(path)

    def update(self, status: AppStatus) -> None:
        """Replace the status."""
        if self._path is not None:
            with contextlib.suppress(OSError):  # someone has removed it: then so be it
                replace(self._path / "status.json", _status(status))

    def cancel_asked(self) -> Mapping[str, Any] | None:
        """What someone who wants the end has written, if anyone has: at least a `grace`."""
        return None if self._path is None else cancel_asked(self._path)

    def mark(self, rank: int, offset: int) -> None:
        """Note that what is from this offset on in a rank's log comes now; not too often."""
        now = time.time()
        if self._path is None or now - self._marks.get(rank, 0.0) < _MARK_EVERY:
            return
        self._marks[rank] = now
        with contextlib.suppress(OSError), open(self._path / f"times-{rank}", "a") as file:
            file.write(Times.mark(offset, now))


def _describe(
    app: str, name: str, members: Sequence[Member], logs: Mapping[int, Path], stop_grace: float
) -> dict[str, Any]:
    replicas = [
        {
            "id": member.agent,
            "hostname": member.hostname,
            "ranks": list(member.ranks),
            "logs": {str(rank): str(logs[rank]) for rank in member.ranks if rank in logs},
            "log": str(logs[key]) if (key := agent_key(member.agent)) in logs else None,
        }
        for member in members
    ]
    roles = [{"name": name, "replicas": replicas}]
    facts = facts_of(app, name, LAUNCH, "phalanx", roles)
    return {**facts, "owner": owner(), "stop_grace": stop_grace}


def _status(status: AppStatus) -> dict[str, Any]:
    return {
        "state": status.state.value,
        "message": status.message,
        "updated": time.time(),
        "seconds": status.seconds,
        "phases": status.phases,
        "workers": [
            {
                "rank": ended.rank,
                "ended": ended.kind.value,
                "code": ended.code,
                "signal": ended.signal,
                "pid": ended.pid,
                "seconds": ended.seconds,
                "message": ended.describe(),
            }
            for ended in status.ended
        ],
    }
