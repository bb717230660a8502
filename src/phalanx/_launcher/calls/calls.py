"""Many calls, as users have them: an iterator over their results."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from phalanx._launcher import payload
from phalanx._launcher.borrowed_hosts import find_lender
from phalanx._launcher.calls.call_logs import CallLogSpec, new_directory
from phalanx._launcher.calls.call_record import CallRecord
from phalanx._launcher.calls.call_run import CallItems, CallRun
from phalanx._launcher.calls.checkpoint import Checkpoint
from phalanx._launcher.calls.digests import function_digest
from phalanx._launcher.calls.lanes.lane_calls import LaneCalls
from phalanx._launcher.calls.launched_calls import LaunchedCalls
from phalanx._launcher.calls.progress import CallProgress
from phalanx._launcher.calls.schedule import CallSchedule, HostSlots, spread
from phalanx._launcher.interrupts import hide_traceback, interruptible
from phalanx._launcher.planning.listed_hosts import ListedHost
from phalanx._launcher.planning.plan import draft_plan, make_launch_id
from phalanx._launcher.queued_run import draft_unplaced
from phalanx._launcher.start import Work
from phalanx._launcher.warm import contexts
from phalanx._launcher.warm.pool import Pool, pools
from phalanx._system import machine
from phalanx.errors import Cancelled, ConfigError, MapFailed

if TYPE_CHECKING:
    from phalanx._launcher.calls.call_runner import CallRunner
    from phalanx._launcher.launch_options import LaunchOptions
    from phalanx._launcher.planning.imports import Needs
    from phalanx._launcher.planning.plan import Draft
    from phalanx._launcher.result import CallResult

R = TypeVar("R")

_SHOWN = 5
"""How many failures the message of a `MapFailed` names."""


class Calls(Generic[R]):
    """The calls of one `Launcher.map`, which run already: an iterator over their results.

    It gives the result of each call that returned. Once all have ended it raises `MapFailed` if
    any has not. Leaving it, by `close`, `with` or by forgetting it, stops what still runs.
    """

    def __init__(self, run: CallRun, total: int, *, ordered: bool) -> None:
        """Made by `Launcher.map`."""
        self._run = run
        self._total = total
        self._ordered = ordered
        self._given = 0
        self._told = False
        self._finalizer = weakref.finalize(self, run.cancel)
        self._finalizer.atexit = False

    def __repr__(self) -> str:
        """For whoever prints it instead of what it gives."""
        return f"<Calls of {self._total} items: iterate over it for their results>"

    def __len__(self) -> int:
        """How many items there are."""
        return self._total

    def __iter__(self) -> Iterator[CallResult[R]]:
        """Itself: the results can be had once."""
        return self

    def __next__(self) -> CallResult[R]:
        """The next result; blocks until it is there.

        Raises:
            MapFailed: All have ended, and some did not return.
            StopIteration: All results were given.
        """
        run = self._run
        try:
            while self._given < self._total:
                position = self._given
                if not self._has_ended(position):
                    with interruptible() as interrupts:
                        interrupts.attach(run.cancel)
                        run.wait(functools.partial(self._has_ended, position))
                        if interrupts.received is not None:
                            run.join()
                if not self._has_ended(position):
                    break  # it was closed
                self._given += 1
                item = position if self._ordered else run.finished[position]
                if item in run.results:
                    return run.results[item]
            run.join()
        except KeyboardInterrupt as interrupt:
            hide_traceback(interrupt, "nothing is left running")
            raise
        except BaseException:
            self.close()  # the program's own signal handler raised
            raise
        if run.error is not None and not self._told:
            self._told = True
            if not isinstance(run.error, Cancelled):
                raise run.error
        if run.failures and not self._told:
            self._told = True
            raise _map_failed(run, self._total)
        raise StopIteration

    def __enter__(self) -> Self:
        """Nothing to do: the calls run already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop what still runs."""
        self.close()

    def close(self) -> None:
        """Stop what still runs, and wait until nothing is left. Idempotent."""
        self._run.cancel()
        self._run.join()

    def _has_ended(self, position: int) -> bool:
        run = self._run
        if self._ordered:
            return position in run.results or position in run.failures
        return position < len(run.finished)


def _map_failed(run: CallRun, total: int) -> MapFailed:
    failures = dict(sorted(run.failures.items()))
    lines = []
    for item, error in list(failures.items())[:_SHOWN]:
        first = (str(error).splitlines() or [""])[0]
        lines.append(f"  item {item}: {type(error).__name__}: {first}".rstrip(": "))
    if len(failures) > _SHOWN:
        lines.append(f"  and {len(failures) - _SHOWN} more: see .failures")
    text = "\n".join([f"{len(failures)} of {total} calls failed:", *lines])
    failed = MapFailed(text, failures=failures, results=dict(sorted(run.results.items())))
    failed.__cause__ = next(iter(failures.values()))
    return failed


def start_calls(
    options: LaunchOptions,
    func: Callable[..., R],
    items: Iterable[Mapping[str, Any]],
    needs: Needs,
    title: str,
    *,
    max_parallel: int | None,
    ordered: bool,
    hosts_per_call: int,
    retries: int,
    checkpoint: str | os.PathLike[str] | None,
) -> Calls[R]:
    """Check what was asked for, and start. Raises `ConfigError`."""
    table = list(items)
    _check_numbers(max_parallel, hosts_per_call, retries)
    if options.start_method == "inline":
        raise ConfigError(
            'start_method="inline" makes one call, in this process. Use run() for each item.'
        )
    draft = _draft(options, needs, title)
    if hosts_per_call > len(draft.hosts):
        count = len(draft.hosts)
        there = "is only 1 host" if count == 1 else f"are only {count} hosts"
        raise ConfigError(f"hosts_per_call={hosts_per_call}, but there {there}.")
    parallel = max_parallel or _default_parallel(draft, hosts_per_call)
    pack = functools.partial(_pack, func, needs)
    if table:
        pack(table[0])  # what cannot be pickled is mostly the function: say so at once
    spec = options.log_spec
    logs = new_directory(title) if spec is None and table else None
    calls = CallItems(
        table,
        pack,
        (lambda item: CallLogSpec(logs, item)) if spec is None else (lambda _: spec),
        None if checkpoint is None else Checkpoint(checkpoint),
        function_digest(func, hosts_per_call, options.workers_per_host),
    )
    known = {i: found for i in range(len(table)) if (found := calls.known(i)) is not None}
    slots = spread(len(draft.hosts), hosts_per_call, parallel)
    left = [i for i in range(len(table)) if i not in known]
    lent = options.scheduler is not None
    schedule = CallSchedule(
        left,
        [HostSlots(slots, host.target is None, lent) for host in draft.hosts],
        hosts_per_call=hosts_per_call,
        max_parallel=parallel,
        retries=retries,
    )
    progress = CallProgress(title, len(table), len(known))
    runner = _make_runner(options, draft)
    app = draft.app or make_launch_id(options.name or title)
    record = CallRecord(app, title, len(table), logs, options.stop_grace)
    run = CallRun(calls, schedule, runner, known, progress, record, min(parallel, len(left)))
    return Calls(run, len(table), ordered=ordered)


def _draft(options: LaunchOptions, needs: Needs, title: str) -> Draft:
    if options.scheduler is None:
        return draft_plan(options, needs, title)
    return draft_unplaced(options, Work(Future(), needs, title))


def _make_runner(options: LaunchOptions, draft: Draft) -> CallRunner:
    own = contexts.pool_of(options)
    if options.log_spec is None and LaneCalls.can_run(draft):
        return LaneCalls(draft, pools(own, options.keep_warm))
    pool = Pool() if own is None else own
    borrow = None
    keep_warm = options.keep_warm
    if options.scheduler is not None:
        lender = find_lender(draft.options, draft.title)
        borrow, keep_warm = functools.partial(contexts.borrow, options, lender), 0.0
    return LaunchedCalls(draft, pool, pools(pool, keep_warm), own=own is None, borrow=borrow)


def _pack(func: Callable[..., Any], needs: Needs, kwargs: Mapping[str, Any]) -> payload.Function:
    return payload.pack(func, (), kwargs, needs)


def _check_numbers(max_parallel: object, hosts_per_call: object, retries: object) -> None:
    for name, value, least in (
        ("max_parallel", 1 if max_parallel is None else max_parallel, 1),
        ("hosts_per_call", hosts_per_call, 1),
        ("retries", retries, 0),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name}={value!r}: must be a whole number, {least} or more.")


def _default_parallel(draft: Draft, hosts_per_call: int) -> int:
    """A call on each host at a time; on this machine alone, as many as its processors take."""
    if len(draft.hosts) > 1 or draft.hosts[0].target is not None:  # lent ones among them
        return max(1, len(draft.hosts) // hosts_per_call)
    return _parallel_here(draft.options.workers_per_host, draft.hosts[0])


def _parallel_here(workers: object, host: ListedHost) -> int:
    if workers in ("gpu", "cpu") or (workers == "auto" and (machine.gpus() or host.tasks)):
        return 1  # each call has all of the machine
    count = workers[0] if isinstance(workers, list | tuple) else workers
    return max(1, machine.processors() // (count if isinstance(count, int) else 1))
