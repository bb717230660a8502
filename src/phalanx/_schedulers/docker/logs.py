"""What replicas have printed, from the engine: every line with its stream and its time."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from phalanx._logs.lines import LogLine, Stream
from phalanx._schedulers.docker.course import SeenApp
from phalanx._schedulers.docker.engine import (
    Engine,
    EngineGone,
    NoSuchThing,
    moment,
    wait_for_engine,
)

_STREAMS = {1: Stream.STDOUT, 2: Stream.STDERR}
_HEADER = struct.Struct(">BxxxI")
_PAUSE = 0.1
_PATIENCE = 60.0
"""Seconds that an engine may be away from somebody who follows."""
_LAST = 200
"""Lines of stderr that are looked through for an error."""

Look = Callable[[Engine], tuple[SeenApp, bool] | None]
"""What there is of the app, and whether it has ended; None if it is not there any more."""


def read_logs(
    look: Look,
    role: str,
    replica: int,
    stream: Stream,
    since: float | None,
    until: float | None,
    *,
    follow: bool,
) -> Iterator[LogLine]:
    """The lines of all of a replica's attempts, one after the other."""
    for when, kind, text in _all_attempts(look, (role, replica), stream, follow=follow):
        if (since is None or when >= since) and (until is None or when <= until):
            yield LogLine(role=role, replica=replica, text=text, time=when, stream=kind)


def _all_attempts(
    look: Look, key: tuple[str, int], stream: Stream, *, follow: bool
) -> Iterator[tuple[float, Stream, str]]:
    engine = Engine()
    attempt, last = 0, ""
    try:
        while True:
            try:
                found = look(engine)
                if found is None:
                    return
                app, has_ended = found
                own = {c.attempt: c for c in app.containers if c.key == key}
                container = own.get(attempt)
                if container is not None and (container.has_started or container.has_ended):
                    lines = _lines(engine, container.id, stream, last, follow=follow)
                    for stamp, kind, text in lines:
                        last = stamp
                        yield moment(stamp) or 0.0, kind, text
                    now = engine.inspect(container.id)
                    if now is None or now["State"]["Status"] not in ("running", "paused"):
                        attempt, last = attempt + 1, ""
                        continue
                if (has_ended and attempt > max(own, default=0)) or not follow:
                    return
            except EngineGone:
                if not follow:
                    raise
                engine.close()
                engine = wait_for_engine(_PATIENCE)
                continue
            time.sleep(_PAUSE)
    finally:
        engine.close()


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
    except NoSuchThing:
        return  # it was deleted meanwhile
    for kind, (first, pieces) in begun.items():
        if first > after and not follow:
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
            raise EngineGone(f"the Docker engine has broken off its answer: {error}") from error
        finally:
            response.close()
