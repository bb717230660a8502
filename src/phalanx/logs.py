"""What workers print: one file per rank, rank 0 on the terminal, lines for whoever asks.

Writing happens on a thread of its own, so that a slow disk or a terminal that is not read holds up
neither the launch nor the workers, only itself.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import os
import queue
import select
import stat
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, TextIO

from phalanx.errors import ConfigError
from phalanx.rounds import Member

logger = logging.getLogger("phalanx")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a worker printed, without its end."""

    rank: int
    hostname: str
    local_rank: int
    text: str

    def __str__(self) -> str:
        """The line behind its host and global rank."""
        return f"[{self.hostname} rank {self.rank}] {self.text}"


def file_names(members: Iterable[Member], timestamp: str) -> dict[int, str]:
    """The log file's name for every global rank; hosts listed twice are told apart by a number."""
    seen: dict[str, int] = {}
    names: dict[int, str] = {}
    for member in members:
        seen[member.hostname] = count = seen.get(member.hostname, 0) + 1
        host = member.hostname.replace("/", "_")
        host = host if count == 1 else f"{host}#{count}"
        for rank in member.ranks:
            names[rank] = f"{timestamp}-{host}[{rank - member.first_rank}].log"
    return names


class LogSpec(ABC):
    """Where a launch's output goes instead of the usual files and terminal. Subclass it."""

    @abstractmethod
    def get_map(self) -> dict[str, list[logging.Handler]]:
        """The handlers by logger name: `{hostname}[{local_rank}]` is a worker's."""


def worker_handlers(spec: LogSpec, members: Iterable[Member]) -> dict[int, RankHandlers]:
    """A log spec's handlers by global rank. Raises `ConfigError` for what is not a map of them."""
    named = spec.get_map()
    if not isinstance(named, Mapping) or not all(map(_is_list_of_handlers, named.values())):
        raise ConfigError(
            f"log_spec: get_map() gave {named!r}, not lists of handlers by logger name."
        )
    table: dict[int, RankHandlers] = {}
    names = set()
    for member in members:
        names.add(member.hostname)
        for rank in member.ranks:
            name = f"{member.hostname}[{rank - member.first_rank}]"
            names.add(name)
            if named.get(name):
                table[rank] = RankHandlers(name, tuple(named[name]))
    for name in named.keys() - names:
        logger.warning("phalanx: the log spec's %r is no worker of this launch", name)
    return table


def _is_list_of_handlers(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(v, logging.Handler) for v in value)


class RankHandlers:
    """What takes a rank's lines, as records of this logger name."""

    def __init__(self, name: str, handlers: tuple[logging.Handler, ...]) -> None:
        """Nothing has come yet."""
        self.name = name
        self.handlers = handlers
        self._begun: dict[str, bytes] = {}

    def emit(self, stream: str, data: bytes) -> None:
        """Hand every whole line on, and keep what is begun."""
        *lines, self._begun[stream] = (self._begun.get(stream, b"") + data).split(b"\n")
        for line in lines:
            self._handle(line)

    def close(self) -> None:
        """Hand on what was begun and not ended."""
        for line in filter(None, self._begun.values()):
            self._handle(line)

    def _handle(self, line: bytes) -> None:
        """A handler that raises disturbs neither the others nor the launch."""
        text = line.decode("utf-8", "replace")
        record = logging.LogRecord(self.name, logging.INFO, "", 0, text, None, None)
        for handler in self.handlers:
            if record.levelno < handler.level:
                continue
            try:
                handler.handle(record)
            except Exception:  # noqa: BLE001 the user's code; logging's own way to say so
                with contextlib.suppress(Exception):
                    handler.handleError(record)


