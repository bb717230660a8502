"""The launcher's terminal: what workers print, and one line beneath it that says how things stand.

Everything of ours that writes there in this process goes through here, so that the status line is
out of the way. Nothing here blocks for good: a reader that does not read can be given up.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import select
import sys
import threading
import time
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TextIO

from phalanx.logs import logger
from phalanx.logs.collapse import Collapser
from phalanx.logs.lines import Assembly, Source, prefix
from phalanx.logs.losses import Loss, StandardStream

_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_ERASE = "\r\x1b[2K"
_AT_ONCE = 1000
"""How many lines are looked at before some are shown."""


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
    """Shows the output of some ranks on `sys.stdout`. Used from one thread."""

    def __init__(self, shown: Sequence[Source], *, prefixed: bool) -> None:
        """`prefixed`: each line says whose it is, and equal ones become one on a terminal."""
        self._stream: TextIO | None = sys.stdout
        self._out = StandardStream("stdout")
        self._colour = shows_colour(self._stream)
        self._assemblies = {source: Assembly() for source in shown} if prefixed else None
        self._sources = {source.key: source for source in shown}
        wanted = prefixed and len(shown) > 1 and is_terminal(self._stream)
        self._collapser = Collapser(len(shown)) if wanted else None
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: make("replace") for name in ("stdout", "stderr")}

    @property
    def loss(self) -> Loss:
        """What could not be shown."""
        return self._out.loss

    @property
    def due(self) -> float | None:
        """When `tick` should be called next, by the monotonic clock."""
        return None if self._collapser is None else self._collapser.due

    def give_up(self, after: float) -> None:
        """Wait no longer than this for a terminal that nobody reads, from now on."""
        self._out.give_up_at = time.monotonic() + after

    def take(self, source: Source, stream: str, data: bytes) -> None:
        """Show some bytes of a rank's output."""
        if self._assemblies is None:
            self._put(data, stream)
            return
        self._sources[source.key] = source
        lines = self._assemblies.setdefault(source, Assembly()).add(stream, data)
        if self._collapser is None:
            self._put_lines([((source.key,), line) for line in lines])
            return
        now = time.monotonic()
        for start in range(0, len(lines), _AT_ONCE):
            for line in lines[start : start + _AT_ONCE]:
                self._collapser.add(source.key, line, now)
            self.tick()

    def tick(self, *, final: bool = False) -> None:
        """Show what has waited long enough for equal lines of other ranks."""
        if self._collapser is not None:
            groups = self._collapser.take(time.monotonic(), final=final)
            self._put_lines([(tuple(group.keys), group.text) for group in groups])

    def finish(self) -> None:
        """Show what is left."""
        self.tick(final=True)
        for source, assembly in (self._assemblies or {}).items():
            self._put_lines([((source.key,), line) for line in assembly.end()])
        with STATUS.lock:
            if self._stream is not None and STATUS.mid_line and is_terminal(self._stream):
                self._put(b"\n", "stdout")  # what comes next begins a line of its own
            STATUS.mid_line = False

    def bar(self) -> str:
        """The progress bar of the first rank that has one, for the status line."""
        for source, assembly in (self._assemblies or {}).items():
            if text := assembly.begun():
                return f"{prefix((source.key,), None)} {text}"
        return ""

    def _put_lines(self, lines: Sequence[tuple[tuple[int, ...], str]]) -> None:
        if lines:
            text = "".join(f"{self._prefix(keys)} {line}\n" for keys, line in lines)
            self._put(text.encode("utf-8", "surrogateescape"), "stdout")

    def _prefix(self, keys: tuple[int, ...]) -> str:
        hosts = {self._sources[key].hostname for key in keys}
        text = prefix(keys, hosts.pop() if len(hosts) == 1 else None)
        if not self._colour:
            return text
        colour = _COLOURS[min(keys) % len(_COLOURS)] if len(keys) == 1 else 1
        return f"\x1b[{colour}m{text}\x1b[0m"

    def _put(self, data: bytes, stream: str) -> None:
        if self._stream is None:
            return
        with STATUS.lock:
            if not STATUS.erase() and is_terminal(self._stream):
                data = _ERASE.encode() + data
            try:
                self._write(self._stream, data, stream)
            except BrokenPipeError:
                self._stream = None  # nobody reads it any more
            except OSError as error:
                self._out.loss.add(len(data), error)
            except Exception as error:  # noqa: BLE001 a program's own stream raises anything
                logger.warning("phalanx: cannot show the workers' output any more: %r", error)
                self._stream = None
            STATUS.mid_line = not data.endswith(b"\n")
            STATUS.draw()

    def _write(self, terminal: TextIO, data: bytes, stream: str) -> None:
        if type(terminal) is not io.TextIOWrapper or not _is_plain(terminal):
            # A notebook's or a test's stream: it takes text only.
            terminal.write(self._decoders[stream].decode(data))
            terminal.flush()
            return
        number = terminal.fileno()
        try:
            terminal.flush()
        except OSError as error:
            self._out.fail(number, len(data), error)
        else:
            self._out.write(number, data)
        if self._out.is_gone:
            self._stream = None
        if self._out.is_given_up:
            logger.warning("phalanx: the last of the output was given up: nobody reads it")
