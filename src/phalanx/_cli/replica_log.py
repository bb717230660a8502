"""What an app's replicas print, from all of them at once, each line with whose it is."""

from __future__ import annotations

import contextlib
import heapq
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TextIO

from phalanx._logs.console import STATUS, is_terminal, shows_colour
from phalanx._logs.lines import last_state
from phalanx._registry.log_reader import by_time
from phalanx._runner.runner import Runner
from phalanx._schedulers.scheduler import LogLine, Stream
from phalanx.errors import PhalanxError

_HELD = 10_000
"""Lines that may wait for a slow reader."""
_PAUSE = 0.005
"""Seconds in which more is expected of a replica that speaks, while others wait."""
_TURN = 1000
"""Lines that one may say while others wait."""
_DRAWN_EVERY = 0.1
_Item = LogLine | BaseException | None
"""A line, or the end of a replica's."""
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


def everyone(runner: Runner, handle: str) -> list[tuple[str, int]]:
    """All replicas of an app."""
    replicas = runner.replicas(handle)
    return [(role, i) for role, count in replicas.items() for i in range(count)]


def lines(
    runner: Runner,
    handle: str,
    replicas: Sequence[tuple[str, int]],
    *,
    stream: Stream = Stream.COMBINED,
    since: float | None = None,
    until: float | None = None,
    follow: bool = False,
) -> Iterator[LogLine]:
    """The lines of some replicas, in the order of time; as they come, with `follow`.

    Raises `LookupError` before the first line.
    """
    sources = [
        runner.lines(handle, role, replica, stream=stream, since=since, until=until, follow=follow)
        for role, replica in replicas
    ]
    if not follow:
        return heapq.merge(*sources, key=by_time)
    return sources[0] if len(sources) == 1 else _as_they_come(sources)


def _as_they_come(sources: Sequence[Iterator[LogLine]]) -> Iterator[LogLine]:
    """From a thread for each, for they block; what one says at once stays together."""
    incoming: queue.Queue[tuple[int, _Item]] = queue.Queue(_HELD)

    def read(number: int, source: Iterator[LogLine]) -> None:
        try:
            for line in source:
                incoming.put((number, line))
            incoming.put((number, None))
        except BaseException as error:  # noqa: BLE001 raised where the lines are wanted
            incoming.put((number, error))

    for numbered in enumerate(sources):
        threading.Thread(target=read, args=numbered, daemon=True).start()
    left = len(sources)
    for item in _in_turns(incoming):
        if isinstance(item, BaseException):
            raise item
        if item is not None:
            yield item
        elif (left := left - 1) == 0:
            return


def _next(
    incoming: queue.Queue[tuple[int, _Item]], until: float | None
) -> tuple[int, _Item] | None:
    """What is there already, or comes in time; None if nothing does."""
    try:
        return incoming.get_nowait()
    except queue.Empty:
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            return None
    try:
        return incoming.get(timeout=left)
    except queue.Empty:
        return None


def _in_turns(incoming: queue.Queue[tuple[int, _Item]]) -> Iterator[_Item]:
    """One source after the other, each until it pauses or has had its turn."""
    held: dict[int, deque[_Item]] = {}
    """What others have said meanwhile, in the order in which they began to."""
    while True:
        if held:
            speaker = next(iter(held))
            said = held.pop(speaker)
        else:
            speaker, item = incoming.get()
            said = deque([item])
        until = 0.0
        for _ in range(_TURN):
            if not said:
                got = _next(incoming, until if held else None)
                if got is None:
                    break
                number, item = got
                if number == speaker or not held:
                    until = time.monotonic() + _PAUSE
                (said if number == speaker else held.setdefault(number, deque())).append(item)
            if said:
                yield said.popleft()
        if said:
            held[speaker] = said


@contextlib.contextmanager
def bars(
    runner: Runner,
    handle: str,
    replicas: Sequence[tuple[str, int]],
    *,
    stream: Stream = Stream.COMBINED,
) -> Iterator[None]:
    """Meanwhile, where stderr is a terminal, the first progress bar is shown below the lines."""
    if not replicas or not is_terminal(sys.stderr):
        yield
        return
    done = threading.Event()

    def show() -> None:
        while not done.wait(_DRAWN_EVERY):
            texts = (
                f"{role}/{replica} {text}"
                for role, replica in replicas
                if (text := runner.unfinished_line(handle, role, replica, stream=stream))
            )
            try:
                STATUS.show(done, next(texts, ""))
            except (LookupError, PhalanxError):
                return  # whoever reads the lines is told

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        STATUS.show(done, "")


class Printer:
    """Prints lines as `ROLE/REPLICA TEXT`, a colour for each replica on a terminal."""

    def __init__(self, stream: TextIO | None, *, at_once: bool = True) -> None:
        """To nowhere, if the stream is closed. `at_once`: somebody waits for each line."""
        self._at_once = at_once
        self._stream = stream
        self._is_terminal = is_terminal(stream)
        self._coloured = shows_colour(self._stream)
        self._colours: dict[tuple[str, int], int] = {}

    def print(self, line: LogLine) -> None:
        """One line."""
        if self._stream is None:
            return
        prefix, text = f"{line.role}/{line.replica}", line.text
        if self._is_terminal:
            text = last_state(text)
        if self._coloured:
            key = line.role, line.replica
            colour = self._colours.setdefault(key, _COLOURS[len(self._colours) % len(_COLOURS)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        with STATUS.print_above():
            print(f"{prefix} {text}", file=self._stream, flush=self._at_once)
