"""The threads that write: one for files and terminal, one for each of a program's own handlers."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from phalanx._core.sanitize import sanitize
from phalanx._logs import logger
from phalanx._logs.console import STATUS, Console
from phalanx._logs.lines import LineAssembler, Source
from phalanx._logs.losses import Loss
from phalanx._logs.records import of_line, unpack
from phalanx._logs.spec import Route
from phalanx._logs.stuck_handlers import forget, warn_on_thread

RECORDS = "records"
"""The stream that carries records; the others carry what was printed."""
RAISED = "raised"
"""The stream that carries a worker's last traceback: whoever looks at its output is shown it only
if it is not told in another way."""
STREAMS = ("stdout", "stderr", RECORDS, RAISED)

_TICK = 0.1
_HELD = 64 << 20
"""Bytes that may wait for one handler; what comes on top is counted and left out."""
_LONGEST_RECORD = 16 << 20
_STALLED, _LAST_RECORDS = 3.0, 30.0
"""Seconds that the end of a launch waits for a handler: one that does nothing, one that is slow."""

_PATIENCE, _MOST_HELD = 2.0, 1 << 20
"""Seconds that tracebacks are held back for: the end of the app should come before; and bytes."""

Item = tuple[Source, str, bytes]
_Written = tuple[int, str, bytes, Callable[[], None] | None, Source | None]


class LogWriter:
    """Writes to files and the terminal, in order, and passes on to handlers."""

    def __init__(
        self,
        routes: Mapping[int, Route],
        status: Callable[[str], str] | None = None,
        mark: Callable[[int, int], None] | None = None,
    ) -> None:
        """Start the threads. `status`, given a progress bar's text, says how things stand.

        `mark` is told of every offset at which something was added to a source's own file.
        """
        self._routes = routes
        self._status = status
        self._mark = mark
        self._begun: dict[int, bytearray] = {}
        self._reading = _Records()
        self._losses: list[Loss] = []
        shown = [route for route in routes.values() if route.shown is not None]
        prefixed = any(route.shown is not None and route.shown.prefixed for route in shown)
        self._console = Console([route.source for route in shown], prefixed=prefixed)
        handlers = {id(h): h for route in routes.values() for h in route.handlers}
        self._threads = {key: HandlerThread(handler) for key, handler in handlers.items()}
        self._queue: queue.SimpleQueue[_Written | Callable[[], None] | None] = queue.SimpleQueue()
        self._gave_up = False
        self._told: int | None = None
        self._release_at = math.inf
        self._held = 0
        self.shown: set[int | None] = set()
        """The ranks whose last traceback, held back for a while, was shown after all."""
        self._thread = threading.Thread(target=self._run, name="phalanx-logs", daemon=True)
        self._thread.start()

    @property
    def wants_records(self) -> tuple[int, ...]:
        """The ranks whose records are to be carried as records."""
        return tuple(key for key, route in self._routes.items() if route.handlers and key >= 0)

    def write(
        self,
        key: int,
        stream: str,
        data: bytes,
        done: Callable[[], None] | None = None,
        now: Source | None = None,
    ) -> None:
        """Queue some bytes; `done` is called, on the thread, when they are written.

        `now` is what the source is by now: its rank says whether it is shown.
        """
        self._queue.put((key, stream, data, done, now))

    @property
    def losses(self) -> list[Loss]:
        """What could not be written anywhere, by place; the first was said at once."""
        return list(self._losses)

    def add(self, routes: Mapping[int, Route]) -> None:
        """Take more sources."""
        self._routes = {**self._routes, **routes}
        handlers = {id(h): h for route in routes.values() for h in route.handlers}
        for key in handlers.keys() - self._threads.keys():
            self._threads[key] = HandlerThread(handlers[key])

    def release(self) -> None:
        """Show the tracebacks that were held back: the app goes on."""
        self._queue.put(self._release)

    def give_up(self, after: float) -> None:
        """Wait no longer than this for a terminal or handler that takes nothing, from now on."""
        self._gave_up = True
        self._console.give_up(after)
        for route in self._routes.values():
            for raw in route.raw:
                raw.give_up(after)

    def close(self, told: int | None = None) -> None:
        """Wait until everything queued is written, or given up.

        The traceback of the rank `told` is shown by somebody else.
        """
        self._told = told
        self._queue.put(None)
        self._thread.join()
        patience = _STALLED if self._gave_up else _LAST_RECORDS
        for thread in self._threads.values():
            thread.close(patience)

    def _run(self) -> None:
        try:
            while self._step():
                pass
            self._release(self._told)
            self._console.finish()
            STATUS.show(self, "")
        finally:
            finish(self._routes)
            for route in self._routes.values():
                self._look_for_losses(route)

    def _step(self) -> bool:
        """Take one thing; False after the last. Whatever fails, output must go on being taken."""
        done = None
        try:
            item = self._queue.get(timeout=self._pause())
            if item is None:
                return False
            if not isinstance(item, tuple):
                item()
                return True
            key, stream, data, done, now = item
            if (route := self._routes.get(key)) is not None:
                self._pass_on(route, stream, data, now or route.source)
                self._look_for_losses(route)
        except queue.Empty:
            self._tick()
        except Exception:  # noqa: BLE001
            logger.exception("phalanx: some worker output was lost")
        finally:
            if done is not None:
                done()
        return True

    def _look_for_losses(self, route: Route) -> None:
        new = [loss for raw in route.raw for loss in raw.losses()]
        for loss in [*new, *self._console.losses]:
            if not loss or any(loss is known for known in self._losses):
                continue
            self._losses.append(loss)
            if len(self._losses) == 1:
                logger.error(
                    "phalanx: cannot write to %s: %s. The launch continues, but will fail.",
                    loss.place,
                    loss.reason,
                )

    def _release(self, but: int | None = None) -> None:
        self._release_at, self._held = math.inf, 0
        self.shown.update(self._console.show_held(but))
        for route in self._routes.values():
            for raw in route.raw:
                self.shown.update(raw.show_held(but))

    def _pause(self) -> float | None:
        due = min(self._console.due or math.inf, self._release_at)
        if due < math.inf:
            return max(0.0, min(_TICK, due - time.monotonic()))
        return None if self._status is None else _TICK

    def _tick(self) -> None:
        self._console.tick()
        if time.monotonic() >= self._release_at:
            self._release()
        if self._status is not None:
            STATUS.show(self, self._status(self._console.bar()))

    def _pass_on(self, route: Route, stream: str, data: bytes, source: Source) -> None:
        key = route.source.key
        if stream == RECORDS:
            data = self._whole_records(key, data)
        held = stream == RAISED and self._held + len(data) <= _MOST_HELD
        if stream == RAISED:
            stream = "stderr"
        if held:
            self._held += len(data)
            self.shown.discard(source.rank)
            self._release_at = min(self._release_at, time.monotonic() + _PATIENCE)
        for handler in route.handlers:
            self._threads[id(handler)].put((route.source, stream, data))
        if stream == RECORDS:
            data = b"".join(printed for _, printed in self._reading.records(route.source, data))
            stream = "stderr"
        if not data:
            return
        for raw in route.raw:
            offset = raw.hold(source, data) if held else raw.take(source, stream, data)
            if self._mark is not None and offset is not None and raw is route.file:
                self._mark(key, offset)
        there = self._routes.get(source.key)
        if there is not None and there.shown is not None:
            if held:
                self._console.hold(source, data)
            else:
                self._console.take(source, stream, data)

    def _whole_records(self, key: int, data: bytes) -> bytes:
        """A record is a line; it may come in pieces. One without an end is left out."""
        begun = self._begun.setdefault(key, bytearray())
        begun += data
        if b"\n" in data:
            whole, newline, rest = begun.rpartition(b"\n")
            self._begun[key] = rest
            return bytes(whole + newline)
        if len(begun) > _LONGEST_RECORD:
            begun.clear()  # what is left of it is none, and will be said to be none
        return b""


def finish(routes: Mapping[int, Route]) -> None:
    """Nothing more comes: let go of the files."""
    for route in routes.values():
        for file in route.raw:
            file.finish()


class _Records:
    """Reads records, and says once of each source that one of them was none."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._told: set[int] = set()

    def records(self, source: Source, data: bytes) -> Iterable[tuple[logging.LogRecord, bytes]]:
        for line in data.split(b"\n"):
            try:
                if line:
                    yield unpack(line, source)
            except ValueError as error:  # the worker has written into the file itself
                if not self._quiet and source.key not in self._told:
                    self._told.add(source.key)
                    text = "phalanx: lost a log record of %s: %s (reported once)"
                    logger.warning(text, source.name, sanitize(str(error)))


