"""Apps as they were recorded, perhaps by another process, perhaps on another host."""

from __future__ import annotations

import contextlib
import difflib
import heapq
import shlex
import shutil
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from phalanx.logs.lines import LogLine, Times, read_lines
from phalanx.registry import VERSION, boot, directory, read, replace
from phalanx.specs import AppState
from phalanx.worker.processes import start_time

_POLL = 0.1


@dataclass(frozen=True)
class RecordedApp:
    """An app as it was recorded, perhaps by another process."""

    path: Path
    facts: Mapping[str, Any]

    def check(self) -> None:
        """Raise one of many errors if this is not what this version has recorded."""
        if self.facts["version"] != VERSION:
            raise ValueError(f"recorded by another version: {self.facts['version']}")
        owner = self.facts["owner"]
        _ = (self.id, self.created, self.log_files(), self.agent_log_files(), self.hosts)
        _ = (owner["host"], owner["boot"], owner["pid"], owner["start"], self.facts["command"])

    @property
    def id(self) -> str:
        """Its id."""
        return str(self.facts["id"])

    @property
    def created(self) -> float:
        """When it was launched, in seconds since 1970."""
        return float(self.facts["created"])

    @property
    def command(self) -> str:
        """What was typed, as far as that can be told."""
        program, *arguments = self.facts["command"] or ["?"]
        if arguments[:2] == ["-m", "phalanx"]:
            arguments = ["phalanx", *arguments[2:]]
        elif arguments and Path(arguments[0]).name == "phalanx":
            arguments = ["phalanx", *arguments[1:]]
        else:
            arguments = [Path(program).name, *arguments]
        return shlex.join(arguments)

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
        status = self._read_status()
        if not AppState(status["state"]).is_final and self._owner_is_gone():
            # It may have written its last word just before it ended.
            status = self._read_status()
            if not AppState(status["state"]).is_final:
                owner = self.facts["owner"]
                status["state"] = AppState.FAILED.value
                status["message"] = f"its launcher (pid {owner['pid']} on {owner['host']}) is gone"
                status["seconds"] = None
        if not AppState(status["state"]).is_final:
            status["seconds"] = time.time() - self.created
        return status

    def _read_status(self) -> dict[str, Any]:
        status = read(self.path / "status.json") or {}
        if status.get("state") not in AppState.__members__:
            status["state"] = AppState.PENDING.value
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
        return bool(owner["boot"] != boot() or start_time(owner["pid"]) != owner["start"])

    def ask_cancel(self, grace: float | None) -> None:
        """Ask its owner for the end; does not wait. Raises `OSError`."""
        replace(self.path / "cancel.json", {"grace": grace, "asked": time.time()})

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
        self._marks = app.path / f"times-{rank}"
        self._read_marks = 0
        self._times = Times()
        self._at = 0

    def read(self, *, final: bool) -> Iterator[LogLine]:
        while True:
            lines, end = read_lines(self._path, self._at, final=final)
            if not lines:
                return
            self._look_for_marks()
            for offset, text in lines:
                moment = self._times.at(offset)
                yield LogLine(self._rank, self._hostname, self._local_rank, text, moment)
            self._at = end

    def _look_for_marks(self) -> None:
        with contextlib.suppress(OSError), open(self._marks) as file:
            file.seek(self._read_marks)
            text = file.read()
            self._read_marks = file.tell()
            self._times.extend(text)


def apps(root: Path | None = None) -> list[RecordedApp]:
    """All apps that are recorded, the oldest first."""
    try:
        root = directory() if root is None else root
        paths = list(root.iterdir())
    except (OSError, RuntimeError):
        return []
    found = []
    for path in paths:
        app = RecordedApp(path, read(path / "app.json") or {})
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            app.check()
            found.append(app)
    return sorted(found, key=lambda app: app.created)


def unreadable() -> list[Path]:
    """Directories in the registry that are not apps as this version records them."""
    known = {app.path for app in apps()}
    try:
        return [path for path in directory().iterdir() if path not in known]
    except (OSError, RuntimeError):
        return []


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
        more = "…, " if len(found) > 5 else ""
        raise LookupError(f"{text!r} is the beginning of {len(found)} apps: {more}{names}")
    near = difflib.get_close_matches(wanted, [app.id for app in known], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else " See: phalanx list"
    raise LookupError(f"there is no app {text!r}.{hint}")
