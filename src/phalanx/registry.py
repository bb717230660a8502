"""What was launched on this machine, so that another process can ask, and ask for its end.

A directory per app, with small JSON files that are replaced by atomic rename: homes on clusters are
network filesystems. `app.json` is what was launched, and by which process (host, boot, pid, start
time); `status.json` how it stands; `cancel.json`, written by whoever wants the end; `times-N` when
what of rank N's log was written. Nothing here knows how an app is run.
"""

from __future__ import annotations

import contextlib
import difflib
import getpass
import heapq
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from phalanx.logs import logger
from phalanx.logs.lines import LogLine, Times, read_lines
from phalanx.rounds import Member
from phalanx.specs import AppState, AppStatus
from phalanx.worker.processes import start_time

_VERSION = 1
_KEPT, _PRUNED_TO = 1000, 800
"""How many apps are kept, and how many are left when there are more."""
_MARK_EVERY = 0.1
_POLL = 0.1


def directory() -> Path:
    """Where apps are recorded: $XDG_STATE_HOME/phalanx/apps, else under ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "phalanx" / "apps"


def _owner() -> dict[str, Any]:
    """What names this process for good."""
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid": os.getpid(),
        "start": start_time(os.getpid()),
    }


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _replace(path: Path, value: Any) -> None:
    new = path.with_suffix(f".{os.getpid()}.new")
    with open(new, "w", opener=lambda p, f: os.open(p, f, 0o600)) as file:
        json.dump(value, file, default=str)
    os.replace(new, path)


# ── the owner's side ──────────────────────────────────────────────────────────


class Entry:
    """The record of an app that this process runs. Nothing it does fails the app."""

    def __init__(self, path: Path | None) -> None:
        """Use `create`. Without a path nothing is recorded."""
        self._path = path
        self._marks: dict[int, float] = {}

    @classmethod
    def create(
        cls, app: str, name: str, members: Sequence[Member], logs: Mapping[int, Path]
    ) -> Entry:
        """Record an app; where that cannot be, one that records nothing is given."""
        path = None
        try:
            root = directory()
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = root / app
            path.mkdir(mode=0o700)
            _replace(path / "app.json", _describe(app, name, members, logs))
            _replace(path / "status.json", {"state": AppState.PENDING.value})
            _prune(root)
        except (OSError, RuntimeError, KeyError) as error:
            logger.info("phalanx: %s is not recorded: %s", app, error)
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)
            path = None
        return cls(path)

    def update(self, status: AppStatus) -> None:
        """Replace the status."""
        if self._path is not None:
            with contextlib.suppress(OSError):  # someone has removed it: then so be it
                _replace(self._path / "status.json", _status(status))

    def cancel_asked(self) -> Mapping[str, Any] | None:
        """What someone who wants the end has written, if anyone has."""
        if self._path is None:
            return None
        return _read(self._path / "cancel.json")

    def mark(self, rank: int, offset: int) -> None:
        """Note that what is from this offset on in a rank's log comes now; not too often."""
        now = time.time()
        if self._path is None or now - self._marks.get(rank, 0.0) < _MARK_EVERY:
            return
        self._marks[rank] = now
        with contextlib.suppress(OSError), open(self._path / f"times-{rank}", "a") as file:
            file.write(Times.mark(offset, now))


def _describe(
    app: str, name: str, members: Sequence[Member], logs: Mapping[int, Path]
) -> dict[str, Any]:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    replicas = [
        {
            "id": member.agent,
            "hostname": member.hostname,
            "ranks": list(member.ranks),
            "logs": {str(rank): str(logs[rank]) for rank in member.ranks if rank in logs},
            "log": str(logs[-1 - member.agent]) if -1 - member.agent in logs else None,
        }
        for member in members
    ]
    return {
        "version": _VERSION,
        "id": app,
        "name": name,
        "scheduler": "launch",
        "created": time.time(),
        "command": [str(part) for part in (sys.orig_argv or sys.argv)],
        "cwd": _cwd(),
        "user": user,
        "owner": _owner(),
        "roles": [{"name": name, "replicas": replicas}],
    }


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


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _prune(root: Path) -> None:
    """Forget the oldest of very many apps that have ended."""
    names = os.listdir(root)
    if len(names) <= _KEPT:
        return
    ended = [app for app in apps(root) if app.state.is_final]
    for app in ended[: max(0, len(names) - _PRUNED_TO)]:
        app.remove()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


