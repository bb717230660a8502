"""Carries a schedule of calls out: a thread for each call that runs, and what came of each.

It decides nothing: the schedule says what is next, a runner makes the call.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phalanx._launcher.calls.call_runner import CallLost, CallRunner
from phalanx._launcher.calls.digests import call_digest
from phalanx._launcher.calls.schedule import CallAssignment, CallEnd, CallSchedule
from phalanx._launcher.result import CallResult, LaunchResult
from phalanx._logs import logger
from phalanx._specs import AppState
from phalanx.errors import Cancelled, LaunchError, PhalanxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from phalanx._launcher.calls.call_record import CallRecord
    from phalanx._launcher.calls.checkpoint import Checkpoint
    from phalanx._launcher.calls.progress import CallProgress
    from phalanx._launcher.payload import Function
    from phalanx._logs.spec import LogSpec

_STEP = 0.25
"""Seconds between looks whether a signal has come."""
_NOTED = 0.5
"""Seconds between looks for someone who wants the end."""


@dataclass(frozen=True)
class CallItems:
    """What is called, and with what."""

    kwargs: Sequence[Mapping[str, Any]]
    pack: Callable[[Mapping[str, Any]], Function]
    log_spec: Callable[[int], LogSpec | None]
    checkpoint: Checkpoint | None = None
    digest: str = ""
    """The function's, in a checkpoint."""

    def known(self, item: int) -> LaunchResult[Any] | None:
        """What a checkpoint has for an item."""
        return None if self.checkpoint is None else self.checkpoint.load(self._digest(item))

    def keep(self, item: int, result: LaunchResult[Any]) -> None:
        """Have a checkpoint keep it."""
        if self.checkpoint is not None:
            self.checkpoint.store(self._digest(item), result)

    def _digest(self, item: int) -> str:
        return call_digest(self.digest, (), self.kwargs[item])


