"""An app that runs, as those inside see it: its thread, its record, what came of it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from phalanx._core.ids import AgentId, HostIndex
from phalanx._core.rounds import Ended, Outcome
from phalanx._core.stacks import RankStacks
from phalanx._launcher.payload import Function, Inbox
from phalanx._launcher.placement import Placement
from phalanx._launcher.planning.listed_hosts import ListedHost
from phalanx._launcher.planning.plan import Plan
from phalanx._launcher.reporting.collected_results import CollectedResults
from phalanx._launcher.reporting.printed_lines import read_lines
from phalanx._launcher.reporting.report import (
    TraceShown,
    add_note,
    describe_left,
    message_of,
    state_of,
)
from phalanx._launcher.reporting.tracker import StatusSnapshot
from phalanx._launcher.result import LaunchResult
from phalanx._launcher.session.added_host import add_host, add_lent_host
from phalanx._launcher.session.decider import MakeDecider
from phalanx._launcher.transport.targets import to_record
from phalanx._launcher.warm.pool import AgentPool
from phalanx._logs import PASSING, logger
from phalanx._logs.console import is_terminal
from phalanx._logs.lines import LogLine
from phalanx._logs.losses import Loss, describe
from phalanx._logs.spec import DefaultLogSpec, Route, routes
from phalanx._logs.writer import LogWriter, finish
from phalanx._registry.app_record import AppRecord
from phalanx._registry.stack_requests import StackQuestion
from phalanx._rendezvous.protocol import Phase, Reason, Verdict
from phalanx._specs import AppState, AppStatus
from phalanx._system import shortage
from phalanx.errors import (
    ConfigError,
    FetchError,
    LaunchError,
    OutputLost,
    ResultError,
    StartFailed,
)

if TYPE_CHECKING:
    import asyncio

    from phalanx._launcher.agents.wait_messages import LongWaits
    from phalanx._launcher.session.session import Session
    from phalanx._launcher.transport.dial import Dial, Dials

R = TypeVar("R")

ReplaceHost = Callable[[str, Callable[[], bool]], ListedHost | None]
"""Gives another host for one that is lost, by its name, unless the second says that it is over."""

_ASKED_EVERY = 0.5
"""Seconds between looks for someone who wants the end."""
_ANSWER = 2.0
"""Seconds for hosts to answer, beyond those that their workers are given."""
_STEP = 0.25
"""Seconds between looks whether a signal has come."""
_QUIET = 0.4
"""Seconds before a status line is shown: what ends sooner needs none."""


class AppRun(Generic[R]):
    """One app on its own thread. All methods may be called from any thread."""

    _tells = _prints = False

    def __init__(
        self,
        plan: Plan,
        function: Future[Function],
        *,
        pools: Sequence[AgentPool],
        dials: Dials | None,
        decide: MakeDecider,
        is_recorded: bool,
        replace_host: ReplaceHost | None = None,
        record: AppRecord | None = None,
    ) -> None:
        """Start the agents, or take such as wait in the pools; the function may follow later.

        See `start.PreparedApp`.
        """
        self.id = plan.app
        self._plan = plan
        self._function = function
        self._began = time.monotonic()
        self._ended_at: float | None = None
        self._state = AppState.PENDING
        self._outcomes: tuple[Outcome, ...] = ()
        self._verdict: Verdict | None = None
        self._error: BaseException | None = None
        self._result: LaunchResult[R] | None = None
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._decide = decide
        self._replace_host = replace_host
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: list[Callable[[Session], object]] = []
        """What is to be done as soon as the app's loop runs."""
        self._adding = threading.Lock()
        self._added: list[Dial] = []
        """Dials to hosts that were added."""
        self._session: Session | None = None
        self._awaited: tuple[str, ...] = ()
        self._waits: LongWaits | None = None
        self._looked = 0.0
        self._asked: Mapping[str, Any] | None = None
        self._watchers: list[Callable[[], None]] = []
        self._placement = Placement(plan, pools, dials)
        try:
            self._routes = routes(plan.options.log_spec or DefaultLogSpec(), plan.members)
        except BaseException:
            self._placement.abandon()
            raise
        self._paths = {k: r.file.path for k, r in self._routes.items() if r.file is not None}
        self._writer: LogWriter | None = None
        self._inboxes: dict[int, Inbox] = {}
        self._running: frozenset[AgentId] = frozenset()
        try:
            plan.shared.create()
            self._placement.start()
        except BaseException:
            plan.shared.remove()
            self._placement.kill()
            finish(self._routes)
            raise
        self._record = self._take_record(record) if is_recorded else AppRecord(None)
        run = functools.partial(self._run, plan)
        self._thread = threading.Thread(target=run, name=f"phalanx-{self.id}", daemon=True)
        self._start_thread()

    def _start_thread(self) -> None:
        _RUNNING.add(self)
        try:
            self._thread.start()
        except RuntimeError as error:
            _RUNNING.discard(self)
            self._placement.kill()
            self._plan.shared.remove()
            finish(self._routes)
            self.forget()
            text = f"cannot start {self.id}: {shortage.describe(error)}"
            raise StartFailed(text, hostname="localhost") from error

    def _take_record(self, record: AppRecord | None) -> AppRecord:
        """The record that it has already, or a new one."""
        plan, options = self._plan, self._plan.options
        if record is not None:
            record.extend(plan.members, self._paths, _targets(plan))
            return record
        return AppRecord.create(
            self.id,
            plan.title,
            plan.members,
            self._paths,
            options.stop_grace,
            max_restarts=None if options.restart == "host" else options.max_restarts,
            part_of=os.environ.get("PHALANX_JOB_ID", "") if plan.meets_others else "",
            targets=_targets(plan),
            more={"places": _places(self._routes)},
        )

    def __repr__(self) -> str:
        """The id, and how it stands."""
        return f"<AppRun {self.id} {self._state.value}>"

    @property
    def log_files(self) -> dict[int, Path]:
        """The log file of each global rank that has one of its own."""
        return {key: path for key, path in self._paths.items() if key >= 0}

    def wait(self, timeout: float | None = None) -> AppStatus:
        """See `App.wait`."""
        limit = math.inf if timeout is None else time.monotonic() + timeout
        # In steps: a signal that another thread was given wakes nobody who waits for a lock.
        while not self._done.wait(max(0.0, min(_STEP, limit - time.monotonic()))):
            if time.monotonic() >= limit:
                return self.status()
        self._thread.join()
        return self.status()

    def result(self, timeout: float | None = None) -> LaunchResult[R]:
        """See `App.result`."""
        if not self.wait(timeout).state.is_final:
            raise TimeoutError(f"{self.id} did not end within {timeout} s; it keeps running")
        with self._lock:
            if self._error is None and self._result is None:
                self._collect()
        if self._error is not None:
            raise self._error.with_traceback(None)
        assert self._result is not None
        return self._result

    def returned_by(self, rank: int) -> R | None:
        """What a rank returned to an app that was cancelled; None: nothing, or not all of it came.

        Before `result`, which drops it.
        """
        self.wait()
        has_returned = any(one.rank == rank and one.succeeded for one in self._outcomes)
        with self._lock:
            inbox = self._inboxes.get(rank)
            cancelled = self._verdict is not None and self._verdict.reason is Reason.CANCELLED
            if not cancelled or not has_returned or inbox is None or not inbox.is_whole:
                return None
            return cast("R", inbox.load())

    async def wait_async(self) -> LaunchResult[R]:
        """As `result`, in an asyncio program. Cancelling the task cancels the app."""
        import asyncio

        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # that loop has ended
                loop.call_soon_threadsafe(ended.set)

        with self._lock:
            if self._done.is_set():
                ended.set()
            self._watchers.append(tell)
        try:
            while not ended.is_set():
                # A notebook's kernel that is interrupted notices only when its loop turns.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.25):
                        await ended.wait()
        except asyncio.CancelledError:
            self.cancel()
            await ended.wait()
            raise
        # Unpickling may take a while, and runs the user's code: not on the loop's thread.
        return await asyncio.to_thread(self.result)

    def show_status(self, *, line: bool = True) -> None:
        """See `App.show_status`."""
        from phalanx._launcher.agents.wait_messages import LongWaits

        is_local = all(host.target is None for host in self._plan.hosts)
        self._waits = LongWaits(line=line, is_local=is_local)

    def tell_failure(self, *, prints: bool = False) -> None:
        """Leave the cause's traceback out of the output shown: it comes with what is raised.

        `prints`: what is raised is printed, and nothing else is done with it, so that what is seen
        already need not be noted on it.
        """
        self._tells = True
        self._prints = prints

    def _told(self) -> int | None:
        """The rank whose traceback is told to whoever waits."""
        verdict = self._verdict
        if not self._tells or verdict is None or verdict.reason is not Reason.FAILED:
            return None
        return None if verdict.cause is None else verdict.cause.outcome.rank

    def cancel(self, grace: float | None = None, number: int = signal.SIGTERM) -> None:
        """See `App.cancel`."""
        if grace is not None and not (isinstance(grace, int | float) and 0 <= grace < math.inf):
            raise ConfigError(f"grace={grace!r}: must be a number of seconds, 0 or more.")
        with self._lock:
            if self._done.is_set():
                return
            self._call(lambda session: session.cancel(grace, number))
        from phalanx._launcher.agents.agent_handle import LAST_LOGS

        if self._writer is not None:
            self._writer.give_up(after=LAST_LOGS)

    def add_host(self, hostname: str, workers: int | None = None) -> None:
        """See `App.add_host`."""
        with self._adding:  # not the app's own lock: the host may have to be asked
            if self._done.is_set():
                raise ConfigError(f"cannot add a host: {self.id} has ended.")
            plan, dial = add_host(self._plan, hostname, workers)
            if dial is not None:
                self._added.append(dial)
            if self._done.is_set():  # while the host was asked
                if dial is not None:
                    dial.give_up()
                raise ConfigError(f"cannot add a host: {self.id} has ended.")
            self._take_up(plan, dial)

    def _take_up(self, plan: Plan, dial: Dial | None) -> None:
        """Go on with a plan that has one more host."""
        new = routes(plan.options.log_spec or DefaultLogSpec(), plan.members[-1:])
        self._paths |= {k: r.file.path for k, r in new.items() if r.file is not None}
        self._plan = plan
        self._record.extend(plan.members, self._paths, _targets(plan))

        def add(session: Session) -> None:
            if self._writer is not None:
                self._writer.add(new)
            session.add(plan, dial)

        self._call(add)

    def _replace_lost(self, hostname: str, is_ending: Callable[[], bool]) -> bool:
        """Have another host in place of a lost one; whether there is one. Blocks."""
        assert self._replace_host is not None
        logger.warning("phalanx: requesting a replacement for host %s", hostname)
        host = self._replace_host(hostname, lambda: self._done.is_set() or is_ending())
        if host is None:
            return False
        with self._adding:
            if not self._done.is_set():
                self._take_up(add_lent_host(self._plan, host, hostname), None)
        return True

    def forget(self) -> None:
        """Leave no record of it, and no log files: it has ended before its function was there."""
        self._record.remove()
        for path in self._paths.values():
            path.unlink(missing_ok=True)

    def signal(self, number: int) -> None:
        """See `App.signal`."""
        self._call(lambda session: session.signal(number))

    def stacks(self, seconds: float = 5.0, *, native: bool = False) -> tuple[RankStacks, ...]:
        """See `App.stacks`."""
        return self._ask_stacks(seconds, native=native)

    def _ask_stacks(
        self, seconds: float, *, below: bool = False, native: bool = False
    ) -> tuple[RankStacks, ...]:
        """With `below`: of the ranks of launches that workers have started on their hosts."""
        if self._done.is_set():
            return ()
        answer: Future[tuple[RankStacks, ...]] = Future()
        self._call(lambda session: session.dump_stacks(seconds, answer, below=below, native=native))
        limit = time.monotonic() + seconds * (2 if native else 1) + _ANSWER
        while not answer.done() and not self._done.wait(0.02) and time.monotonic() < limit:
            pass
        return answer.result() if answer.done() else ()

    def status(self) -> AppStatus:
        """The status now: state, hosts, workers, rounds, and what went wrong."""
        with self._lock:
            seconds = (self._ended_at or time.monotonic()) - self._began
            session = self._session
            phases = dict(session.progress.phases) if session is not None else {}
            snapshot = (
                StatusSnapshot()
                if session is None
                else session.progress.tracker.snapshot(self._paths)
            )
            return AppStatus(
                self.id,
                self._state,
                self._message(),
                self._outcomes,
                seconds,
                phases,
                **snapshot._asdict(),
            )

    def logs(
        self, ranks: Collection[int] | None = None, *, follow: bool = False
    ) -> Iterator[LogLine]:
        """See `App.logs`."""
        members = {rank: member for member in self._plan.members for rank in member.ranks}
        if unknown := set(ranks or ()) - members.keys():
            raise IndexError(
                f"unknown ranks {sorted(unknown)}; the ranks are 0 to {len(members) - 1}"
            )
        chosen = {r: p for r, p in self.log_files.items() if ranks is None or r in ranks}
        return read_lines(chosen, members, self._done, follow=follow)

    # ── the thread ────────────────────────────────────────────────────────────

    def _run(self, plan: Plan) -> None:
        import asyncio

        try:
            self._writer = LogWriter(self._routes, self._status_text, self._record.mark)
            self._verdict = asyncio.run(self._drive_app(plan, self._writer))
        except BaseException as error:  # noqa: BLE001 whoever waits gets it
            self._error = error
            if shortage.is_shortage(error):
                self._error = LaunchError(f"cannot run {self.id}: {shortage.describe(error)}")
            self._placement.kill()
        finally:
            self._plan.shared.remove()
            if self._writer is not None:
                self._writer.close(self._told())
            with self._lock:
                self._ended_at = time.monotonic()
                self._record.loss.forget()  # the last word is still to come
                self._state = state_of(self._verdict)
                if (self._losses() or self._unfetched) and self._state is AppState.SUCCEEDED:
                    self._state = AppState.FAILED
                self._loop = None
                if self._session is not None:
                    self._session.progress.tracker.finish(self._verdict)
                watchers, self._watchers = self._watchers, []
            try:
                self._record.update(self.status())
                if self._record.loss and self._state is AppState.SUCCEEDED:
                    self._state = AppState.FAILED
            finally:
                # Not under the lock: a signal handler that waits for it may hold the event's own.
                self._done.set()
                _RUNNING.discard(self)
                for dial in self._added:  # those that nobody has taken
                    dial.give_up()
            for watcher in watchers:
                watcher()

    async def _drive_app(self, plan: Plan, writer: LogWriter) -> Verdict:
        import asyncio

        from phalanx._launcher.session.session import Session

        session = Session(
            plan,
            self._placement,
            self._function,
            writer,
            self._observe,
            self._decide,
            began=self._began,
            replace_lost=None if self._replace_host is None else self._replace_lost,
        )
        self._session = session
        self._inboxes = session.inboxes
        with self._lock:
            self._loop = asyncio.get_running_loop()
            pending, self._pending = self._pending, []
        for call in pending:
            self._call(call)
        verdict = await session.run()
        self._running = session.decider.running
        if session.left and verdict.reason is Reason.SUCCEEDED:
            logger.warning("phalanx: %s", describe_left(session.left))
        names = {host.member.agent: host.member.hostname for host in plan.hosts}
        missing = [why for a, why in session.missing.items() if names.get(a) not in session.left]
        for note in (*session.notes, *missing):
            logger.warning("phalanx: %s", note)
        return verdict

    def _call(self, what: Callable[[Session], object]) -> None:
        """Have something done on the app's own loop; nothing once that has ended."""
        with self._lock:
            loop, session = self._loop, self._session
            if loop is None or session is None:
                self._pending.append(what)
                return
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the app with it
            loop.call_soon_threadsafe(what, session)

    def _observe(self, session: Session) -> None:
        """Something has happened, or a moment has passed."""
        decider, tracker = session.decider, session.progress.tracker
        with self._lock:
            if decider.phase is Phase.RUNNING:
                self._state = AppState.RUNNING
            self._awaited = decider.awaited
            if tracker.ended(decider.outcomes) or len(decider.outcomes) != len(self._outcomes):
                self._outcomes = tuple(decider.outcomes[r] for r in sorted(decider.outcomes))
        if self._record.is_old((self._state, tracker.round), (tracker.changes, self._awaited)):
            self._record.update(self.status())
        now = time.monotonic()
        if self._waits is not None and not (self._waits.line and is_terminal(sys.stderr)):
            text = session.describe()
            if self._waits.is_due(text, now):
                said = self.id, text, now - self._began
                logger.warning("phalanx: %s: %s (%.0f s)", *said, extra={PASSING: True})
        if now - self._looked > _ASKED_EVERY:
            self._looked = now
            if self._record.loss:
                self._record.update(self.status())
            asked = self._record.cancel_asked()
            if asked is not None and asked != self._asked:
                self._asked = asked
                self.cancel(asked.get("grace"))
            for question in self._record.stacks_asked():
                self._tell_stacks(session, question)

    def _tell_stacks(self, session: Session, asked: StackQuestion) -> None:
        answer: Future[tuple[RankStacks, ...]] = Future()
        name, number = asked.name, session.progress.tracker.round
        answer.add_done_callback(lambda done: self._record.tell_stacks(name, number, done.result()))
        session.dump_stacks(asked.seconds, answer, native=asked.native)

    def _status_text(self, bar: str) -> str:
        """One line for the terminal."""
        seconds = time.monotonic() - self._began
        session = self._session
        if self._waits is None or not self._waits.line or session is None or seconds < _QUIET:
            return ""
        return f"phalanx: {self.id}: {bar or session.describe()} ({seconds:.0f} s)"

    # ── the end ───────────────────────────────────────────────────────────────

    def _message(self) -> str:
        if self._verdict is not None:
            said = message_of(self._verdict) or "; ".join(self._unfetched)
            return said or (describe(losses) if (losses := self._losses()) else "")
        if self._error is not None:
            return f"{type(self._error).__name__}: {self._error}"
        return f"waiting for {', '.join(self._awaited)}" if self._awaited else ""

    @property
    def _unfetched(self) -> tuple[str, ...]:
        """Files that should have come home, and why they did not."""
        return () if self._session is None else self._session.fetch.problems

    def _unfetched_error(self) -> FetchError | None:
        if not self._unfetched:
            return None
        return FetchError(
            "all ranks returned, but " + "\n".join(self._unfetched),
            problems=self._unfetched,
            result=self._result,
        )

    @property
    def error(self) -> BaseException | None:
        """What ended it from within, if it was not its workers."""
        return self._error

    @property
    def verdict(self) -> Verdict:
        """How it ended, once it has."""
        assert self._verdict is not None
        return self._verdict

    @property
    def is_cause_remote(self) -> bool:
        """What it failed of happened on another host of those that meet, which tells it in full.

        A lost one tells nothing.
        """
        cause = self.verdict.cause
        if cause is None or cause.outcome.kind is Ended.LOST:
            return False
        return all(member.agent != cause.agent for member in self._plan.members)

    @property
    def is_cause_shown(self) -> bool:
        """The cause's traceback was shown with what its worker printed: the end took long."""
        cause, writer = self.verdict.cause, self._writer
        return cause is not None and writer is not None and cause.outcome.rank in writer.shown

    def _trace_shown(self) -> TraceShown:
        if not self._prints:
            return TraceShown.WHOLE
        return TraceShown.ABOVE if self.is_cause_shown else TraceShown.WITHOUT_ERROR

    def lost_output(self, result: object) -> OutputLost | None:
        """The error that it is that output could not be written, if any could not."""
        losses = self._losses()
        if not losses:
            return None
        places = tuple(loss.place for loss in losses)
        return OutputLost(describe(losses), places=places, result=result)

    def _losses(self) -> list[Loss]:
        losses = [] if self._session is None else list(self._session.losses.values())
        losses += [] if self._writer is None else self._writer.losses
        return [*losses, self._record.loss] if self._record.loss else losses

    @property
    def waits(self) -> Mapping[str, str]:
        """What each host had not done yet when the start was given up."""
        return {} if self._session is None else self._session.waits

    @property
    def preempted(self) -> tuple[HostIndex, ...]:
        """The hosts, by their index in the plan, that were said to be taken away."""
        agents = () if self._session is None else self._session.preempted
        return tuple(sorted(self._plan.index(agent) for agent in agents))

    def describe_left(self) -> str:
        """What is left of it where, once it has ended; that nothing is, only if it was seen."""
        if self._verdict is None or self._session is None:
            return "processes may be left running"
        hosts = self._session.left
        return describe_left(hosts, self._placement.given_up)

    def collect(self) -> CollectedResults:
        """What has come home, once it has ended."""
        return CollectedResults(self.verdict, self._inboxes, self._outcomes, self.stopped_at)

    @property
    def stopped_at(self) -> Mapping[int, RankStacks]:
        """Where ranks were when they were stopped because another had given up waiting."""
        return {} if self._session is None else self._session.stacks.stopped

    def _collect(self) -> None:
        """Unpickle on the caller's thread: the values, or the exception to raise."""
        if self._verdict is None:
            self._error = LaunchError("the app ended without a verdict")
            return
        collect = self.collect()
        try:
            if collect.succeeded:
                self._result = collect.result()
                self._error = self._unfetched_error() or self.lost_output(self._result)
            else:
                timeout = self._plan.options.start_timeout
                self._error = collect.exception(
                    self.log_files,
                    self._running,
                    timeout,
                    self.waits,
                    self._trace_shown(),
                    cut_off=() if self._session is None else self._session.cut_off,
                )
                if self._session is not None and self._session.left:
                    add_note(self._error, f"\n{self.describe_left()}")
                for problem in self._unfetched:
                    add_note(self._error, problem)
        except ResultError as error:
            self._error = error
        collect.close()


def _targets(plan: Plan) -> dict[int, dict[str, Any]]:
    """How the hosts that are not this machine are reached."""
    return {h.member.agent: to_record(h.target) for h in plan.hosts if h.target is not None}


def _places(routes: Mapping[int, Route]) -> list[str]:
    """Where output goes that has no file for each rank."""
    files = (file for key, route in routes.items() if key >= 0 for file in route.raw)
    return list(dict.fromkeys(str(file.place.absolute()) for file in files if file.place))


_RUNNING: weakref.WeakSet[AppRun[Any]] = weakref.WeakSet()


# A child that the program forks has the handles, and none of the threads behind them.
os.register_at_fork(after_in_child=_RUNNING.clear)


@atexit.register
def _cancel_all() -> None:
    """End what the program did not wait for, instead of leaving it to its agents to notice."""
    apps = list(_RUNNING)
    for app in apps:
        app.cancel()
    for app in apps:
        try:
            app.wait(timeout=app._plan.options.stop_grace + 5.0)
        except KeyboardInterrupt:  # asked again: without grace
            app.cancel(0.0)
            app.wait(timeout=5.0)