# ── everybody's side ──────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RecordedApp:
    """An app as it was recorded, perhaps by another process."""

    path: Path
    facts: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Its id."""
        return str(self.facts["id"])

    @property
    def created(self) -> float:
        """When it was launched, in seconds since 1970."""
        return float(self.facts["created"])

    @cached_property
    def replicas(self) -> list[dict[str, Any]]:
        """Every replica of every role."""
        return [r for role in self.facts["roles"] for r in role["replicas"]]

    @property
    def workers(self) -> int:
        """How many workers it has."""
        return sum(len(replica["ranks"]) for replica in self.replicas)

    @property
    def hosts(self) -> list[str]:
        """The hosts it runs on."""
        return list(dict.fromkeys(replica["hostname"] for replica in self.replicas))

    def status(self) -> dict[str, Any]:
        """How it stands now. If its owner is gone without a word, it has failed."""
        status = _read(self.path / "status.json") or {"state": AppState.PENDING.value}
        if not AppState(status["state"]).is_final and self._owner_is_gone():
            # It may have written its last word just before it ended.
            status = _read(self.path / "status.json") or status
        if not AppState(status["state"]).is_final and self._owner_is_gone():
            owner = self.facts["owner"]
            status["state"] = AppState.FAILED.value
            status["message"] = f"its launcher (pid {owner['pid']} on {owner['host']}) is gone"
        return status

    @property
    def state(self) -> AppState:
        """Where it stands now."""
        return AppState(self.status()["state"])

    def _owner_is_gone(self) -> bool:
        """Certainly: what runs on another host cannot be seen from here."""
        owner = self.facts["owner"]
        if owner["host"] != socket.gethostname():
            return False
        return bool(owner["boot"] != _boot() or start_time(owner["pid"]) != owner["start"])

    def ask_cancel(self, grace: float | None) -> None:
        """Ask its owner for the end; does not wait. Raises `OSError`."""
        _replace(self.path / "cancel.json", {"grace": grace, "asked": time.time()})

    def remove(self, *, logs: bool = False) -> None:
        """Forget it, with its log files if asked for."""
        if logs:
            for replica in self.replicas:
                for path in (*replica["logs"].values(), replica["log"]):
                    if path is not None:
                        Path(path).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)

    # ── its log ───────────────────────────────────────────────────────────────

    def log_files(self, ranks: Collection[int] | None = None) -> dict[int, Path]:
        """The log file of each rank, or of these. Raises `LookupError` for one it does not have."""
        files: dict[int, Path] = {}
        known: set[int] = set()
        for replica in self.replicas:
            known.update(replica["ranks"])
            files |= {int(rank): Path(path) for rank, path in replica["logs"].items()}
        if unknown := set(ranks or ()) - known:
            raise LookupError(f"{self.id} has ranks 0 to {len(known) - 1}, not {min(unknown)}")
        return {r: p for r, p in sorted(files.items()) if ranks is None or r in ranks}

    def agent_log_files(self) -> dict[str, Path]:
        """The log file of each host's agent."""
        return {r["hostname"]: Path(r["log"]) for r in self.replicas if r["log"] is not None}

    def lines(
        self, ranks: Collection[int] | None = None, *, follow: bool = False
    ) -> Iterator[LogLine]:
        """What its workers have printed, in the order of time as far as it is known.

        With `follow`, on until the app has ended.
        """
        files = self.log_files(ranks)
        readers = [_Reader(self, rank, path) for rank, path in files.items()]
        while True:
            final = not follow or self.state.is_final
            yield from heapq.merge(
                *(reader.read(final=final) for reader in readers), key=lambda line: line.time or 0.0
            )
            if final:
                return
            time.sleep(_POLL)


class _Reader:
    """Reads one rank's log on from where it was left."""

    def __init__(self, app: RecordedApp, rank: int, path: Path) -> None:
        replica = next(r for r in app.replicas if rank in r["ranks"])
        self._rank = rank
        self._hostname = replica["hostname"]
        self._local_rank = replica["ranks"].index(rank)
        self._path = path
        self._times = app.path / f"times-{rank}"
        self._at = 0

    def read(self, *, final: bool) -> Iterator[LogLine]:
        while True:
            lines, end = read_lines(self._path, self._at, final=final)
            if not lines:
                return
            times = Times(self._times.read_text() if self._times.exists() else "")
            for offset, text in lines:
                moment = times.at(offset)
                yield LogLine(self._rank, self._hostname, self._local_rank, text, moment)
            self._at = end


def apps(root: Path | None = None) -> list[RecordedApp]:
    """All apps that are recorded, the oldest first."""
    try:
        root = directory() if root is None else root
        paths = list(root.iterdir())
    except (OSError, RuntimeError):
        return []
    found = []
    for path in paths:
        facts = _read(path / "app.json")
        if facts is not None and facts.get("version") == _VERSION:
            found.append(RecordedApp(path, facts))
    return sorted(found, key=lambda app: app.created)


def find(text: str | None) -> RecordedApp:
    """The app of this id, or of this beginning of one; the latest without. Raises `LookupError`.

    Of several, the only one that has not ended is meant.
    """
    known = apps()
    if text is None:
        if not known:
            raise LookupError("no app is recorded yet")
        return known[-1]
    wanted = text.rpartition("/")[2]
    exact = [app for app in known if app.id == wanted]
    found = exact or [app for app in known if app.id.startswith(wanted)]
    if len(found) > 1:
        found = [app for app in found if not app.state.is_final] or found
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(app.id for app in found[-5:])
        raise LookupError(f"{text!r} is the beginning of {len(found)} apps: {names}")
    near = difflib.get_close_matches(wanted, [app.id for app in known], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else " See: phalanx list"
    raise LookupError(f"there is no app {text!r}.{hint}")