class LogFiles:
    """The launch's files under a directory, one per rank, in bytes as they came."""

    def __init__(self, directory: Path, members: Iterable[Member]) -> None:
        """Create the files. If that fails, warn once and go on without."""
        self.paths: dict[int, Path] = {}
        self._files: dict[int, BinaryIO] = {}
        members = tuple(members)
        if not members:
            return
        try:
            directory.mkdir(parents=True, exist_ok=True)
            while not self._create(directory, file_names(members, _timestamp())):
                time.sleep(0.001)
        except OSError as error:
            self.close()
            self.paths.clear()
            logger.warning(
                "phalanx: cannot write log files to %s (%s): the launch goes on without them.",
                directory,
                error.strerror,
            )

    def _create(self, directory: Path, names: Mapping[int, str]) -> bool:
        """Create them all, or none if another launch has taken the same names."""
        for rank, name in names.items():
            path = directory / name
            try:
                self._files[rank] = open(path, "xb", buffering=0)  # noqa: SIM115
            except FileExistsError:
                self.close()
                for taken in self.paths.values():
                    taken.unlink(missing_ok=True)
                self.paths.clear()
                return False
            self.paths[rank] = path.absolute()
        return True

    def write(self, rank: int, data: bytes) -> None:
        """Append to a rank's file; the first failure is a warning, and the end of this file."""
        file = self._files.get(rank)
        if file is None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        except OSError as error:
            del self._files[rank]
            logger.warning(
                "phalanx: cannot write the log of rank %d to %s any more: %s",
                rank,
                file.name,
                error.strerror,
            )
            file.close()

    def close(self) -> None:
        """Close what is open."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
        self._files.clear()


class LogWriter:
    """Writes to files and to the terminal, in order, on a thread of its own."""

    def __init__(
        self,
        files: LogFiles,
        shown: frozenset[int],
        handlers: Mapping[int, RankHandlers] | None = None,
    ) -> None:
        """Start the thread; the output of `shown` ranks goes to `sys.stdout`."""
        self._files = files
        self._handlers = handlers or {}
        self._shown = shown
        self._terminal: TextIO | None = sys.stdout
        self._queue: queue.SimpleQueue[tuple[int, str, bytes, Callable[[], None]] | None]
        self._queue = queue.SimpleQueue()
        self._discard_at = float("inf")
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: make("replace") for name in ("stdout", "stderr")}
        self._thread = threading.Thread(target=self._run, name="phalanx-logs", daemon=True)
        self._thread.start()

    def write(self, rank: int, stream: str, data: bytes, done: Callable[[], None]) -> None:
        """Queue some bytes; `done` is called, on the thread, when they are written."""
        self._queue.put((rank, stream, data, done))

    def give_up(self, after: float) -> None:
        """Wait no longer than this for a terminal that nobody reads, from now on."""
        self._discard_at = time.monotonic() + after

    def close(self) -> None:
        """Wait until everything queued is written, or given up."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            rank, stream, data, done = item
            try:
                self._files.write(rank, data)
                if rank in self._shown:
                    self._show(stream, data)
                if rank in self._handlers:
                    self._handlers[rank].emit(stream, data)
            except Exception as error:  # noqa: BLE001 a program's own stream raises anything
                logger.warning("phalanx: cannot show the workers' output any more: %r", error)
                self._terminal = None
            finally:
                done()
        for handlers in self._handlers.values():
            handlers.close()
        self._files.close()

    def _show(self, stream: str, data: bytes) -> None:
        terminal = self._terminal
        if terminal is None:
            return
        if type(terminal) is not io.TextIOWrapper:
            # A notebook's or a test's stream: it takes text only.
            terminal.write(self._decoders[stream].decode(data))
            terminal.flush()
            return
        terminal.flush()
        try:
            self._write_out(terminal.fileno(), memoryview(data))
        except OSError:
            self._terminal = None  # nobody reads it any more

    def _write_out(self, number: int, data: memoryview) -> None:
        """Write without ever blocking for good, so that an app can be cancelled all the same."""
        poll = select.poll()
        poll.register(number, select.POLLOUT)
        # As much as a pipe that can be written takes without blocking; a file takes all.
        step = len(data) if stat.S_ISREG(os.fstat(number).st_mode) else select.PIPE_BUF
        while data:
            if time.monotonic() > self._discard_at:
                self._terminal = None
                logger.warning("phalanx: the last of rank 0's output was given up: nobody reads it")
                return
            if not poll.poll(100):
                continue
            with contextlib.suppress(BlockingIOError):
                data = data[os.write(number, data[:step]) :]


def read_lines(path: Path, start: int, *, final: bool) -> tuple[list[str], int]:
    """The lines of a file from an offset on (an unfinished one if `final`), and the end."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return [], start  # someone has tidied up
    if not final:
        data = data[: data.rfind(b"\n") + 1]
    lines = data.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    return lines, start + len(data)


def _timestamp() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%dT%H-%M-%S.%f")[:-3]
