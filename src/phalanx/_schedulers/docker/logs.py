"""What replicas have printed, from the engine: every line with its stream and its time."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from phalanx._logs.lines import LogLine, Stream
from phalanx._schedulers.docker.engine import Engine, NotInEngine, moment
from phalanx._schedulers.patience import Patience
from phalanx._schedulers.replicas.lifecycle import ReplicaKey
from phalanx.errors import SchedulerUnreachable

_STREAMS = {1: Stream.STDOUT, 2: Stream.STDERR}
_HEADER = struct.Struct(">BxxxI")
_PAUSE = 0.1
_LAST = 200
"""Lines of stderr that are looked through for an error."""


@dataclass(frozen=True)
class ReplicaOutput:
    """Whose output is read."""

    app_id: str
    session: str
    key: ReplicaKey
    has_app_ended: Callable[[Engine], bool]

    def read(
        self, stream: Stream, since: float | None, until: float | None, *, follow: bool
    ) -> Iterator[LogLine]:
        """The lines of all of a replica's attempts, one after the other."""
        role, replica = self.key
        for when, kind, text in self._all_attempts(stream, follow=follow):
            if (since is None or when >= since) and (until is None or when <= until):
                yield LogLine(role=role, replica=replica, text=text, time=when, stream=kind)

    def _all_attempts(self, stream: Stream, *, follow: bool) -> Iterator[tuple[float, Stream, str]]:
        engine, patience = Engine(), Patience()
        attempt, last, is_last_look = 0, "", False
        try:
            while True:
                try:
                    known = engine.attempts(self.app_id, self.session, self.key)
                    patience.answered()
                    container, state = known.get(attempt, ("", "created"))
                    if state != "created":
                        for stamp, kind, text in _lines(
                            engine, container, stream, last, follow=follow
                        ):
                            last = stamp
                            yield moment(stamp) or 0.0, kind, text
                        if not _runs(engine, container):
                            attempt, last = attempt + 1, ""
                            continue
                    if not follow or is_last_look:
                        return
                    # What was made before the app ended is seen by one more look.
                    is_last_look = self.has_app_ended(engine)
                except SchedulerUnreachable as error:
                    if not follow:
                        raise
                    patience.bear(error)
                if not is_last_look:
                    time.sleep(_PAUSE)
        finally:
            engine.close()


def _runs(engine: Engine, container: str) -> bool:
    known = engine.inspect(container)
    return known is not None and known["State"]["Status"] in ("running", "paused")


def last_output(engine: Engine, container: str) -> str:
    """The end of what a container has written to stderr, as it is."""
    lines = _lines(engine, container, Stream.STDERR, "", follow=False, tail=_LAST)
    return "\n".join(text for _, _, text in lines)


def _lines(
    engine: Engine,
    container: str,
    stream: Stream,
    after: str,
    *,
    follow: bool,
    tail: int | None = None,
) -> Iterator[tuple[str, Stream, str]]:
    """Lines behind the one of a time, which is as the engine writes it.

    An entry of the engine's log is a line, or 16 KiB of a longer one: then it has no end.
    """
    begun: dict[Stream, tuple[str, list[bytes]]] = {}
    try:
        for kind, data in _frames(engine, container, stream, after, follow=follow, tail=tail):
            stamp, _, piece = data.partition(b" ")
            first, pieces = begun.pop(kind, (stamp.decode(), []))
            pieces.append(piece)
            if not piece.endswith(b"\n"):
                begun[kind] = first, pieces
            elif first > after:
                yield first, kind, _text(pieces)
    except NotInEngine:
        return  # it was deleted meanwhile
    for kind, (first, pieces) in begun.items():
        if first > after:
            yield first, kind, _text(pieces)


def _text(pieces: list[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", "replace").removesuffix("\n")


def _frames(
    engine: Engine, container: str, stream: Stream, after: str, *, follow: bool, tail: int | None
) -> Iterator[tuple[Stream, bytes]]:
    """What the engine sends: a header with the stream and the size, then an entry."""
    api = engine.api
    params: dict[str, Any] = {
        "stdout": int(stream is not Stream.STDERR),
        "stderr": int(stream is not Stream.STDOUT),
        "timestamps": 1,
        "follow": int(follow),
        "tail": "all" if tail is None else tail,
    }
    if after and (seconds := moment(after)) is not None:
        params["since"] = int(seconds)
    url = f"{api.base_url}/v{api.api_version}/containers/{container}/logs"
    with engine.errors("read logs"):
        # A read has no limit of time while it follows: a program may be silent for days.
        timeout = (api.timeout, None if follow else api.timeout)
        response = api.get(url, params=params, stream=True, timeout=timeout)
        try:
            api._raise_for_status(response)
            while header := response.raw.read(_HEADER.size):
                number, size = _HEADER.unpack(header)
                yield _STREAMS.get(number, Stream.STDOUT), response.raw.read(size)
        except struct.error as error:
            raise SchedulerUnreachable(
                f"the Docker engine has broken off its answer: {error}"
            ) from error
        finally:
            response.close()
