"""Apps as they were recorded, perhaps by another process, perhaps on another host."""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import heapq
import os
import shlex
import shutil
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx._core.suggestions import closest, did_you_mean
from phalanx._logs import logger
from phalanx._logs.lines import LogLine, rank_line
from phalanx._registry import LAUNCH, VERSION, directory, directory_name, read, replace
from phalanx._registry.log_reader import LogReader, by_time
from phalanx._specs import AppState, HostState, RankState
from phalanx._system.identity import is_alive, is_local
from phalanx._system.processes import catches, continue_stopped
from phalanx.errors import UnknownApp

_POLL = 0.1
_LAST_FILES = 2.0
"""Seconds for the last of an app's files to be written."""
_GOING = (AppState.SUBMITTED, AppState.PENDING, AppState.RUNNING)
_UNSOUND = (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError)
"""What a record raises that is none."""
_ANSWER = 15.0
"""Seconds past the grace for an app to end."""


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
        _ = (self.id, self.created, self.log_files(), self.agent_log_files())
        _ = (self.command, self.handle, time.localtime(self.created))
        if owner is not None:
            _ = (owner["host"], owner["boot"], owner["pid"], owner["start"])

    @property
    def id(self) -> str:
        """Its id."""
        return str(self.facts["id"])

    @property
    def scheduler(self) -> str:
        """The scheduler it is on; `launch` for a launch."""
        return str(self.facts["scheduler"])

    @property
    def is_launch(self) -> bool:
        """A function's launch, not an app on a scheduler."""
        return self.scheduler == LAUNCH

    @property
    def handle(self) -> str:
        """What names it to everybody."""
        return f"{self.scheduler}://{self.facts.get('session', 'phalanx')}/{self.id}"

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

    @functools.cached_property
    def replicas(self) -> list[dict[str, Any]]:
        """Every replica of every role."""
        return [r for role in self.facts["roles"] for r in role["replicas"]]

    @property
    def workers(self) -> int:
        """How many workers it has, in its last round; replicas, on a scheduler."""
        if not self.is_launch:
            return len(self.replicas)
        workers = self._read_status()["workers"]
        return len(workers) or sum(len(replica["ranks"]) for replica in self.replicas)

    @property
    def calls(self) -> int:
        """How many calls it makes, if it is a map; 0 for all others."""
        return int(self.facts.get("calls", 0))

    @property
    def hosts(self) -> list[str]:
        """The hosts it runs on, in its last round, as far as they are known."""
        status = self._read_status()
        active = [h for h in status["hosts"] if h["state"] == HostState.ACTIVE]
        begun = [r for r in status.get("replicas", ()) if r["hostname"]]
        found = status["workers"] or active or begun or self.replicas
        names = dict.fromkeys(host["hostname"] for host in found)
        return [name for name in names if name]

    def definition(self) -> dict[str, Any]:
        """What it was made from, for an app on a scheduler."""
        return read(self.path / "definition.json") or {}

    def status(self) -> dict[str, Any]:
        """How it stands now. If its owner is gone without a word, it has failed."""
        state = self.state
        status = copy.deepcopy(self._read_status())
        if state is AppState.FAILED and not AppState(status["state"]).is_final:
            owner = self.facts["owner"]
            who = "launcher" if self.is_launch else "supervisor"
            status["state"] = AppState.FAILED.value
            status["message"] = (
                f"its {who} (pid {owner['pid']} on {owner['host']}) no longer exists"
            )
            if not self.is_launch:
                status["message"] += see(self.path / "supervisor.log")
            status["seconds"] = None
            for worker in status["workers"]:
                if worker["ended"] is None:
                    worker["state"] = RankState.UNKNOWN.value
            for replica in status.get("replicas", ()):
                if not AppState(replica["state"]).is_final:
                    replica["state"] = AppState.FAILED.value
        if not AppState(status["state"]).is_final:
            status["seconds"] = time.time() - self.created
        replicas = status.pop("replicas", ())
        if not self.is_launch:
            for key in ("round", "steps", *_MODEL):
                del status[key]
            status["roles"] = [
                {
                    "role": role["name"],
                    "replicas": [r for r in replicas if r["role"] == role["name"]],
                }
                for role in self.facts["roles"]
            ]
        return status

    @functools.cached_property
    def _known(self) -> dict[tuple[int, int], dict[str, Any]]:
        """What was in which status file last: those who follow an app ask often."""
        return {}

    def _read_status(self) -> dict[str, Any]:
        path = self.path / "status.json"
        try:
            found = os.stat(path)
        except OSError:
            signature = None
        else:
            signature = found.st_ino, found.st_mtime_ns
        status = self._known.get(signature) if signature is not None else None
        if status is None:
            status = _sound(read(path) or {})
            self._known.clear()
            if signature is not None:
                self._known[signature] = status
        if str(status.get("state")) not in AppState.__members__:
            unknown = AppState.UNKNOWN if self.facts["owner"] is None else AppState.PENDING
            status["state"] = unknown.value
        return status

    @property
    def state(self) -> AppState:
        """Where it stands now."""
        state = AppState(self._read_status()["state"])
        if not state.is_final and self._owner_is_gone():
            # It may have written its last word just before it ended.
            state = AppState(self._read_status()["state"])
            return state if state.is_final else AppState.FAILED
        return state

    @property
    def is_local(self) -> bool:
        """Its owner is, or was, a process that could be seen from here."""
        owner = self.facts["owner"]
        return owner is not None and is_local(owner)

    def _owner_is_gone(self) -> bool:
        """Certainly: what runs on another host cannot be seen from here."""
        if not self.is_local:
            return False
        if is_alive(owner := self.facts["owner"]):
            if owner.get("supervises"):
                # What would see it, and continue it, may have been killed meanwhile.
                continue_stopped(owner["pid"])
            return False
        # It may have passed from the process that submitted it to its supervisor meanwhile.
        return self.is_launch or not is_alive(self._owner())

    def _owner(self) -> dict[str, Any]:
        """As it is now."""
        owner: dict[str, Any] = (read(self.path / "app.json") or self.facts)["owner"]
        return owner

    @property
    def cancel_asked(self) -> bool:
        """Whether somebody has asked for its end."""
        return (self.path / "cancel.json").exists()

    def ask_cancel(self, grace: float | None) -> None:
        """Ask its owner for the end; does not wait. Raises `OSError`."""
        failure: OSError | None = None
        try:
            replace(self.path / "cancel.json", {"grace": grace, "asked": time.time()})
        except OSError as error:
            failure = error  # a full disk: a supervisor that is here can be told all the same
        if self.is_local and not self.is_launch and is_alive(owner := self._owner()):
            if owner.get("supervises") and catches(owner["pid"], signal.SIGTERM):
                with contextlib.suppress(OSError):  # it looks for the file at once then
                    os.kill(owner["pid"], signal.SIGTERM)
                    os.kill(owner["pid"], signal.SIGCONT)  # one that is stopped hears nothing
                    failure = None
        if failure is not None:
            raise failure

    def cancel(self, grace: float | None = None) -> AppState:
        """Ask its owner for the end, and wait for it, at most the grace and a little more."""
        self.ask_cancel(grace)
        own = float(self.facts.get("stop_grace", 5.0))
        limit = time.monotonic() + (own if grace is None else grace) + _ANSWER
        while not (state := self.state).is_final and time.monotonic() < limit:
            time.sleep(0.02)
        return state

    def remove(self, *, logs: bool = False) -> None:
        """Forget it, with its log files if asked for. Raises `OSError`."""
        if logs:
            for replica in self.replicas:
                for path in (*replica["logs"].values(), replica["log"]):
                    if path is not None:
                        Path(path).unlink(missing_ok=True)
                self._remove_streams(replica)
        limit = time.monotonic() + _LAST_FILES
        while True:
            try:
                shutil.rmtree(self.path)
            except FileNotFoundError:
                return  # somebody else does the same
            except OSError as error:
                # Its owner, which has said how it ended, may still write.
                if error.errno != errno.ENOTEMPTY or time.monotonic() > limit:
                    raise
                time.sleep(0.02)
            else:
                return

    def _remove_streams(self, replica: Mapping[str, Any]) -> None:
        """A replica's files, and the directories for them that are empty then."""
        for text in replica.get("streams", {}).values():
            path = Path(text)
            path.unlink(missing_ok=True)
            path.with_name("error.json").unlink(missing_ok=True)
            shutil.rmtree(path.with_name("workers"), ignore_errors=True)
            for parent in path.parents:
                if self.id not in parent.parts:
                    break
                with contextlib.suppress(OSError):
                    parent.rmdir()

    # ── its log ───────────────────────────────────────────────────────────────

    def log_files(self, ranks: Collection[int] | None = None) -> dict[int, Path]:
        """The log file of each rank, or of these. Raises `LookupError` for one it does not have."""
        files: dict[int, Path] = {}
        known: set[int] = set()
        for replica in self.replicas:
            known.update(replica["ranks"])
            files |= {int(rank): Path(path) for rank, path in replica["logs"].items()}
        if unknown := set(ranks or ()) - known:
            raise LookupError(
                f"{self.id} has no rank {min(unknown)}; its ranks are 0 to {len(known) - 1}"
            )
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
        readers = {
            rank: LogReader(path, self.path / f"times-{rank}") for rank, path in files.items()
        }
        while True:
            final = not follow or self.state.is_final or not self.path.is_dir()
            yield from heapq.merge(
                *(self._lines_of(rank, reader, final) for rank, reader in readers.items()),
                key=by_time,
            )
            if final:
                return
            time.sleep(_POLL)

    def lines_back(self, rank: int) -> Iterator[LogLine]:
        """What one worker has printed, from its last line to the first."""
        reader = LogReader(self.log_files([rank])[rank], self.path / f"times-{rank}")
        return self._named(rank, reader.read_back())

    def _lines_of(self, rank: int, reader: LogReader, final: bool) -> Iterator[LogLine]:  # noqa: FBT001
        return self._named(rank, reader.read(final=final))

    def _named(self, rank: int, lines: Iterator[tuple[float | None, str]]) -> Iterator[LogLine]:
        replica = next(r for r in self.replicas if rank in r["ranks"])
        local_rank = replica["ranks"].index(rank)
        for moment, text in lines:
            yield rank_line(rank, replica["hostname"], local_rank, text, moment)


