"""Lines: whose they are, how they are put together from pieces, how they are read back. Pure."""

from __future__ import annotations

import bisect
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx._core.ranks import ranges

if TYPE_CHECKING:
    from phalanx._core.rounds import Member


class Stream(Enum):
    """Which of a replica's streams."""

    COMBINED = "combined"
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class Source:
    """Who says something: a worker, or, without a rank, the agent of a host."""

    key: int
    """The global rank of a worker; -1, -2, … for agents."""
    name: str
    """As log specs name it: `{hostname}`, `{hostname}[{local_rank}]`."""
    hostname: str
    rank: int | None = None
    local_rank: int | None = None
    attempt: int = 0
    """How many restarts it took, for a worker of a later round."""


def sources(members: Iterable[Member]) -> Iterator[Source]:
    """The agents and workers of a launch; each agent before its workers."""
    for member in members:
        yield Source(agent_key(member.agent), member.hostname, member.hostname)
        for rank in member.ranks:
            local = rank - member.first_rank
            yield Source(rank, f"{member.hostname}[{local}]", member.hostname, rank, local)


def agent_key(agent: int) -> int:
    """The key of an agent, by its number."""
    return -1 - agent


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a worker of a launch, or a replica of an app, printed; without its end."""

    role: str
    """The role's name; "default" in a launch."""
    replica: int
    """The replica's number in its role; 0 in a launch."""
    text: str
    """The line."""
    time: float | None = None
    """When it came, in seconds since 1970, to about a tenth of a second, if that was kept."""
    stream: Stream = Stream.COMBINED
    """Which stream it came from, where they are kept apart."""
    rank: int | None = None
    """The worker's global rank, in a launch."""
    hostname: str = ""
    """The host's name, as the launcher knows it."""
    local_rank: int | None = None
    """Its number among the workers of its host, from 0."""

    def to_dict(self) -> dict[str, object]:
        """As `phalanx log --json` prints it: whose it is, by rank in a launch, else by replica."""
        if self.rank is None:
            own: dict[str, object] = {"role": self.role, "replica": self.replica}
        else:
            own = {"rank": self.rank, "hostname": self.hostname, "local_rank": self.local_rank}
        stream = {} if self.rank is not None else {"stream": self.stream.value}
        return {**own, "text": self.text, "time": self.time, **stream}

    def __str__(self) -> str:
        """The line behind whose it is."""
        if self.rank is None:
            return f"{self.role}/{self.replica} {self.text}"
        return f"{prefix((self.rank,), self.hostname)} {self.text}"


def rank_line(
    rank: int, hostname: str, local_rank: int, text: str, time: float | None = None
) -> LogLine:
    """A line of a launch's worker."""
    return LogLine(
        role="default",
        replica=0,
        text=text,
        time=time,
        rank=rank,
        hostname=hostname,
        local_rank=local_rank,
    )


def prefix(ranks: Iterable[int], hostname: str | None) -> str:
    """What goes before a line: whose it is."""
    ranks = sorted(ranks)
    word = "rank" if len(ranks) == 1 else "ranks"
    return "[" + " ".join(filter(None, (hostname, word, ranges(ranks)))) + "]"


_LONGEST = 1 << 20
"""Bytes after which a line is passed on though it has not ended."""


class LineAssembler:
    """Lines from one source's streams, each put together from its pieces.

    A carriage return starts a line over, as on a terminal: of a progress bar its last state counts.
    """

    def __init__(self) -> None:
        """Nothing was begun."""
        self._begun: dict[str, bytes] = {}

    def add(self, stream: str, data: bytes) -> list[str]:
        """The lines that this completes."""
        *lines, begun = (self._begun.get(stream, b"") + data).split(b"\n")
        if len(begun) > _LONGEST:
            begun = _last_state(begun, keep_end=True)
        if len(begun) > _LONGEST:
            lines, begun = [*lines, begun], b""
        self._begun[stream] = begun
        return [_last_state(line).decode("utf-8", "replace") for line in lines]

    def begun(self) -> str:
        """What is there of a line that has not ended: a progress bar's state."""
        shown = [_last_state(data) for data in self._begun.values()]
        return next((s.decode("utf-8", "replace") for s in shown if s), "")

    def end(self) -> list[str]:
        """What was begun and will not be ended."""
        return [line for _, line in self.end_of_all()]

    def end_of_all(self) -> list[tuple[str, str]]:
        """The same, each with its stream."""
        left = [(stream, _last_state(data)) for stream, data in self._begun.items()]
        self._begun.clear()
        return [(stream, line.decode("utf-8", "replace")) for stream, line in left if line]


