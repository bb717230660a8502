"""Workers' output as torchrun has it: straight to the terminal, or into files, or both."""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import string
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from phalanx._core.ranks import REPLICA
from phalanx._core.rounds import Member
from phalanx._logs import logger
from phalanx._logs.lines import Source
from phalanx._logs.losses import Loss, StandardStream
from phalanx._logs.spec import Handlers, LogSpec, RankFile
from phalanx._system import temporary_directory
from phalanx._system.small_files import open_to_append
from phalanx._worker import error_file

_NUMBERS = {"stdout": 1, "stderr": 2}
_TEMPORARY = "phalanx_logs_"
PREFIX = "[${role_name}${local_rank}]:"


_BESIDE = "workers"
"""The directory beside a replica's error file for files of its workers."""


def default_directory(environ: Mapping[str, str], *, redirects: bool) -> str:
    """Where workers' files go when nobody has said; empty where no directory can be made.

    In a replica on a scheduler of ours, files that are shown as well go with the app: beside its
    error file. Otherwise, as with torchrun, a new directory under the temporary one.
    """
    own = environ.get(error_file.VARIABLE, "")
    if own and REPLICA in environ and not redirects:
        return os.path.join(os.path.dirname(own), _BESIDE)
    try:
        return _new_directory()
    except OSError:
        return ""


def _new_directory() -> str:
    return tempfile.mkdtemp(prefix=_TEMPORARY, dir=temporary_directory.place())


def tidy(directory: str) -> bool:
    """Remove what is empty; gives whether there is something left that a user would not find."""
    for parent, _, names in os.walk(directory, topdown=False):
        for name in names:
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                if os.path.getsize(path) == 0:
                    os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(parent)
    return os.path.isdir(directory) and os.path.basename(directory).startswith(_TEMPORARY)


@dataclass(frozen=True)
class TorchrunLogSpec(LogSpec):
    """Where the output of each local rank goes."""

    run_id: str
    role: str
    redirects: Sequence[int]
    """For each local rank: bit 1 stdout, bit 2 stderr go into a file instead."""
    tee: Sequence[int]
    """The same, into a file as well."""
    log_dir: str | None = None
    """None: a new directory under the temporary one, if it is needed."""
    local_ranks: frozenset[int] | None = None
    """Whom the terminal shows; None: all."""
    ranks: frozenset[int] | None = None
    """The same by global rank."""
    prefix: str = PREFIX
    """What goes before the lines that are teed."""
    duplicates: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Texts whose lines, of stdout and of stderr, go into a file of their own as well."""

    def get_map(self) -> Handlers:
        """Nothing is known without the host."""
        return {}

    def for_members(self, members: Sequence[Member]) -> Handlers:
        """One outlet for each local rank of the one host that there is."""
        (member,) = members
        files = self._make_files(member)
        terminal = _Terminal()
        table: Handlers = {}
        for local in range(member.workers):
            outlet = _Outlet(self, local, files, terminal)
            outlet.touch(Source(member.first_rank + local, "", "", member.first_rank + local))
            table[f"{member.hostname}[{local}]"] = [outlet]
        return table

    def _make_files(self, member: Member) -> LogFiles | None:
        """Where this run's files are; None where nothing goes into files."""
        directory = self._make_directory()
        if directory is None:
            return None
        with contextlib.suppress(OSError):  # as with torchrun, they are there though all is shown
            for local in range(member.workers):
                (directory / f"attempt_0/{local}").mkdir(parents=True)
        return _InDirectory(directory, self.redirects, self.tee)

    def _make_directory(self) -> Path | None:
        """A directory of this run's own; None where nothing goes into files."""
        wanted = any(self.redirects) or any(self.tee) or self.log_dir is not None
        if not wanted or self.log_dir == os.devnull:
            return None
        name = f"{self.run_id.replace(os.sep, '_')}_{secrets.token_hex(4)}"
        try:
            directory = Path(self.log_dir or _new_directory()) / name
            directory.mkdir(parents=True)
        except OSError as error:
            logger.warning(
                "phalanx: cannot write log files to %s (%s); continuing without them.",
                self.log_dir,
                error.strerror,
            )
            return None
        return directory


class LogFiles(ABC):
    """Which streams of a local rank go into files, and into which."""

    directory: Path | None
    """Where they all are, if that is known."""

    @abstractmethod
    def redirects(self, local: int) -> int:
        """Bit 1: stdout, bit 2: stderr goes into a file."""

    @abstractmethod
    def tee(self, local: int) -> int:
        """The same, and is shown."""

    @abstractmethod
    def path(self, source: Source, local: int, stream: str, *, filtered: bool) -> Path:
        """The file of a stream in one attempt; or the one for chosen lines of all ranks."""


@dataclass(frozen=True)
class _InDirectory(LogFiles):
    """As torchrun lays them out."""

    directory: Path
    redirected: Sequence[int]
    teed: Sequence[int]

    def redirects(self, local: int) -> int:
        return self.redirected[local]

    def tee(self, local: int) -> int:
        return self.teed[local]

    def path(self, source: Source, local: int, stream: str, *, filtered: bool) -> Path:
        directory = self.directory / f"attempt_{source.attempt}"
        return directory / (f"filtered_{stream}.log" if filtered else f"{local}/{stream}.log")