def see(log: Path) -> str:
    """Where to read more, if there is something to read."""
    try:
        return f" (see {log})" if log.stat().st_size else ""
    except OSError:
        return ""


def _sound(status: dict[str, Any]) -> dict[str, Any]:
    """A status without what another program, or half a disk, has made of it."""
    seconds = status.get("seconds")
    if not isinstance(seconds, int | float):
        status["seconds"] = None
    replicas = status.get("replicas", [])
    kinds = {"role": str, "id": int, "state": str, "hostname": str}
    status["replicas"] = [
        replica
        for replica in (replicas if isinstance(replicas, list) else [])
        if isinstance(replica, dict)
        and all(isinstance(replica.get(key), kind) for key, kind in kinds.items())
        and replica["state"] in AppState.__members__
    ]
    status["message"] = str(status.get("message", ""))
    for key in ("round", "num_restarts"):
        if not isinstance(status.get(key), int):
            status[key] = 0
    if not _fits(status.get("steps"), _STEPS):
        status["steps"] = None
    for key, fields in _MODEL.items():
        status[key] = [item for item in _items(status.get(key)) if _fits(item, fields)]
    return status


_STEPS: dict[str, Any] = {
    "done": int,
    "seconds": int | float,
    "slowest_rank": int,
    "slowest_hostname": str,
    "slowest_seconds": int | float,
}

