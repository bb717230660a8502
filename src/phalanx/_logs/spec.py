"""Log specs: which handlers take what which worker or agent says."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from phalanx._core import ranks
from phalanx._core.rounds import Member
from phalanx._logs import logger
from phalanx._logs.lines import LineAssembler, Source, sources
from phalanx._logs.losses import Loss
from phalanx._system import machine
from phalanx._system.small_files import open_to_append
from phalanx.errors import ConfigError

LOG_DIR = "./logs"

Handlers = dict[str, list[logging.Handler]]

if TYPE_CHECKING:
    _Stream = logging.StreamHandler[IO[str]]
else:
    _Stream = logging.StreamHandler


class LogSpec(ABC):
    """Where a launch's output goes. Subclass it for handlers of your own.

    Handlers get a record for every line a worker prints (in the name of the worker, level INFO),
    and the records that it made with `logging`, with their own name, level and time. Each record
    has `worker`, `hostname`, `rank` and `local_rank`, that of a line also `stream`. A handler runs
    on a thread of its own.
    """

    @abstractmethod
    def get_map(self) -> Handlers:
        """The handlers by logger name, asked for at every launch.

        Returns:
            Lists of handlers: `{hostname}` names an agent, `{hostname}[{local_rank}]` a worker.
        """

    def for_members(self, members: Sequence[Member]) -> Handlers:
        """The handlers for a launch on these hosts, asked for each time; by default `get_map()`.

        Args:
            members: The hosts, in rank order; each has a `hostname` and a number of `workers`.

        Returns:
            Lists of handlers by logger name, as `get_map`.
        """
        return self.get_map()


class RankFile(logging.FileHandler):
    """A log file that takes bytes as they come, from one launch or several at once."""

    def __init__(
        self, path: str | os.PathLike[str], *, key: int | None = None, shared: bool = False
    ) -> None:
        """`shared`: several sources write to it, and each line says whose it is.

        `key` is the one source it is for, where a name alone may mean two. It is opened when
        something comes.
        """
        super().__init__(path, delay=True)
        self.path = Path(self.baseFilename)
        self.place: Path | None = self.path if shared else None
        """Where output is that does not make a file for each rank."""
        self.key = key
        self.shared = shared
        self._raw: IO[bytes] | None = None
        self._users = 0
        self._loss = Loss(str(self.path))
        self._assemblies: dict[Source, LineAssembler] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """As it was made; what is open stays here."""
        return _remake, (RankFile, (self.path,), {"key": self.key, "shared": self.shared})

    def create(self) -> None:
        """Create the file; it must not exist. Raises `OSError`."""
        self._raw = open(self.path, "xb", buffering=0)  # noqa: SIM115 `finish` closes it

    def begin(self) -> None:
        """One more launch writes to it."""
        with self._guard():
            if not self._users:
                for loss in self.losses():
                    loss.forget()
            self._users += 1

    def losses(self) -> Iterable[Loss]:
        """What could not be written, of all that came since the first of its launches began."""
        return (self._loss,)

    def take(self, source: Source, stream: str, data: bytes) -> int | None:
        """Append some bytes of a source's output; gives where in the file they begin.

        What cannot be written is counted in `losses`, and marked in the file once it can.
        """
        with self._guard():
            if self.shared:
                lines = self._assemblies.setdefault(source, LineAssembler()).add(stream, data)
                data = _named(source, lines)
            return self._append(data)

    def _append(self, data: bytes) -> int | None:
        if not data:
            return None
        mark = self._loss.mark()
        view = memoryview(mark + data)
        try:
            file = self._opened()
            offset = file.tell() + len(mark)
            while view:
                view = view[file.write(view) :]
        except OSError as error:
            self._loss.add(min(len(view), len(data)), error)
            return None
        self._loss.close_gap()
        return offset

    def _opened(self) -> IO[bytes]:
        """The file; made anew if somebody has removed it."""
        if self._raw is not None and not os.fstat(self._raw.fileno()).st_nlink:
            self._raw.close()
            self._raw = None
        if self._raw is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._raw = open_to_append(self.path)
        return self._raw

    def hold(self, source: Source, data: bytes) -> int | None:
        """Take a traceback, as `take` does. What somebody looks at may wait for `show_held`."""
        return self.take(source, "stderr", data)

    def show_held(self, but: int | None = None) -> Collection[int | None]:
        """Show what was held, unless it is of this rank: that is told in another way.

        Gives the ranks whose traceback was shown on a terminal.
        """
        return ()

    def give_up(self, after: float) -> None:
        """Wait no longer than this, from now on. A file on disk is not waited for."""

    def finish(self) -> None:
        """A launch has ended; with the last one the file is closed, until another comes."""
        with self._guard():
            self._users -= 1
            if self._users > 0:
                return
            for source, assembly in self._assemblies.items():
                self._append(_named(source, assembly.end()))
            self._assemblies.clear()
            if self._raw is not None:
                try:
                    self._raw.close()
                except OSError as error:  # on a network's disk, that there is no room
                    self._loss.add(0, error)
                self._raw = None

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()


def _remake(kind: type[Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return kind(*args, **options)


def _named(source: Source, lines: Iterable[str]) -> bytes:
    text = "".join(f"[{source.name}] {line}\n" for line in lines)
    return text.encode("utf-8", "surrogateescape")


class Shown(_Stream):
    """A worker's output on the launcher's stdout."""

    def __init__(self, *, key: int | None = None, prefixed: bool = False) -> None:
        """`prefixed`: each line says whose it is. `key` as for a `RankFile`."""
        super().__init__(sys.stdout)
        self.key = key
        self.prefixed = prefixed

    def __reduce__(self) -> tuple[Any, ...]:
        """As it was made."""
        return _remake, (Shown, (), {"key": self.key, "prefixed": self.prefixed})


class DefaultLogSpec(LogSpec):
    """A file for every agent and worker under ./logs, and rank 0's output on the terminal.

    The files are `{timestamp}-{hostname}.log` and `{timestamp}-{hostname}[{local_rank}].log`.
    """

    def __init__(
        self,
        handlers: Mapping[str, Sequence[logging.Handler]] | None = None,
        *,
        log_dir: str | os.PathLike[str] | None = LOG_DIR,
        show: Collection[int] | Literal["all"] = (0,),
    ) -> None:
        """Exactly these handlers by logger name; or files in `log_dir`, and some ranks shown.

        Output of a single rank is shown as it is, that of several with prefixes.

        Args:
            handlers: Handlers by logger name; `log_dir` and `show` then have no effect.
            log_dir: Where the files go; None for no files.
            show: The global ranks whose output is shown on the terminal, or `"all"`.
        """
        self.log_dir = None if log_dir is None else Path(log_dir)
        self.show = show if show == "all" else tuple(show)
        self._handlers = None if handlers is None else {k: list(v) for k, v in handlers.items()}

    @classmethod
    def ranks(cls, *shown: int, log_dir: str | os.PathLike[str] | None = LOG_DIR) -> DefaultLogSpec:
        """Files, and these global ranks on the terminal.

        Args:
            *shown: The global ranks.
            log_dir: Where the files go; None for no files.
        """
        return cls(log_dir=log_dir, show=shown)

    @classmethod
    def all_ranks(cls, log_dir: str | os.PathLike[str] | None = LOG_DIR) -> DefaultLogSpec:
        """Files, and all ranks on the terminal, with prefixes.

        Args:
            log_dir: Where the files go; None for no files.
        """
        return cls(log_dir=log_dir, show="all")

    @classmethod
    def files_only(cls, log_dir: str | os.PathLike[str] = LOG_DIR) -> DefaultLogSpec:
        """Files, and nothing on the terminal.

        Args:
            log_dir: Where the files go.
        """
        return cls(log_dir=log_dir, show=())

    @classmethod
    def nothing(cls) -> DefaultLogSpec:
        """Neither files nor terminal."""
        return cls(log_dir=None, show=())

    @classmethod
    def basic(
        cls,
        hostnames: Sequence[str],
        workers_per_host: int | Sequence[int],
        log_dir: str | os.PathLike[str] = LOG_DIR,
        stream: bool = True,  # noqa: FBT001, FBT002 the name and place that users know
    ) -> DefaultLogSpec:
        """The usual files for these hosts, made once: every launch goes on with the same ones.

        Args:
            hostnames: The hosts.
            workers_per_host: A number for all of them, or one for each.
            log_dir: Where the files go.
            stream: Whether rank 0's output is also shown on the terminal.
        """
        counts = [workers_per_host] * len(hostnames)
        if not isinstance(workers_per_host, int):
            counts = list(workers_per_host)
        members = ranks.members(hostnames, counts)  # type: ignore[arg-type]
        table: Handlers = {}
        for name, files in file_handlers(Path(log_dir), members, timestamp()).items():
            table[name] = list(files)
        if stream:
            table[f"{hostnames[0]}[0]"].append(Shown(key=0))
        return cls(table)

    @classmethod
    def from_file_map(
        cls, file_map: Mapping[str, Sequence[str]], log_dir: str | os.PathLike[str] = LOG_DIR
    ) -> DefaultLogSpec:
        """Files `{timestamp}-{suffix}.log`, each for some workers and agents.

        Args:
            file_map: For each suffix, the logger names whose output goes into its file.
            log_dir: Where the files go.
        """
        now = timestamp()
        table: Handlers = {}
        for suffix, names in file_map.items():
            file = RankFile(Path(log_dir) / f"{now}-{suffix}.log", shared=len(names) > 1)
            for name in names:
                table.setdefault(name, []).append(file)
        return cls(table)

    def get_map(self) -> Handlers:
        """The handlers by logger name; without any given, those for this machine."""
        if self._handlers is not None:
            return {name: list(handlers) for name, handlers in self._handlers.items()}
        return self.for_members(ranks.members(["localhost"], [machine.gpus() or 1]))

    def for_members(self, members: Sequence[Member]) -> Handlers:
        """The handlers for a launch on these hosts; its files are created now."""
        if self._handlers is not None:
            return self.get_map()
        table: Handlers = {source.name: [] for source in sources(members)}
        if self.log_dir is not None:
            for name, files in _create_files(self.log_dir, members).items():
                table[name] += files
        world = sum(member.workers for member in members)
        shown = range(world) if self.show == "all" else self.show
        if unknown := set(shown) - set(range(world)):
            logger.warning("phalanx: cannot show rank %d: no such rank", min(unknown))
        prefixed = self.show == "all" or len(self.show) > 1
        for source in sources(members):
            if source.rank in shown:
                table[source.name].append(Shown(key=source.key, prefixed=prefixed))
        return table


# ── files ─────────────────────────────────────────────────────────────────────


def file_names(members: Iterable[Member], stamp: str) -> dict[int, str]:
    """The log file's name for every source; hosts listed twice are told apart by a number."""
    seen: dict[str, int] = {}
    names: dict[int, str] = {}
    for source in sources(members):
        if source.rank is None:
            seen[source.hostname] = seen.get(source.hostname, 0) + 1
        count = seen[source.hostname]
        host = source.hostname.replace("/", "_")
        host = host if count == 1 else f"{host}#{count}"
        local = "" if source.local_rank is None else f"[{source.local_rank}]"
        names[source.key] = f"{stamp}-{host}{local}.log"
    return names


