"""An app whose hosts are borrowed: it waits for them, runs, and gives them back."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from phalanx._core.stacks import RankStacks
from phalanx._launcher.borrowed_hosts import BorrowedHosts
from phalanx._launcher.planning.listed_hosts import HostFacts, ListedHost, unknown_hosts
from phalanx._launcher.planning.plan import Draft, draft_plan, make_launch_id
from phalanx._launcher.reporting.report import add_note
from phalanx._launcher.result import LaunchResult
from phalanx._launcher.session.app_run import AppRun
from phalanx._launcher.start import Work, prepare_draft
from phalanx._launcher.transport.targets import Target
from phalanx._logs import logger
from phalanx._logs.console import STATUS, is_terminal
from phalanx._logs.lines import LogLine
from phalanx._registry.app_record import AppRecord
from phalanx._schedulers.leases import LeasePhase, LeaseStatus
from phalanx._specs import AppState, AppStatus
from phalanx._system.daemon_thread import in_daemon_thread
from phalanx.errors import Cancelled, ConfigError, LaunchError, PhalanxError, StartFailed

if TYPE_CHECKING:
    from phalanx._launcher.launch_options import LaunchOptions
    from phalanx._launcher.transport.dial import Dials
    from phalanx._launcher.warm.pool import AgentPool

R = TypeVar("R")

_STEP = 0.25
"""Seconds between looks whether a signal has come."""
_LONG = 2.0
"""Seconds after which a wait is said where there is no terminal with a status line."""
_ASKED_EVERY = 0.5
"""Seconds between looks for someone who wants the end."""
_QUIET = 0.4
"""Seconds before a status line is shown."""


@dataclass(frozen=True)
class QueuedApp:
    """An app of which everything was checked that can be without its hosts; nothing was asked."""

    draft: Draft
    work: Work
    borrow: Callable[[], BorrowedHosts]
    pools: Sequence[AgentPool]
    known: Mapping[str, HostFacts]

    def start(self) -> QueuedRun[Any]:
        """Ask for the hosts; does not wait. Raises `SchedulerError` if that is refused."""
        return QueuedRun(self)


def draft_unplaced(options: LaunchOptions, work: Work) -> Draft:
    """The draft of a launch whose hosts are not known yet, only how many. Raises `ConfigError`."""
    count = options.num_hosts or 1
    hosts = [ListedHost(f"host {i}", Target(f"host {i}", ("python3",), ())) for i in range(count)]
    draft = draft_plan(options, work.needs, work.title, hosts=hosts)
    unknown_hosts(draft.options, draft.hosts, {})
    return dataclasses.replace(draft, app=make_launch_id(options.name or work.title))


class QueuedRun(Generic[R]):
    """One app on borrowed hosts, from the queue to its end. Methods may be called anywhere."""

    def __init__(self, app: QueuedApp) -> None:
        """Ask for the hosts, and wait for them on a thread."""
        self.id = app.draft.app
        self._app = app
        self._began = time.monotonic()
        self._ended_at: float | None = None
        self._run: AppRun[R] | None = None
        self._error: BaseException | None = None
        self._queued = ""
        """How the request stands, in words."""
        self._shown = self._line = self._tells = self._prints = False
        self._said = False
        self._cancelled = threading.Event()
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._dials: Dials | None = None
        self._looked = 0.0
        self._hosts = app.borrow()
        options = app.draft.options
        self._record = AppRecord.create(
            self.id,
            app.draft.title,
            (),
            {},
            options.stop_grace,
            max_restarts=None if options.restart == "host" else options.max_restarts,
        )
        self._thread = threading.Thread(target=self._drive, name=f"hosts-{self.id}", daemon=True)
        _QUEUED.add(self)
        self._thread.start()

    def __repr__(self) -> str:
        """The id, and how it stands."""
        return f"<QueuedRun {self.id} {self.status().state.value}>"

    # ── the thread ────────────────────────────────────────────────────────────

    def _drive(self) -> None:
        try:
            try:
                listed = self._hosts.wait(self._cancelled, self._tell)
            finally:
                STATUS.show(self, "")
            run = self._start(listed)
            run.wait()
        except BaseException as error:  # noqa: BLE001 whoever waits gets it
            self._error = error
            if self._cancelled.is_set() and isinstance(error, StartFailed):
                self._error = Cancelled("cancelled while its hosts were asked")
        finally:
            self._note_end()
            self._hosts.let_go()
            self._ended_at = time.monotonic()
            if self._run is None:
                self._record.update(self._queue_status(has_ended=True))
            self._done.set()
            _QUEUED.discard(self)

    def _start(self, hosts: Sequence[ListedHost]) -> AppRun[R]:
        app = self._app
        draft = dataclasses.replace(app.draft, hosts=tuple(hosts))
        prepared = prepare_draft(
            draft, app.work, pools=app.pools, known=app.known, on_dial=self._dialled
        )
        with self._lock:
            if self._cancelled.is_set():
                if prepared.dials is not None:
                    prepared.dials.give_up()
                raise Cancelled("cancelled before it was started")
            run: AppRun[R] = prepared.start(replace_host=self._hosts.replace, record=self._record)
            self._run = run
            if self._shown:
                run.show_status(line=self._line)
            if self._tells:
                run.tell_failure(prints=self._prints)
        return run

    def _dialled(self, dials: Dials) -> None:
        self._dials = dials
        if self._cancelled.is_set():
            dials.give_up()

    def _tell(self, status: LeaseStatus) -> None:
        """Say what is waited for, and hear whether somebody wants the end."""
        now = time.monotonic()
        seconds = now - self._began
        count = self._hosts.lender.request.num_hosts
        hosts = "1 host" if count == 1 else f"{count} hosts"
        self._queued = f"waiting for {hosts} from {self._hosts.describe(status)}"
        if self._record.is_old(AppState.PENDING, self._queued):
            self._record.update(self._queue_status(has_ended=False))
        if now - self._looked > _ASKED_EVERY:
            self._looked = now
            if self._record.cancel_asked() is not None:
                self.cancel()
        if not self._shown:
            return
        if self._line and is_terminal(sys.stderr):
            if seconds > _QUIET:
                STATUS.show(self, f"phalanx: {self.id}: {self._queued} ({seconds:.0f} s)")
        elif seconds > _LONG and status.reason and not self._said:
            self._said = True
            logger.warning("phalanx: %s: %s", self.id, self._queued)

    def _note_end(self) -> None:
        """Have an app that failed say so if its hosts were taken away."""
        run = self._run
        if run is None or run.status().state is AppState.SUCCEEDED:
            return
        with contextlib.suppress(PhalanxError):
            status = self._hosts.status()
            if status.phase is LeasePhase.ENDED:
                self._queued = f"the hosts were taken away: {self._hosts.describe(status)}"
                return
        self._queued = ""

    # ── as `AppRun` has it ────────────────────────────────────────────────────

    @property
    def log_files(self) -> dict[int, Path]:
        """See `App.log_files`; none while the hosts are awaited."""
        return {} if self._run is None else self._run.log_files

    def wait(self, timeout: float | None = None) -> AppStatus:
        """See `App.wait`."""
        limit = None if timeout is None else time.monotonic() + timeout
        # In steps: a signal that another thread was given wakes nobody who waits for a lock.
        while not self._done.is_set():
            left = _STEP if limit is None else min(_STEP, limit - time.monotonic())
            if left <= 0:
                return self.status()
            self._done.wait(left)
        self._thread.join()
        return self.status()

    def result(self, timeout: float | None = None) -> LaunchResult[R]:
        """See `App.result`."""
        self.wait(timeout)
        if not self._done.is_set():
            raise TimeoutError(f"{self.id} did not end within {timeout} s; it keeps running")
        if self._run is None or self._error is not None:
            assert self._error is not None
            raise self._error.with_traceback(None)
        try:
            return self._run.result()
        except LaunchError as error:
            if self._queued and self._queued not in getattr(error, "__notes__", ()):
                add_note(error, self._queued)
            raise

    async def wait_async(self) -> LaunchResult[R]:
        """As `result`, in an asyncio program. Cancelling the task cancels the app."""
        import asyncio

        try:
            await in_daemon_thread(self._done.wait)
        except asyncio.CancelledError:
            self.cancel()
            await in_daemon_thread(self._done.wait)
            raise
        return await asyncio.to_thread(self.result)

    def show_status(self, *, line: bool = True) -> None:
        """See `App.show_status`."""
        with self._lock:
            self._shown, self._line = True, line
            if self._run is not None:
                self._run.show_status(line=line)

    def tell_failure(self, *, prints: bool = False) -> None:
        """See `AppRun.tell_failure`."""
        with self._lock:
            self._tells, self._prints = True, prints
            if self._run is not None:
                self._run.tell_failure(prints=prints)

    def cancel(self, grace: float | None = None, number: int = signal.SIGTERM) -> None:
        """See `App.cancel`."""
        self._cancelled.set()
        # Without the lock: a signal handler may come to this while the main thread holds it.
        if self._run is not None:
            self._run.cancel(grace, number)
        else:
            if self._dials is not None:
                self._dials.give_up()
            threading.Thread(target=self._cancel_late, args=(grace, number), daemon=True).start()

    def _cancel_late(self, grace: float | None, number: int) -> None:
        """It may be about to start."""
        with self._lock:
            if self._run is not None:
                self._run.cancel(grace, number)

    def add_host(self, hostname: str, workers: int | None = None) -> None:
        """See `App.add_host`: hosts are the scheduler's."""
        name = self._hosts.lender.name
        raise ConfigError(f"cannot add {hostname}: {name} chooses the hosts.")

    def signal(self, number: int) -> None:
        """See `App.signal`."""
        if self._run is not None:
            self._run.signal(number)

    def stacks(self, seconds: float = 5.0, *, native: bool = False) -> tuple[RankStacks, ...]:
        """See `App.stacks`."""
        return () if self._run is None else self._run.stacks(seconds, native=native)

    def status(self) -> AppStatus:
        """See `App.status`; while the hosts are awaited, the message says how the queue stands."""
        if self._run is not None:
            return self._run.status()
        return self._queue_status(has_ended=self._done.is_set())

    def _queue_status(self, *, has_ended: bool) -> AppStatus:
        state, message = AppState.PENDING, self._queued
        if has_ended:
            cancelled = isinstance(self._error, Cancelled)
            state = AppState.CANCELLED if cancelled else AppState.FAILED
            message = f"{type(self._error).__name__}: {self._error}"
        seconds = (self._ended_at or time.monotonic()) - self._began
        return AppStatus(self.id, state, message, (), seconds, {})

    def logs(
        self, ranks: Collection[int] | None = None, *, follow: bool = False
    ) -> Iterator[LogLine]:
        """See `App.logs`."""
        while follow and self._run is None and not self._done.wait(0.05):
            pass
        if self._run is not None:
            yield from self._run.logs(ranks, follow=follow)

    def describe_left(self) -> str:
        """What is left of it where, once it has ended."""
        if self._run is None:
            return "nothing was started, and the hosts were given back"
        return self._run.describe_left()

    def forget(self) -> None:
        """Leave no record of it, and no log files."""
        if self._run is not None:
            self._run.forget()
        else:
            self._record.remove()


_QUEUED: weakref.WeakSet[QueuedRun[Any]] = weakref.WeakSet()

os.register_at_fork(after_in_child=_QUEUED.clear)


@atexit.register
def _cancel_all() -> None:
    """End what the program did not wait for, and give the hosts back."""
    apps = list(_QUEUED)
    for app in apps:
        app.cancel()
    for app in apps:
        app.wait(timeout=app._app.draft.options.stop_grace + 10.0)
