"""Builders of log handlers as torchrunx 0.3 and later have them, and how a launch uses them."""

from __future__ import annotations

import copy
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from phalanx._core.rounds import Member
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._logs.lines import sources
from phalanx._logs.spec import Handlers, LogSpec

__all__ = ["RedirectHandler", "default_handlers", "file_handlers", "get_handler_filter"]

Factory = Callable[[], list[logging.Handler]]


def get_handler_filter(
    hostname: str, local_rank: int | None, log_level: int = logging.NOTSET
) -> Callable[[logging.LogRecord], bool]:
    """A filter that lets through what one worker says; with no local rank, the host's agent."""

    def lets_through(record: logging.LogRecord) -> bool:
        whose = (getattr(record, "hostname", None), getattr(record, "local_rank", None))
        return whose == (hostname, local_rank) and record.levelno >= log_level

    return lets_through


class RedirectHandler(logging.Handler):
    """Hands records to the launcher's own logger of the same name: `torchrunx.HOST.LOCAL_RANK`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand it on, if the logger wants records of this level."""
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)


def file_handlers(
    hostnames: Sequence[str],
    workers_per_host: Sequence[int],
    log_dir: str | os.PathLike[str] = "torchrunx_logs",
    log_level: int = logging.NOTSET,
) -> list[logging.Handler]:
    """A file for every agent and worker, in a directory named after the time."""
    directory = Path(log_dir) / datetime.now().isoformat(timespec="seconds")  # noqa: DTZ005 local
    directory.mkdir(parents=True, exist_ok=True)
    form = logging.Formatter("%(asctime)s:%(levelname)s: %(message)s", "%Y-%m-%d %H:%M:%S")
    handlers: list[logging.Handler] = []
    for hostname, count in zip(hostnames, workers_per_host, strict=True):
        for local_rank in (None, *range(count)):
            name = hostname if local_rank is None else f"{hostname}[{local_rank}]"
            handler = logging.FileHandler(directory / f"{name}.log")
            handler.addFilter(get_handler_filter(hostname, local_rank, log_level))
            handler.setFormatter(form)
            handlers.append(handler)
    return handlers


def default_handlers(
    hostnames: Sequence[str], workers_per_host: Sequence[int]
) -> list[logging.Handler]:
    """The first agent and rank 0 to the launcher's loggers; all to files in $TORCHRUNX_LOG_DIR.

    The directory is `torchrunx_logs` by default, and `TORCHRUNX_LOG_DIR=""` asks for no files.
    `$TORCHRUNX_LOG_LEVEL` is the files' level, INFO by default. Raises `ValueError` if it is none.
    """
    handlers: list[logging.Handler] = []
    for local_rank in (None, 0):
        redirect = RedirectHandler()
        redirect.addFilter(get_handler_filter(hostnames[0], local_rank))
        handlers.append(redirect)
    if directory := os.environ.get("TORCHRUNX_LOG_DIR", "torchrunx_logs"):
        level = _level(os.environ.get("TORCHRUNX_LOG_LEVEL", "INFO"))
        handlers += file_handlers(hostnames, workers_per_host, directory, level)
    return handlers


def _level(text: str) -> int:
    names = logging.getLevelNamesMapping()
    if text.isdigit():
        return int(text)
    if text not in names:
        meant = did_you_mean(closest(text.upper(), names), f"Choose from: {', '.join(names)}.")
        raise ValueError(f"TORCHRUNX_LOG_LEVEL={text!r} is not a level.{meant}")
    return names[text]


KEEPING_NAMES: weakref.WeakSet[logging.Handler] = weakref.WeakSet()
"""Handlers of 0.2: they are given records with the names of the loggers that made them."""


class HandlerFactorySpec(LogSpec):
    """Gives everything that is said to all handlers of a factory, which filter it themselves."""

    def __init__(self, factory: Factory | None) -> None:
        """Without a factory: the default handlers."""
        self._factory = factory
        self._made: list[logging.Handler] = []

    def get_map(self) -> Handlers:
        """Not known without the hosts."""
        return {}

    def for_members(self, members: Sequence[Member]) -> Handlers:
        """The factory's handlers, for each agent and worker."""
        if self._factory is None:
            hostnames = [member.hostname for member in members]
            made = default_handlers(hostnames, [member.workers for member in members])
        else:
            made = list(self._factory())
        self._made += made
        named: list[logging.Handler] = [_Named(handler) for handler in made]
        return {source.name: named for source in sources(members)}

    def close(self) -> None:
        """Close what the factory has made."""
        for handler in self._made:
            handler.close()
        self._made.clear()


class _Named(logging.Handler):
    """Gives records torchrunx's names, or leaves them theirs, and lines of stderr its level."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler

    def emit(self, record: logging.LogRecord) -> None:
        whose = vars(record)
        record = copy.copy(record)
        has_name = record.name not in (whose.get("worker"), "root", "")
        if self._handler in KEEPING_NAMES:
            record.name = record.name if has_name else "root"
        else:
            if has_name:
                record.msg = f"{record.name}:{record.msg}"
            local_rank = whose.get("local_rank")
            rest = "" if local_rank is None else f".{local_rank}"
            record.name = f"torchrunx.{whose.get('hostname')}{rest}"
        if whose.get("stream") == "stderr":
            record.levelno, record.levelname = logging.ERROR, "ERROR"
        if record.levelno >= self._handler.level:
            self._handler.handle(record)

    def flush(self) -> None:
        self._handler.flush()