def file_handlers(
    directory: Path, members: Sequence[Member], stamp: str
) -> dict[str, list[RankFile]]:
    """A file for every source, by logger name."""
    names = file_names(members, stamp)
    table: dict[str, list[RankFile]] = {}
    for source in sources(members):
        file = RankFile(directory / names[source.key], key=source.key)
        table.setdefault(source.name, []).append(file)
    return table


def _create_files(directory: Path, members: Sequence[Member]) -> dict[str, list[RankFile]]:
    """Create them all. If that fails, warn once and go on without."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        while not _create(table := file_handlers(directory, members, timestamp())):
            time.sleep(0.001)
    except OSError as error:
        warn_unwritable(directory, error)
        return {}
    return table


def warn_unwritable(directory: Path, error: OSError) -> None:
    """Say that there will be no log files."""
    text = "phalanx: cannot write log files to %s (%s); continuing without them."
    logger.warning(text, directory, error.strerror)


def _create(table: Mapping[str, Sequence[RankFile]]) -> bool:
    """Create them all, or none if another launch has taken the same names."""
    made: list[RankFile] = []
    try:
        for file in (file for files in table.values() for file in files):
            file.create()
            made.append(file)
    except OSError as error:
        for file in made:
            file.begin()
            file.finish()
            file.path.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def timestamp() -> str:
    """Now, as file names begin with it."""
    return datetime.now().astimezone().strftime("%Y-%m-%dT%H-%M-%S.%f")[:-3]


# ── routes ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Route:
    """What takes what one source says."""

    source: Source
    raw: tuple[RankFile, ...]
    shown: Shown | None
    handlers: tuple[logging.Handler, ...]

    @property
    def file(self) -> RankFile | None:
        """The file that holds this source's output and nothing else."""
        return next((file for file in self.raw if not file.shared), None)


