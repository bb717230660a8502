"""The launcher's terminal: what workers print, and one line beneath it that says how things stand.

Everything of ours that writes there in this process goes through here, so that the status line is
out of the way. Nothing here blocks for good: a reader that does not read can be given up.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import os
import re
import select
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from phalanx._logs import logger
from phalanx._logs.collapse import Collapser
from phalanx._logs.lines import LineAssembler, Source, prefix
from phalanx._logs.losses import Loss, StandardStream

_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_ERASE = "\r\x1b[2K"
_AT_ONCE = 1000
"""How many lines are looked at before some are shown."""

_Line = tuple[str, str]
"""The stream it was printed to, and its text."""


def is_terminal(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Someone looks at it, and it understands more than plain text."""
    try:
        return stream is not None and stream.isatty() and environ.get("TERM") != "dumb"
    except Exception:  # noqa: BLE001 a program's own stream
        return False


def shows_colour(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Colours are welcome there: a terminal, or a notebook, unless `NO_COLOR` is set."""
    notebook = type(stream).__module__.startswith("ipykernel.")
    return (notebook or is_terminal(stream, environ)) and not environ.get("NO_COLOR")


class _StatusLine:
    """The one line of this process, on stderr. Whoever shows one first has it until it ends."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._owner: object = None
        self._text = ""
        self.mid_line = False
        """Something has begun a line on the terminal: the cursor must stay where it is."""

    def show(self, owner: object, text: str) -> None:
        with self.lock:
            if self._owner not in (None, owner) or not is_terminal(sys.stderr):
                return
            self._owner = owner if text else None
            if text != self._text:
                self.erase()
                self._text = text
                self.draw()

    def make_way(self) -> None:
        """Leave the line to something else; it is drawn again when it changes. Does not wait."""
        if self._text and self.lock.acquire(blocking=False):
            try:
                self.erase()
                self._text = ""
            finally:
                self.lock.release()

    @contextlib.contextmanager
    def print_above(self) -> Iterator[None]:
        """Meanwhile it is off the screen: what is printed, and flushed, stands above it."""
        with self.lock:
            self.erase()
            try:
                yield
            finally:
                self.draw()

    def erase(self) -> bool:
        """Whether it is off the screen: a terminal that is behind may not take that now."""
        return not self._text or self.mid_line or self._write(_ERASE)

    def draw(self) -> None:
        if self._text and not self.mid_line:
            with contextlib.suppress(Exception):  # a program's own stream raises anything
                width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
                self._write(cut(self._text, width - 1))

    def _write(self, text: str) -> bool:
        """Only where it does not block: the terminal may be stopped."""
        with contextlib.suppress(Exception):
            if can_write(sys.stderr.fileno()):
                sys.stderr.write(text)
                sys.stderr.flush()
                return True
        return False


def can_write(number: int) -> bool:
    """A few bytes can be written there without blocking."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(0))


def cut(text: str, width: int) -> str:
    """The beginning of a text that takes so many columns; without what moves the cursor."""
    shown, used = "", 0
    for char in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f]", "", text):
        used += 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if used > width:
            break
        shown += char
    return shown


STATUS = _StatusLine()


def _renew_in_fork() -> None:
    """A process that was forked meanwhile has no line, and must not inherit a lock that is held."""
    STATUS.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_renew_in_fork)


def _make_way(_: object) -> bool:
    """Have our own warnings begin on a line of their own."""
    STATUS.make_way()
    return True


logger.addFilter(_make_way)


def _is_plain(stream: io.TextIOWrapper) -> bool:
    """What is written to its descriptor is what would be written to it."""
    return isinstance(getattr(stream.buffer, "raw", stream.buffer), io.FileIO)


class Console:
    """Shows the output of some ranks on `sys.stdout` and `sys.stderr`. Used from one thread."""

    def __init__(self, shown: Sequence[Source], *, prefixed: bool) -> None:
        """`prefixed`: each line says whose it is, and equal ones become one on a terminal."""
        self._streams: dict[str, TextIO | None] = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._outs = {name: StandardStream(name) for name in self._streams}
        self._colour = {name: shows_colour(stream) for name, stream in self._streams.items()}
        self._assemblies = {source: LineAssembler() for source in shown} if prefixed else None
        self._sources = {source.key: source for source in shown}
        wanted = prefixed and len(shown) > 1 and is_terminal(sys.stdout)
        self._collapser = Collapser[_Line](len(shown)) if wanted else None
        self._held: list[tuple[Source, bytes]] = []
        self._last = "stdout"
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: make("replace") for name in ("stdout", "stderr")}

    @property
    def losses(self) -> list[Loss]:
        """What could not be shown, by stream."""
        return [out.loss for out in self._outs.values()]

    @property
    def due(self) -> float | None:
        """When `tick` should be called next, by the monotonic clock."""
        return None if self._collapser is None else self._collapser.due

    def give_up(self, after: float) -> None:
        """Wait no longer than this for a terminal that nobody reads, from now on."""
        for out in self._outs.values():
            out.give_up(after)

    def take(self, source: Source, stream: str, data: bytes) -> None:
        """Show some bytes of a rank's output."""
        if self._assemblies is None:
            self._put(data, stream)
            return
        self._sources[source.key] = source
        lines = self._assemblies.setdefault(source, LineAssembler()).add(stream, data)
        if self._collapser is None:
            self._put_lines([((source.key,), (stream, line)) for line in lines])
            return
        now = time.monotonic()
        for start in range(0, len(lines), _AT_ONCE):
            for line in lines[start : start + _AT_ONCE]:
                self._collapser.add(source.key, (stream, line), now)
            self.tick()

    def hold(self, source: Source, data: bytes) -> None:
        """Keep a traceback until it is known whether it is shown in another way."""
        self._held.append((source, data))

    def show_held(self, but: int | None = None) -> list[int | None]:
        """Show what was held, unless it is of this rank; gives the ranks of what was."""
        held, self._held = self._held, []
        shown = [(source, data) for source, data in held if source.rank != but]
        for source, data in shown:
            self.take(source, "stderr", data)
        return [source.rank for source, _ in shown]

    def tick(self, *, final: bool = False) -> None:
        """Show what has waited long enough for equal lines of other ranks."""
        if self._collapser is not None:
            groups = self._collapser.take(time.monotonic(), final=final)
            self._put_lines([(tuple(group.keys), group.text) for group in groups])

    def finish(self) -> None:
        """Show what is left."""
        self.tick(final=True)
        for source, assembly in (self._assemblies or {}).items():
            self._put_lines([((source.key,), line) for line in assembly.end_of_all()])
        with STATUS.lock:
            if STATUS.mid_line and is_terminal(self._streams[self._last]):
                self._put(b"\n", self._last)  # what comes next begins a line of its own
            STATUS.mid_line = False

    def bar(self) -> str:
        """The progress bar of the first rank that has one, for the status line."""
        for source, assembly in (self._assemblies or {}).items():
            if text := assembly.begun():
                return f"{prefix((source.key,), None)} {text}"
        return ""

    def _put_lines(self, lines: Sequence[tuple[tuple[int, ...], _Line]]) -> None:
        for stream, some in itertools.groupby(lines, key=lambda item: item[1][0]):
            text = "".join(f"{self._prefix(keys, stream)} {line}\n" for keys, (_, line) in some)
            self._put(text.encode("utf-8", "surrogateescape"), stream)

    def _prefix(self, keys: tuple[int, ...], stream: str) -> str:
        hosts = {self._sources[key].hostname for key in keys}
        text = prefix(keys, hosts.pop() if len(hosts) == 1 else None)
        if not self._colour[stream]:
            return text
        colour = _COLOURS[min(keys) % len(_COLOURS)] if len(keys) == 1 else 1
        return f"\x1b[{colour}m{text}\x1b[0m"

    def _put(self, data: bytes, stream: str) -> None:
        if (terminal := self._streams[stream]) is None:
            return
        self._last = stream
        with STATUS.lock:
            if not STATUS.erase() and is_terminal(terminal):
                data = _ERASE.encode() + data
            try:
                self._write(terminal, data, stream)
            except BrokenPipeError:
                self._streams[stream] = None  # nobody reads it any more
            except OSError as error:
                self._outs[stream].loss.add(len(data), error)
            except Exception as error:  # noqa: BLE001 a program's own stream raises anything
                logger.warning("phalanx: cannot show worker output any more: %r", error)
                self._streams[stream] = None
            STATUS.mid_line = not data.endswith(b"\n")
            STATUS.draw()

    def _write(self, terminal: TextIO, data: bytes, stream: str) -> None:
        if type(terminal) is not io.TextIOWrapper or not _is_plain(terminal):
            # A notebook's or a test's stream: it takes text only.
            terminal.write(self._decoders[stream].decode(data))
            terminal.flush()
            return
        number, out = terminal.fileno(), self._outs[stream]
        try:
            terminal.flush()
        except OSError as error:
            out.fail(number, len(data), error)
        else:
            out.write(number, data)
        if out.is_gone:
            self._streams[stream] = None
        if out.is_given_up:
            logger.warning("phalanx: the last output is not shown: %s takes it too slowly", stream)
