"""What a launch's workers print, on a terminal, as it shows it itself: progress bars and all."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping
from pathlib import Path

from phalanx._logs.console import STATUS, Console
from phalanx._logs.lines import Source, read_back
from phalanx._registry.recorded_app import RecordedApp

_PAUSE = 0.1
_AT_ONCE = 1 << 20


class _File:
    """One rank's log, read as it grows."""

    def __init__(self, path: Path, source: Source, tail: int | None) -> None:
        self.source = source
        self._path = path
        self._at = 0
        if tail is not None:
            with contextlib.suppress(OSError):
                self._at = path.stat().st_size
            for offset, _ in itertools.islice(read_back(path), tail):
                self._at = offset

    def read(self) -> bytes:
        """What is new, some of it."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            file.seek(self._at)
            data = file.read(_AT_ONCE)
            self._at += len(data)
            return data
        return b""


def watch(app: RecordedApp, files: Mapping[int, Path], tail: int | None = None) -> None:
    """Show what is in the files, or the last lines of each, and what comes, until the app ends.

    One rank's bytes are shown as they are; of several, whole lines with prefixes, and below them
    the first progress bar. A log does not tell stderr from stdout.
    """
    followed = [_File(path, _source(app, rank), tail) for rank, path in files.items()]
    console = Console([file.source for file in followed], prefixed=len(followed) > 1)
    owner = object()
    try:
        while True:
            final = app.state.is_final or not app.path.is_dir()
            while _show_new(console, followed):
                console.tick()
            if final:
                return
            console.tick()
            STATUS.show(owner, console.bar())
            time.sleep(_PAUSE)
    finally:
        STATUS.show(owner, "")
        console.finish()


def _show_new(console: Console, followed: list[_File]) -> bool:
    found = False
    for file in followed:
        if data := file.read():
            console.take(file.source, "stdout", data)
            found = True
    return found


def _source(app: RecordedApp, rank: int) -> Source:
    replica = next(r for r in app.replicas if rank in r["ranks"])
    local = replica["ranks"].index(rank)
    host = replica["hostname"]
    return Source(rank, f"{host}[{local}]", host, rank, local)
