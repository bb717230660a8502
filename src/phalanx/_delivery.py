"""Handing things to handlers of the user's own, each on a thread of its own.

A handler that raises, blocks or is slow disturbs nobody who emits: what is emitted is put into a
bounded queue, and that is all. Threads are daemons, start with the first item, and end when a
handler is no longer configured and its queue is empty. Knows nothing of what it carries.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from phalanx._logs.stuck_handlers import forget_stuck, warn, warn_on_thread
from phalanx.errors import ConfigError

BOUND = 10_000
"""Items that may wait for one handler; what comes on top is left out and counted."""
PATIENCE = 3.0
"""Seconds that the interpreter's exit waits for all handlers together."""


class _Mark(threading.Event):
    """Set when everything that was queued before it has been handed over."""


class Delivery:
    """The way to one handler: a queue, and the thread that empties it in order.

    `put` may be called from any thread, from signal handlers and after a fork, where the child
    begins with an empty queue: what the parent had queued is the parent's to deliver.
    """

    def __init__(self, handler: object, method: str) -> None:
        """Check the handler; no thread is started yet. `ConfigError` if it cannot be used."""
        if isinstance(handler, type):
            name = handler.__name__
            raise ConfigError(f"{name} is a class, not a handler. Pass an instance: {name}().")
        if not callable(call := getattr(handler, method, None)):
            raise ConfigError(f"{handler!r} is not a handler: it has no method {method}().")
        self.name = f"{type(handler).__name__}.{method}"
        self._handler = handler  # by whose identity this is found: it must outlive this
        self._call: Callable[[Any], object] = call
        self._wanted = True
        self.begin_afresh()

    def begin_afresh(self) -> None:
        """Forget what is queued, and the thread: this process is a fork."""
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # A signal handler may emit while the same thread is inside.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._left_out = 0
        self._told_behind = self._told_raised = False

    def put(self, item: object) -> None:
        """Queue an item; left out, and counted, when the handler is far behind. Never raises."""
        if self._queue.qsize() >= BOUND:
            self._leave_out()
            return
        self._queue.put(item)
        if not self._wanted:  # whoever emits had looked just before another was configured
            self._queue.put(_Mark())
        if self._thread is None:
            self._start()

    def mark(self) -> _Mark:
        """A mark that is set as soon as what is queued by now has been handed over."""
        mark = _Mark()
        if self._is_idle() or self._thread is threading.current_thread():
            mark.set()  # a handler that flushes would wait for itself
        else:
            self._queue.put(mark)
            self._start()
        return mark

    def keep(self, *, wanted: bool) -> None:
        """Keep the thread for what comes; or let it end when the queue is empty."""
        was_wanted, self._wanted = self._wanted, wanted
        if was_wanted and not wanted and not self._is_idle():
            self._queue.put(_Mark())
            self._start()

    def finish(self, until: float) -> int:
        """Wait for the end of a thread that is not kept; give up what is not delivered by then."""
        if (thread := self._thread) is not None and thread is not threading.current_thread():
            thread.join(_seconds_to(until))
        given_up = int(self._thread is not None)
        with contextlib.suppress(queue.Empty):
            while True:
                given_up += not isinstance(self._queue.get_nowait(), _Mark)
        return given_up

    def report_left_out(self) -> None:
        """Say how much was left out, if anything was and nobody has said so."""
        with self._lock:
            left_out, self._left_out = self._left_out, 0
        if left_out:
            warn("phalanx: %s was too slow: %d items were dropped", self.name, left_out)

    def _leave_out(self) -> None:
        with self._lock:
            self._left_out += 1
            told, self._told_behind = self._told_behind, True
        if not told:
            text = "phalanx: %s is too slow: %d items are queued, dropping further ones"
            warn_on_thread(text, self.name, BOUND)

    def _is_idle(self) -> bool:
        with self._lock:
            return self._thread is None and self._queue.empty()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._queue.empty():
                return  # one has started, and may have delivered it and ended, meanwhile
            self._thread = threading.Thread(target=self._run, name="phalanx-delivery", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # too many threads, or the interpreter ends: try with the next
                self._thread = None

    def _run(self) -> None:
        this, items = threading.current_thread(), self._queue
        while self._thread is this:  # else the handler has forked, and this is the child
            item = items.get()
            if not isinstance(item, _Mark):
                self._hand_over(item)
                continue
            if ends := not self._wanted:
                self.report_left_out()
            item.set()
            if ends:
                self._end(this, items)

    def _end(self, this: threading.Thread, items: queue.SimpleQueue[Any]) -> None:
        """End, unless something has come meanwhile: who puts looks for a thread afterwards."""
        with self._lock:
            self._thread = None
            if self._wanted or not items.empty():
                self._thread = this

    def _hand_over(self, item: object) -> None:
        try:
            self._call(item)
        except BaseException as error:  # noqa: BLE001 the user's code, even if it wants to exit
            if not self._told_raised:
                self._told_raised = True
                text = "phalanx: %s raised %s: %s (reported once; it keeps getting items)"
                warn(text, self.name, type(error).__name__, error)


class Deliveries:
    """Which handlers are configured, for all or for a group, and the ways to them."""

    chosen: Mapping[str | None, tuple[Delivery, ...]]
    """By group, None for the groups that have none of their own. Replaced, never changed."""

    def __init__(self, method: str, null: type) -> None:
        """Handlers are called by `method`; those of the class `null` are not called at all."""
        self.chosen = {None: ()}
        self._method = method
        self._null = null
        self._known: weakref.WeakValueDictionary[int, Delivery] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        _KINDS.append(self)

    def choose(self, handlers: Iterable[object], group: str | None = None) -> None:
        """Have these get what comes from now on; what is queued still goes to the former ones."""
        with self._lock:
            wanted = {id(h): h for h in handlers if type(h) is not self._null}
            self.chosen = {**self.chosen, group: tuple(map(self._way_to, wanted.values()))}
            used = {delivery for ways in self.chosen.values() for delivery in ways}
            for delivery in self.all():
                delivery.keep(wanted=delivery in used)

    def flush(self, timeout: float) -> bool:
        """Wait until everything emitted so far was handed over; False if it takes longer."""
        until = time.monotonic() + timeout
        marks = [delivery.mark() for delivery in self.all()]
        return all(mark.wait(_seconds_to(until)) for mark in marks)

    def all(self) -> list[Delivery]:
        """Those that are chosen, and those that still have something to deliver."""
        with self._lock:
            return list(self._known.values())

    def _way_to(self, handler: object) -> Delivery:
        # A handler that comes back while its queue is emptied goes on with that queue.
        known = self._known.get(id(handler))
        return known or self._known.setdefault(id(handler), Delivery(handler, self._method))


_KINDS: list[Deliveries] = []


def _seconds_to(until: float) -> float:
    return min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX)


def _after_fork() -> None:
    for kind in _KINDS:
        kind._lock = threading.RLock()
        for delivery in kind.all():
            delivery.begin_afresh()


def _at_exit() -> None:
    deliveries = [delivery for kind in _KINDS for delivery in kind.all()]
    for delivery in deliveries:
        delivery.keep(wanted=False)
    until = time.monotonic() + PATIENCE
    late = {delivery: count for delivery in deliveries if (count := delivery.finish(until))}
    if late and not forget_stuck():
        return
    for delivery, count in late.items():
        delivery.report_left_out()
        warn("phalanx: %s is too slow: %d items were lost at exit", delivery.name, count)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