class HandlerThread:
    """Hands records to one handler. What it does, or fails to do, disturbs nobody else."""

    def __init__(self, handler: logging.Handler) -> None:
        """Start the thread."""
        self._handler = handler
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._assemblies: dict[int, tuple[Source, LineAssembler]] = {}
        self._reading = _Records(quiet=True)  # the writer has read them before
        self._held = 0
        self._left_out = 0
        self._told = False
        self._handled = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="phalanx-handler", daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Queue some output; left out, and counted, when the handler is far behind."""
        with self._lock:
            full = self._held > _HELD
            if full:
                self._left_out += item[2].count(b"\n")
            else:
                self._held += len(item[2])
        if full:
            self._say_left_out()
        else:
            self._queue.put(item)

    def _say_left_out(self) -> None:
        """Once."""
        if not self._told:
            self._told = True
            warn_on_thread("phalanx: log handler %r is too slow: dropping lines", self._handler)

    def close(self, patience: float) -> None:
        """Wait until the handler has had everything, if it gets on; else it goes on by itself."""
        self._queue.put(None)
        limit = time.monotonic() + patience
        while self._thread.is_alive() and time.monotonic() < limit:
            before = self._handled
            self._thread.join(min(_STALLED, patience))
            if self._handled == before:
                break
        if self._thread.is_alive():
            forget(self._handler)
            logger.warning(
                "phalanx: log handler %r is too slow: no longer waiting for it",
                self._handler,
            )

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            source, stream, data = item
            with self._lock:
                self._held -= len(data)
                left_out, self._left_out = self._left_out, 0
            if left_out:
                self._handle(of_line(f"[phalanx: {left_out} lines dropped: too slow]", source))
            if stream == RECORDS:
                for record, _ in self._reading.records(source, data):
                    self._handle(record)
            else:
                _, assembly = self._assemblies.setdefault(source.key, (source, LineAssembler()))
                for line in assembly.add(stream, data):
                    self._handle(of_line(line, source, stream))
        for source, assembly in self._assemblies.values():
            for stream, line in assembly.end_of_all():
                self._handle(of_line(line, source, stream))
        with contextlib.suppress(Exception):
            self._handler.flush()

    def _handle(self, record: logging.LogRecord) -> None:
        self._handled += 1
        if record.levelno < self._handler.level:
            return
        STATUS.make_way()
        try:
            self._handler.handle(record)
        except Exception:  # noqa: BLE001 the user's code; logging's own way to say so
            with contextlib.suppress(Exception):
                self._handler.handleError(record)