def last_state(line: str) -> str:
    """A line as a terminal would leave it: a carriage return starts it over."""
    return line.rstrip("\r").rpartition("\r")[2]


def _last_state(line: bytes, *, keep_end: bool = False) -> bytes:
    body = line.rstrip(b"\r")
    end = line[len(body) :] if keep_end else b""
    return body.rpartition(b"\r")[2] + end


# ── reading back ──────────────────────────────────────────────────────────────


class LineTimes:
    """When which part of a log file was written: offsets and times, both ascending."""

    def __init__(self) -> None:
        """None is known."""
        self._offsets: list[int] = []
        self._times: list[float] = []
        self._end: float = math.inf
        """Behind this nothing is known yet."""

    def extend(self, text: str) -> None:
        """Take more lines of an offset, a time, and perhaps an end, in their order."""
        for offset, moment, end in re.findall(r"^(\d+) (\d+\.\d+)(?: (\d+))?$", text, re.MULTILINE):
            self._offsets.append(int(offset))
            self._times.append(float(moment))
            self._end = int(end) if end else math.inf

    @staticmethod
    def mark(offset: int, moment: float, end: int | None = None) -> str:
        """The line that says that what is from this offset on, up to an end, came then."""
        return f"{offset} {moment:.3f}\n" if end is None else f"{offset} {moment:.3f} {end}\n"

    def at(self, offset: int) -> float | None:
        """When what is at this offset came."""
        i = bisect.bisect_right(self._offsets, offset) - 1
        return self._times[i] if i >= 0 and offset < self._end else None


def read_lines(
    path: Path, start: int, *, final: bool, size: int = 1 << 20
) -> tuple[list[tuple[int, str]], int]:
    """Some lines of a file from an offset on, each with its own offset, and the end of the last.

    None: there are no more for now. An unfinished line is among them only if `final`.
    """
    try:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read(size)
            while b"\n" not in data and (more := file.read(size)):
                data += more
            at_end = not file.read(1)
    except FileNotFoundError:
        return [], start  # someone has tidied up
    if not (final and at_end):
        data = data[: data.rfind(b"\n") + 1]
    found: list[tuple[int, str]] = []
    at = start
    for line in data.splitlines(keepends=True) if b"\r" not in data else _split(data):
        found.append((at, line.removesuffix(b"\n").decode("utf-8", "replace")))
        at += len(line)
    return found, at


def read_back(path: Path, size: int = 1 << 16) -> Iterator[tuple[int, str]]:
    """The lines of a file, each with its offset, from the last one to the first.

    What comes meanwhile is not among them. Reads no more than is asked for.
    """
    try:
        with open(path, "rb") as file:
            at = file.seek(0, os.SEEK_END)
            rest = b""
            last = True
            while at > 0:
                step = min(size, at)
                at -= step
                file.seek(at)
                first, *lines = (file.read(step) + rest).split(b"\n")
                offset = at + len(first) + sum(len(line) + 1 for line in lines)
                for line in reversed(lines):
                    offset -= len(line)
                    if line or not last:  # a file that ends its last line has none behind it
                        yield offset, line.decode("utf-8", "replace")
                    last = False
                    offset -= 1
                rest = first
                size = min(2 * size, 1 << 20)
            if rest or not last:
                yield 0, rest.decode("utf-8", "replace")
    except FileNotFoundError:
        return  # someone has tidied up


def read_unfinished(path: Path, size: int = 1 << 16) -> str:
    """What is at the end of a file of a line that has not ended: of a progress bar its state."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            begun = file.read(size).rpartition(b"\n")[2]
    except FileNotFoundError:
        return ""
    return _last_state(begun).decode("utf-8", "replace")


def _split(data: bytes) -> Iterator[bytes]:
    """Split at newlines alone: a carriage return is part of a line."""
    *lines, last = data.split(b"\n")
    yield from (line + b"\n" for line in lines)
    if last:
        yield last
