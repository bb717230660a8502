"""Reading logs back, with the times that were noted beside them."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from phalanx._logs.lines import LineTimes, read_back, read_lines


class _Timed(Protocol):
    @property
    def time(self) -> float | None: ...


def by_time(line: _Timed) -> float:
    """What to sort lines by: one whose time is not known yet has just come."""
    return math.inf if line.time is None else line.time


class LogReader:
    """Reads one log file on from where it was left, with the times that were noted beside it."""

    def __init__(self, path: Path, marks: Path | None = None) -> None:
        """From the beginning."""
        self._path = path
        self._marks = marks
        self._read_marks = 0
        self._times = LineTimes()
        self._at = 0

    def read(self, *, final: bool) -> Iterator[tuple[float | None, str]]:
        """The lines that are there now and were not before; not those that come meanwhile."""
        try:
            size = os.stat(self._path).st_size
        except OSError:
            return
        while self._at < size:
            lines, end = read_lines(self._path, self._at, final=final)
            if not lines:
                return
            self._look_for_marks()
            for offset, text in lines:
                yield self._times.at(offset), text
            self._at = end

    def read_back(self) -> Iterator[tuple[float | None, str]]:
        """The lines that are there now, from the last one to the first."""
        self._look_for_marks()
        for offset, text in read_back(self._path):
            yield self._times.at(offset), text

    def _look_for_marks(self) -> None:
        if self._marks is None:
            return
        with contextlib.suppress(OSError), open(self._marks) as file:
            file.seek(self._read_marks)
            text = file.read()
            self._read_marks = file.tell()
            self._times.extend(text)