class _Outlet(RankFile):
    """Takes what one local rank prints, in every round."""

    def __init__(
        self, streams: TorchrunLogSpec, local: int, files: LogFiles | None, terminal: _Terminal
    ) -> None:
        super().__init__(os.devnull, shared=True)
        self._streams = streams
        self._local = local
        self._files = files
        self._terminal = terminal
        self._tee = files.tee(local) if files is not None else 0
        self._redirects = (files.redirects(local) if files is not None else 0) | self._tee
        self.place = files.directory if files is not None and self._redirects else None
        self._begun: dict[tuple[int, str], bytes] = {}
        self._file_losses: dict[Path, Loss] = {}
        self._sources: dict[tuple[int, str], Source] = {}
        self._held: list[tuple[Source, bytes]] = []

    def take(self, source: Source, stream: str, data: bytes) -> int | None:
        """Show some bytes, or write them down."""
        if stream not in _NUMBERS:
            return None
        with self._guard():
            self._keep(source, stream, data)
            self._show(source, stream, data)
        return None

    def hold(self, source: Source, data: bytes) -> int | None:
        """Write it down where that is wanted; what the terminal gets of it waits."""
        with self._guard():
            self._keep(source, "stderr", data)
            self._held.append((source, data))
        return None

    def show_held(self, but: int | None = None) -> list[int | None]:
        """Show what waits, where stderr is shown; gives the ranks of what was."""
        with self._guard():
            held, self._held = self._held, []
            shown = [(source, data) for source, data in held if source.rank != but]
            for source, data in shown:
                self._show(source, "stderr", data)
            bit = _NUMBERS["stderr"]
            goes_there = self._tee & bit or not self._redirects & bit
            return [s.rank for s, _ in shown if goes_there and self._is_shown(s)]

    def _keep(self, source: Source, stream: str, data: bytes) -> None:
        if self._redirects & _NUMBERS[stream]:
            self._write(source, stream, data)

    def _show(self, source: Source, stream: str, data: bytes) -> None:
        bit = _NUMBERS[stream]
        if self._tee & bit:
            self._take_lines(source, stream, data)
        elif not self._redirects & bit and self._is_shown(source):
            self._terminal.put(bit, data)

    def touch(self, source: Source) -> None:
        """Make the files that an attempt has, though nothing may come."""
        for stream, bit in _NUMBERS.items():
            if self._redirects & bit:
                self._write(source, stream, b"")

    def give_up(self, after: float) -> None:
        """Wait no longer than this for a terminal that nobody reads."""
        self._terminal.give_up(after)

    def losses(self) -> Iterable[Loss]:
        """Of its files, and of the terminal that it shares."""
        return (*self._file_losses.values(), *self._terminal.losses())

    def finish(self) -> None:
        """Show the lines that were begun and will not be ended."""
        with self._guard():
            for (_, stream), source in self._sources.items():
                if self._begun.get((source.attempt, stream)):
                    self._take_lines(source, stream, b"\n")
            self._begun.clear()

    def _is_shown(self, source: Source) -> bool:
        chosen = self._streams.local_ranks
        if chosen is not None and self._local not in chosen:
            return False
        ranks = self._streams.ranks
        return ranks is None or source.rank in ranks

    def _take_lines(self, source: Source, stream: str, data: bytes) -> None:
        key = (source.attempt, stream)
        self._sources[key] = source
        # A progress bar ends its lines with a carriage return.
        *whole, begun = re.split(rb"(?<=[\r\n])(?<!\r(?=\n))", self._begun.get(key, b"") + data)
        self._begun[key] = begun
        if not whole or not self._is_shown(source):
            return
        prefix = self._prefix(source)
        lines = [prefix + line for line in whole]
        self._terminal.put(_NUMBERS[stream], b"".join(lines))
        texts = self._streams.duplicates[_NUMBERS[stream] - 1]
        for line in lines:
            if any(text.encode() in line for text in texts):
                self._write(source, stream, line, filtered=True)

    def _prefix(self, source: Source) -> bytes:
        names = {"role_name": self._streams.role, "local_rank": self._local, "rank": source.rank}
        return string.Template(self._streams.prefix).safe_substitute(names).encode()

    def _write(self, source: Source, stream: str, data: bytes, *, filtered: bool = False) -> None:
        assert self._files is not None
        path = self._files.path(source, self._local, stream, filtered=filtered)
        loss = self._file_losses.setdefault(path, Loss(str(path)))
        rest = memoryview(loss.mark() + data if data else b"")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_to_append(path) as file:
                while rest:
                    rest = rest[file.write(rest) :]
        except OSError as error:
            loss.add(min(len(rest), len(data)), error)
        else:
            loss.close_gap()


class _Terminal:
    """Our own stdout and stderr, written to by one at a time, and never blocking for good."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams = {1: StandardStream("stdout"), 2: StandardStream("stderr")}

    def losses(self) -> list[Loss]:
        return [stream.loss for stream in self._streams.values()]

    def give_up(self, after: float) -> None:
        for stream in self._streams.values():
            stream.give_up(after)

    def put(self, number: int, data: bytes) -> None:
        ours = sys.stdout if number == 1 else sys.stderr
        with self._lock:
            stream = self._streams[number]
            if stream.is_gone:
                return
            try:
                replaced = _is_replaced(ours, number)
                if replaced:
                    ours.write(data.decode("utf-8", "backslashreplace"))
                ours.flush()
            except OSError as error:
                stream.fail(number, len(data), error)
            except (ValueError, AttributeError):
                stream.is_gone = True  # it was closed
            else:
                if not replaced:
                    stream.write(number, data)


def _is_replaced(stream: TextIO, number: int) -> bool:
    """A program has put something else in place of the process's own stream: a notebook's,
    or a text that `redirect_stdout` fills.
    """
    try:
        return stream.fileno() != number
    except io.UnsupportedOperation:
        return True
