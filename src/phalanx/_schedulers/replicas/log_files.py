"""What replicas have printed, read back from files: for schedulers whose replicas write some."""

from __future__ import annotations

import dataclasses
import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx._logs.lines import LogLine, Stream, read_unfinished
from phalanx._registry.log_reader import LogReader, by_time
from phalanx._registry.recorded_app import RecordedApp
from phalanx._schedulers.host_paths import at_home
from phalanx._schedulers.replicas.request import STREAMS, times_file

_POLL = 0.05


def find_replica(app: RecordedApp, role: str, replica: int) -> dict[str, Any]:
    """What is recorded of a replica. Raises `LookupError`."""
    roles = {r["name"]: r["replicas"] for r in app.facts["roles"]}
    if role not in roles:
        raise LookupError(f"{app.id} has no role {role!r}; choose one of {', '.join(roles)}")
    found = next((r for r in roles[role] if r["id"] == replica), None)
    if found is None:
        last = len(roles[role]) - 1
        raise LookupError(f"{role} of {app.id} has replicas 0 to {last}, not {replica}")
    return dict(found)


def _names_of(stream: Stream) -> Sequence[str]:
    """The streams that one stands for."""
    return STREAMS if stream is Stream.COMBINED else (stream.value,)


def unfinished_line(replica: Mapping[str, Any], stream: Stream) -> str:
    """What there is of a line that has not ended, at the end of a recorded replica's files."""
    files = replica["streams"]
    return next(
        filter(None, (read_unfinished(Path(files[name])) for name in _names_of(stream))), ""
    )


@dataclass
class ReplicaStream:
    """One stream of one replica: its file, and the one in which times are noted."""

    role: str
    replica: int
    stream: str
    path: Path
    times: Path
    cwd: str

    def __post_init__(self) -> None:
        self._reader = LogReader(self.path, self.times)

    def read(self, *, final: bool) -> Iterator[LogLine]:
        """The lines that have come since the last time."""
        return self._named(self._reader.read(final=final))

    def read_back(self) -> Iterator[LogLine]:
        """The lines that are there now, from the last one to the first."""
        return self._named(self._reader.read_back())

    def _named(self, lines: Iterator[tuple[float | None, str]]) -> Iterator[LogLine]:
        stream = Stream(self.stream)
        for moment, text in lines:
            yield LogLine(self.role, self.replica, at_home(text, self.cwd), moment, stream)


def replica_streams(
    app: RecordedApp, directory: Path, role: str, replica: int, stream: Stream
) -> list[ReplicaStream]:
    """The streams of a recorded replica, whose times are below a directory.

    Raises `LookupError`.
    """
    known = find_replica(app, role, replica)
    return [
        ReplicaStream(
            role,
            replica,
            name,
            path=Path(known["streams"][name]),
            times=times_file(directory, role, replica, name),
            cwd=known.get("cwd", "/"),
        )
        for name in _names_of(stream)
    ]


def read_streams_back(streams: Sequence[ReplicaStream]) -> Iterator[LogLine]:
    """The lines of streams that are there now, from the last one to the first."""
    backwards = (stream.read_back() for stream in reversed(streams))
    return heapq.merge(*backwards, key=by_time, reverse=True)


def read_streams(
    streams: Sequence[ReplicaStream],
    has_ended: Callable[[], bool],
    since: float | None,
    until: float | None,
    *,
    follow: bool,
) -> Iterator[LogLine]:
    """The lines of streams in the order of time, as far as it is known; on until `has_ended`."""
    while True:
        final = not follow or has_ended()
        lines = heapq.merge(*(stream.read(final=final) for stream in streams), key=by_time)
        for line in lines:
            if line.time is None and not final:
                line = dataclasses.replace(line, time=time.time())  # noqa: PLW2901 it has just come
            moment = line.time  # one whose time was not noted is not left out
            if moment is None or (
                (since is None or moment >= since) and (until is None or moment < until)
            ):
                yield line
        if final or (until is not None and time.time() > until):
            return
        time.sleep(_POLL)