_MODEL: dict[str, dict[str, Any]] = {
    "hosts": {"hostname": str, "state": str, "ranks": list, "reason": str},
    "rounds": {"number": int, "began": int | float, "hosts": list, "restarts": int, "cause": str},
    "workers": {
        "rank": int,
        "hostname": str,
        "state": str,
        "pid": int | None,
        "ended": str | None,
        "message": str,
    },
}
"""What readers of a launch's status rely on."""


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _fits(item: Any, fields: Mapping[str, Any]) -> bool:
    return isinstance(item, dict) and all(
        key in item and isinstance(item[key], kind) for key, kind in fields.items()
    )


def apps(root: Path | None = None, *, parts: bool = False) -> list[RecordedApp]:
    """All apps that are recorded, the oldest first; with those that are `parts` of another."""
    try:
        root = directory() if root is None else root
        paths = list(root.iterdir())
    except OSError:
        return []
    except RuntimeError as error:
        _say_once(str(error))
        return []
    found = []
    for path in paths:
        app = RecordedApp(path, read(path / "app.json") or {})
        with contextlib.suppress(*_UNSOUND):
            app.check()
            if parts or not app.facts.get("part_of"):
                found.append(app)
    return sorted(found, key=lambda app: app.created)


@functools.cache
def _say_once(reason: str) -> None:
    logger.warning("phalanx: cannot read the list of apps: %s", reason)


def get(name: str) -> RecordedApp | None:
    """The app in the directory of this name, which for apps of ours is the id."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        return None
    try:
        path = directory() / name
        app = RecordedApp(path, read(path / "app.json") or {})
        app.check()
    except (RuntimeError, *_UNSOUND):
        return None
    return app


def by_handle(scheduler: str, session: str, app_id: str) -> RecordedApp | None:
    """The app of this handle, if it is recorded."""
    for name in (app_id, directory_name(scheduler, session, app_id)):
        app = get(name)
        if app is not None and (app.scheduler, app.id) == (scheduler, app_id):
            if app.facts.get("session") == session:
                return app
    return None


def unreadable() -> list[Path]:
    """Directories in the registry that are not apps as this version records them."""
    known = {app.path for app in apps(parts=True)}
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
            raise LookupError("no apps yet")
        return known[-1]
    wanted = text.rpartition("/")[2]
    if not wanted:
        raise LookupError(f"{text!r} is not an app. List apps with: phalanx list")
    exact = [app for app in apps(parts=True) if app.id == wanted]
    found = exact or [app for app in known if app.id.startswith(wanted)]
    if len(found) > 1:
        found = [app for app in found if app.state in _GOING] or found
    if len(found) == 1:
        return found[0]
    if found:
        same = len({app.id for app in found}) < len(found)
        names = ", ".join(app.handle if same else app.id for app in found[-5:])
        more = "…, " if len(found) > 5 else ""
        raise LookupError(f"{text!r} is ambiguous: it matches {len(found)} apps: {more}{names}")
    hint = did_you_mean(closest(wanted, [app.id for app in known]), "List apps with: phalanx list")
    raise UnknownApp(f"no such app: {text!r}.{hint}")