def routes(spec: LogSpec, members: Sequence[Member]) -> dict[int, Route]:
    """A log spec's handlers by source. Raises `ConfigError` for what is not a map of them."""
    named = spec.for_members(members) if isinstance(spec, LogSpec) else spec.get_map()
    if not isinstance(named, Mapping) or not all(map(_is_list_of_handlers, named.values())):
        raise ConfigError(
            f"log_spec: get_map() must return lists of handlers by logger name, not {named!r}."
        )
    known = list(sources(members))
    for name in named.keys() - {source.name for source in known}:
        logger.warning("phalanx: log_spec: no agent or worker named %r in this launch", name)
    return {source.key: _route(source, named.get(source.name, ())) for source in known}


def _route(source: Source, handlers: Sequence[logging.Handler]) -> Route:
    handlers = [
        h for h in handlers if not isinstance(h, RankFile | Shown) or h.key in (None, source.key)
    ]
    shown = next((h for h in handlers if isinstance(h, Shown)), None)
    raw = tuple(h for h in handlers if isinstance(h, RankFile))
    rest = tuple(h for h in handlers if not isinstance(h, RankFile | Shown))
    for file in raw:
        file.begin()
    return Route(source, raw, shown, rest)


def _is_list_of_handlers(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(v, logging.Handler) for v in value)