class CallRun:
    """The calls of one map. All methods may be called from any thread."""

    def __init__(
        self,
        items: CallItems,
        schedule: CallSchedule,
        runner: CallRunner,
        results: Mapping[int, LaunchResult[Any]],
        progress: CallProgress,
        record: CallRecord,
        threads: int,
    ) -> None:
        """Start. `results` are those that were known before."""
        self.results: dict[int, CallResult[Any]] = {}
        self.failures: dict[int, BaseException] = {}
        self.finished: list[int] = []
        """The items that have ended, in that order."""
        self.error: BaseException | None = None
        """Why no call was made, if there were no hosts for any."""
        self._items = items
        self._schedule = schedule
        self._runner = runner
        self._progress = progress
        self._record = record
        self._changed = threading.Condition()
        self._cancelled = False
        self._last_loss: BaseException | None = None
        for item, result in results.items():
            self._keep(item, result)
        self._threads = [
            threading.Thread(target=self._work, name=f"phalanx-call-{i}", daemon=True)
            for i in range(threads)
        ]
        _RUNNING.add(self)
        self._driving = threading.Thread(target=self._drive, name="phalanx-calls", daemon=True)
        self._driving.start()

    @property
    def has_ended(self) -> bool:
        """Nothing of it runs any more."""
        return not self._driving.is_alive()

    def wait(self, ended: Callable[[], bool]) -> None:
        """Until this holds, or nothing runs any more."""
        while True:
            with self._changed:
                if ended() or self.has_ended:
                    return
                self._show()
                # In steps: a signal that another thread was given wakes nobody who waits.
                self._changed.wait(_STEP)

    def cancel(self, grace: float | None = None) -> None:
        """Start nothing more, and stop what runs; does not wait. Idempotent."""
        with self._changed:
            self._cancelled = True
            self._schedule.drop_waiting()
            self._changed.notify_all()
        self._runner.cancel(grace)

    def join(self, timeout: float | None = None) -> None:
        """Wait until nothing runs any more."""
        self._driving.join(timeout)

    # ── the threads ───────────────────────────────────────────────────────────

    def _drive(self) -> None:
        try:
            if self._threads:  # otherwise all was known before, and no host is needed
                self._runner.prepare(self._progress.wait)
        except BaseException as error:  # noqa: BLE001 whoever asks for the results gets it
            self.error = error.with_traceback(None)
        else:
            for thread in self._threads:
                thread.start()
            for thread in self._threads:
                while thread.is_alive():
                    self._note(AppState.RUNNING)
                    thread.join(_NOTED)
        try:
            self._runner.close()
        finally:
            self._progress.close()
            self._note(self._last_state())
            with self._changed:
                _RUNNING.discard(self)
                self._changed.notify_all()

    def _note(self, state: AppState) -> None:
        """Have other processes know how it stands, and hear whether one wants the end."""
        self._record.update(state, len(self.finished), len(self.failures), self._schedule.running)
        if not state.is_final and not self._cancelled and self._record.cancel_asked:
            self.cancel()

    def _last_state(self) -> AppState:
        if self.error is not None or self.failures:
            cancelled = isinstance(self.error, Cancelled)
            return AppState.CANCELLED if cancelled else AppState.FAILED
        left = len(self.finished) < len(self._items.kwargs)
        return AppState.CANCELLED if left else AppState.SUCCEEDED

    def _work(self) -> None:
        while (assignment := self._next()) is not None:
            self._call(assignment)
            self._replace_lost()

    def _replace_lost(self) -> None:
        """Have other hosts asked for in the place of lost ones; does not wait for them."""
        while True:
            with self._changed:
                host = None if self._cancelled else self._schedule.take_lost()
            if host is None:
                return
            name = f"phalanx-replace-{host}"
            threading.Thread(target=self._replace, args=(host,), name=name, daemon=True).start()

    def _replace(self, host: int) -> None:
        found = False
        try:
            found = self._runner.replace(host, lambda: self._cancelled or self._schedule.is_over)
        except PhalanxError as error:
            logger.warning("phalanx: a host is not replaced: %s", error)
        with self._changed:
            self._schedule.replaced(host, found=found)
            self._changed.notify_all()

    def _next(self) -> CallAssignment | None:
        """What this thread does next; None when there is nothing left."""
        with self._changed:
            while True:
                if (assignment := self._schedule.take()) is not None:
                    return assignment
                if self._schedule.is_stuck:
                    self._fail_stuck()
                if self._schedule.is_over:
                    self._changed.notify_all()
                    return None
                self._changed.wait()

    def _fail_stuck(self) -> None:
        for item in self._schedule.drop_waiting():
            error = LaunchError(f"no host is left to run item {item} on: {self._last_loss}")
            error.__cause__ = self._last_loss
            self._fail(item, error)

    def _call(self, assignment: CallAssignment) -> None:
        item, end = assignment.item, CallEnd.FAILED
        lost: tuple[int, ...] = ()
        gone: tuple[int, ...] = ()
        result: LaunchResult[Any] | None = None
        error: BaseException | None = None
        try:
            call = self._items.pack(self._items.kwargs[item])
            result = self._runner.run(call, assignment.hosts, self._items.log_spec(item))
            end = CallEnd.RETURNED
            self._items.keep(item, result)
        except CallLost as loss:
            end = CallEnd.LOST if loss.has_begun else CallEnd.UNPLACED
            lost, gone, error = loss.hosts, loss.gone, loss.error
        except BaseException as raised:  # noqa: BLE001 whoever asks for the results gets it
            error = raised
        with self._changed:
            again = self._schedule.ended(item, end, lost, gone)
            if self._cancelled:
                self._schedule.drop_waiting()
                again = False
            if result is not None:
                self._keep(item, result)
            elif error is not None and again:
                self._last_loss = error
                logger.warning("phalanx: retrying item %d: %s", item, _line(error))
            elif error is not None:
                if end in (CallEnd.LOST, CallEnd.UNPLACED):
                    self._last_loss = error
                if not (self._cancelled and isinstance(error, Cancelled)):
                    self._fail(item, error)
            self._show()
            self._changed.notify_all()

    def _keep(self, item: int, result: LaunchResult[Any]) -> None:
        self.results[item] = CallResult(result.values, result.members, item)
        self.finished.append(item)

    def _fail(self, item: int, error: BaseException) -> None:
        error.__traceback__ = None
        self.failures[item] = error
        self.finished.append(item)

    def _show(self) -> None:
        if not self._cancelled:
            failed = len(self.failures)
            self._progress.show(len(self.finished), failed, self._schedule.running)


def _line(error: BaseException) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"


_RUNNING: weakref.WeakSet[CallRun] = weakref.WeakSet()


@atexit.register
def _cancel_all() -> None:
    """End what the program did not wait for, before its launches are ended one by one."""
    runs = list(_RUNNING)
    for run in runs:
        run.cancel()
    limit = time.monotonic() + 30.0
    for run in runs:
        run.join(max(0.0, limit - time.monotonic()))
