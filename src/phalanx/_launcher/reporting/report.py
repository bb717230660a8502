"""From a verdict to what the caller gets: the exception, and the words that go with it. Pure."""

from __future__ import annotations

import itertools
import linecache
import os
import re
import stat
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from types import MappingProxyType

from phalanx._core.last_words import without_torchs
from phalanx._core.rounds import Ended, Member
from phalanx._core.signals import signal_name
from phalanx._core.stacks import RankStacks, describe_missed, describe_stopped, in_short
from phalanx._launcher.transport.start_errors import not_started
from phalanx._rendezvous.causes import Failure, misses_others
from phalanx._rendezvous.protocol import Reason, Verdict
from phalanx._specs import AppState
from phalanx.errors import (
    AgentLost,
    Cancelled,
    LaunchError,
    NoTerminal,
    ResultError,
    StartTimeout,
    WorkerFailed,
)

_LONGEST_SOURCE = 8 << 20
_OTHERS_SHOWN = 8


class TraceShown(Enum):
    """How much of the worker's traceback is noted on what is raised."""

    WHOLE = auto()
    WITHOUT_ERROR = auto()
    """Whoever prints the exception prints what the last line says."""
    ABOVE = auto()
    """None of it: it was shown with what the worker printed."""


def make_exception(
    verdict: Verdict,
    members: tuple[Member, ...],
    log_files: Mapping[int, Path],
    load: Callable[[int], BaseException | None],
    *,
    returned: tuple[int, ...],
    running: Collection[int],
    start_timeout: float,
    waits: Mapping[str, str] = MappingProxyType({}),
    stopped_at: Mapping[int, RankStacks] = MappingProxyType({}),
    trace: TraceShown = TraceShown.WHOLE,
    cut_off: Collection[int] = (),
) -> BaseException:
    """The exception for a verdict that is not success.

    `load` gives the exception that a rank raised, or None where it cannot be had. The note that
    says rank, host, traceback and log file is added to whatever it is. `waits` says what hosts had
    not done when the start took too long, `stopped_at` where ranks were when they were stopped
    because one had given up waiting.
    """
    if verdict.reason is Reason.CANCELLED:
        return Cancelled("the app was cancelled before it ended")
    if verdict.reason in (Reason.START_TIMEOUT, Reason.NO_QUORUM):
        timeout = verdict.reason is Reason.START_TIMEOUT
        ended: LaunchError = (
            _start_timeout(verdict, start_timeout, waits)
            if timeout
            else LaunchError(no_quorum(verdict))
        )
        for note in filter(None, (failed_before(verdict), exclusions(verdict))):
            add_note(ended, note)
        return ended
    cause = verdict.cause
    if cause is None:
        return LaunchError("the app failed for an unknown reason")
    outcome = cause.outcome
    error: BaseException
    if outcome.kind is Ended.LOST:
        error = _lost(cause, verdict.others, members, running, cut_off)
    elif outcome.exception is not None and outcome.exception.result:
        error = _no_result(cause)
    elif outcome.kind is Ended.HUNG:
        error = _hung(cause, log_files)
    elif outcome.exception is not None:
        loaded = load(outcome.rank) if outcome.exception.reraise else None
        error = loaded if loaded is not None else _raised(cause, log_files)
        add_note(error, _where(cause, log_files, error, trace))
    else:
        error = _ended(cause, log_files)
    if running:
        had_workers = cause.agent in running
        notes = (
            _others(cause, verdict.others, returned, stopped_at, had_workers=had_workers),
            describe_restarts(verdict),
        )
        for note in filter(None, notes):
            add_note(error, note)
    return error


def state_of(verdict: Verdict | None) -> AppState:
    """How an app has ended; without a verdict it has failed from within."""
    if verdict is None:
        return AppState.FAILED
    states = {Reason.SUCCEEDED: AppState.SUCCEEDED, Reason.CANCELLED: AppState.CANCELLED}
    return states.get(verdict.reason, AppState.FAILED)


def message_of(verdict: Verdict) -> str:
    """What went wrong, in one line; empty if nothing did."""
    if (cause := verdict.cause) is not None:
        return cause.describe()
    if verdict.reason not in (Reason.START_TIMEOUT, Reason.NO_QUORUM):
        return "" if verdict.reason is Reason.SUCCEEDED else verdict.reason.value
    before = _failures_before(verdict)
    return f"{verdict.reason.value}" + (f", after {_line(before[-1])}" if before else "")


def describe_failure(
    verdict: Verdict,
    stopped_at: Mapping[int, RankStacks] = MappingProxyType({}),
    *,
    shown: bool = False,
) -> str:
    """What to print of a verdict that is not success, where nothing is raised.

    `shown`: the cause's traceback has been, with what its worker printed.
    """
    if verdict.reason is Reason.CANCELLED:
        return "cancelled"
    if verdict.reason is Reason.START_TIMEOUT:
        missing = f"; missing: {', '.join(verdict.missing)}" if verdict.missing else ""
        came = verdict.note or "not all workers started in time"
        return "\n".join(filter(None, (f"{came} (join_timeout){missing}", failed_before(verdict))))
    if verdict.reason is Reason.NO_QUORUM:
        return "\n".join(filter(None, (no_quorum(verdict), failed_before(verdict))))
    cause = verdict.cause
    if cause is None:
        return "failed for an unknown reason"
    outcome = cause.outcome
    lines = [f"{_who(cause)} {outcome.describe()}"]
    if shown:
        lines[0] += " (traceback above)"
    else:
        lines += _trace(cause)
    others = _others(cause, verdict.others, (), stopped_at)
    lines += [line for line in (others, describe_restarts(verdict)) if line]
    return "\n".join(lines)


def describe_remote_cause(
    verdict: Verdict, stopped_at: Mapping[int, RankStacks] = MappingProxyType({})
) -> str:
    """What to print of a failure that another host tells of in full: one line.

    Where this host's ranks were, if one gave up waiting for them, is known here alone.
    """
    assert verdict.cause is not None
    own = sum(not other.consequence for other in verdict.others)
    also = f"; {own} other {'rank' if own == 1 else 'ranks'} failed as well" if own else ""
    missed = _missed(verdict.cause, verdict.others, stopped_at)
    where = ["", *describe_stopped(missed)] if missed else []
    return "\n".join([f"stopped: {verdict.cause.describe()}{also}", *where])


def describe_missed_ranks(verdict: Verdict, stopped_at: Mapping[int, RankStacks]) -> str:
    """Where those were that the cause had waited for in a collective, in one line."""
    if verdict.cause is None:
        return ""
    return describe_missed(_missed(verdict.cause, verdict.others, stopped_at))


def no_quorum(verdict: Verdict) -> str:
    """Why those that are left do not go on."""
    missing = ", ".join(verdict.missing)
    return (
        f"lost contact with {missing}, and the hosts left are no majority. They stop, because the "
        "others may still be running. An app survives the silent loss of fewer than half of its "
        "hosts, such as one of three."
    )


def failed_before(verdict: Verdict) -> str:
    """What had failed before a start took too long or a majority was lost: it may be why."""
    failures = _failures_before(verdict)
    if not failures:
        return ""
    lines = [f"  {_line(failure)}" for failure in failures[-_OTHERS_SHOWN:]]
    if len(failures) > _OTHERS_SHOWN:
        lines.insert(0, f"  {len(failures) - _OTHERS_SHOWN} earlier failures, then:")
    trace = next(filter(None, map(_trace, reversed(failures))), [])
    return "\n".join(["\nEarlier failures:", *lines, *trace])


def _failures_before(verdict: Verdict) -> list[Failure]:
    """Those of the rounds before, and of the last; of a lost host's ranks one."""
    last = [f for f in verdict.others if not f.consequence and f not in verdict.restart_causes]
    lost = {f.agent: f for f in reversed(last) if f.outcome.kind is Ended.LOST}
    last = [f for f in last if f.outcome.kind is not Ended.LOST or lost[f.agent] is f]
    return [*verdict.restart_causes, *last]


def _line(failure: Failure) -> str:
    if failure.outcome.kind is Ended.LOST:
        return f"{failure.hostname} {failure.outcome.describe()}"
    return failure.describe()


def _trace(failure: Failure) -> list[str]:
    """Its traceback; of one that told none, the end of its stderr."""
    exception = failure.outcome.exception
    if exception is None:
        return _last_lines(failure.outcome.stderr)
    lines = (f"  {line}".rstrip() for line in exception.traceback.rstrip().splitlines())
    return ["", *lines] if exception.traceback else []


def _last_lines(stderr: str) -> list[str]:
    last = without_torchs(stderr.rstrip().splitlines())
    which = "line" if len(last) == 1 else f"{len(last)} lines"
    return [f"Last {which} of stderr:", *(f"  {line}".rstrip() for line in last)] if last else []


def describe_restarts(verdict: Verdict) -> str:
    """What the rounds before failed of, and why there is no other."""
    lines = []
    if count := len(verdict.restart_causes):
        times = "once" if count == 1 else f"{count} times"
        lines.append(f"\nRestarted {times}, after:")
        lines += [f"  {f.describe()}" for f in verdict.restart_causes[-_OTHERS_SHOWN:]]
    lines += filter(None, [exclusions(verdict)])
    if verdict.note:
        lines.append(f"\n{verdict.note}")
    return "\n".join(lines)


def exclusions(verdict: Verdict) -> str:
    """Which hosts were done without, and why."""
    return "\n".join(["", *(f"{one.describe()}." for one in verdict.excluded)])


def add_note(error: BaseException, note: str) -> None:
    """Add a note, even to an exception whose class does not want any attribute set."""
    notes = [*getattr(error, "__notes__", ()), note]
    try:
        object.__setattr__(error, "__notes__", notes)
    except (AttributeError, TypeError):
        vars(error)["__notes__"] = notes


def _start_timeout(verdict: Verdict, timeout: float, waits: Mapping[str, str]) -> StartTimeout:
    missing = verdict.missing or tuple(waits)
    lines = [f"{host}: {wait}" for host, wait in waits.items()]
    if len(lines) > _OTHERS_SHOWN:
        lines[_OTHERS_SHOWN:] = [f"and {len(lines) - _OTHERS_SHOWN} more"]
    said = "\n  ".join(lines) or f"no response from {', '.join(missing) or 'the workers'}"
    return StartTimeout(
        f"timed out after {timeout:g} s waiting for all workers to start:\n  {said}\n"
        "Increase start_timeout to wait longer.",
        timeout=timeout,
        missing=missing,
    )


def describe_left(hosts: Sequence[str], given_up: Sequence[str] = ()) -> str:
    """What is known to be left where; that nothing is, only where it was seen."""
    if hosts:
        names = ", ".join(hosts)
        return f"{names} did not answer: processes may be left there (check: pgrep -fa phalanx:)"
    if given_up:
        return f"gave up the login to {', '.join(dict.fromkeys(given_up))}"
    return "nothing is left running"


def _lost(
    cause: Failure,
    others: Sequence[Failure],
    members: tuple[Member, ...],
    running: Collection[int],
    cut_off: Collection[int],
) -> LaunchError:
    detail = cause.outcome.detail
    if cause.agent not in running:
        lost = [f for f in (cause, *others) if f.outcome.kind is Ended.LOST]
        failed = sorted((f for f in lost if f.agent not in running), key=lambda f: f.agent)
        return not_started(
            {f.hostname: f.outcome.detail for f in failed},
            {f.hostname for f in failed if f.agent in cut_off},
        )
    ranks = next((m.ranks for m in members if cause.outcome.rank in m.ranks), range(0))
    count = len(members) - 1
    rest = f" The other {count} agents were stopped." if count > 1 else ""
    if count == 1:
        rest = " The other agent was stopped."
    return AgentLost(
        f"lost the agent on {cause.hostname}: {detail.rstrip('.')}.{rest}",
        hostname=cause.hostname,
        ranks=tuple(ranks),
    )


def _no_result(cause: Failure) -> ResultError:
    exception = cause.outcome.exception
    assert exception is not None
    return ResultError(
        f"rank {cause.outcome.rank} on {cause.hostname} returned a {exception.type_name}, which "
        f"cannot be sent back: {exception.message}",
        rank=cause.outcome.rank,
        hostname=cause.hostname,
        type_name=exception.type_name,
    )


def _raised(cause: Failure, log_files: Mapping[int, Path]) -> WorkerFailed:
    outcome, exception = cause.outcome, cause.outcome.exception
    assert exception is not None
    message = f": {exception.message}" if exception.message else ""
    return WorkerFailed(
        f"rank {outcome.rank} on {cause.hostname} raised {exception.type_name}{message}",
        rank=outcome.rank,
        hostname=cause.hostname,
        pid=outcome.pid,
        type_name=exception.type_name,
        worker_traceback=exception.traceback,
        log_file=_log_file(outcome.rank, log_files),
    )


def _who(cause: Failure) -> str:
    """The worker; of one whose start was never heard of, there is no process to name."""
    pid = f" (pid {cause.outcome.pid})" if cause.outcome.pid is not None else ""
    return f"rank {cause.outcome.rank} on {cause.hostname}{pid}"


def _ended(cause: Failure, log_files: Mapping[int, Path]) -> WorkerFailed:
    outcome = cause.outcome
    what = outcome.describe()
    if outcome.kind is Ended.EXITED and outcome.code == 0:
        what += " before its function returned"
    lines = [f"{_who(cause)} {what}.", *_last_lines(outcome.stderr)]
    log_file = _log_file(outcome.rank, log_files)
    if log_file is not None:
        lines.append(f"Full log: {log_file}")
    return WorkerFailed(
        "\n".join(lines),
        rank=outcome.rank,
        hostname=cause.hostname,
        pid=outcome.pid,
        exit_code=outcome.code,
        signal=None if outcome.signal is None else signal_name(outcome.signal),
        log_file=log_file,
    )


def _hung(cause: Failure, log_files: Mapping[int, Path]) -> WorkerFailed:
    outcome, log_file = cause.outcome, _log_file(cause.outcome.rank, log_files)
    lines = [cause.describe(), *_trace(cause)]
    if log_file is not None:
        lines += ["", f"Full log: {log_file}"]
    return WorkerFailed(
        "\n".join(lines),
        rank=outcome.rank,
        hostname=cause.hostname,
        pid=outcome.pid,
        signal=None if outcome.signal is None else signal_name(outcome.signal),
        worker_traceback=None if outcome.exception is None else outcome.exception.traceback,
        log_file=log_file,
    )


def _where(
    cause: Failure, log_files: Mapping[int, Path], error: BaseException, shown: TraceShown
) -> str:
    outcome, exception = cause.outcome, cause.outcome.exception
    assert exception is not None
    log_file = _log_file(outcome.rank, log_files)
    lines = [f"\nraised by rank {outcome.rank} on {cause.hostname} after {outcome.seconds:.1f} s"]
    text = exception.traceback.rstrip()
    if isinstance(error, NoTerminal):
        text = text.removesuffix(str(error)).rstrip(": ")  # it is long, and is said above
    if shown is TraceShown.WITHOUT_ERROR:
        text = text.removesuffix("".join(traceback.format_exception_only(error)).rstrip()).rstrip()
    if shown is TraceShown.ABOVE:
        lines[0] += " (traceback above)"
    elif (trace := text.splitlines())[1:]:  # not only what it is, as said above
        lines[0] += ":"
        lines += ["", *(f"  {line}" for line in with_source(trace))]
    if log_file is not None:
        lines += ["", f"Full log: {log_file}"]
    return "\n".join(lines)


def _is_source(path: str) -> bool:
    """It can be read here: the name came from elsewhere, and may be that of a pipe or a device."""
    if path in linecache.cache:
        return True
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return False
    return path.endswith(".py") and stat.S_ISREG(found.st_mode) and found.st_size <= _LONGEST_SOURCE


def with_source(lines: Sequence[str]) -> list[str]:
    """Fill in the lines of code that a worker could not know: those of a notebook's cells."""
    complete: list[str] = []
    for line, after in itertools.pairwise((*lines, "")):
        complete.append(line)
        location = re.fullmatch(r'(\s*)File "(.+)", line (\d{1,9}), in .*', line)
        if (
            location is not None
            and _is_source(location[2])
            and not after.startswith(location[1] + "  ")
        ):
            code = linecache.getline(location[2], int(location[3])).strip()
            if code:
                complete.append(f"{location[1]}  {code}")
    return complete


def _is_lost_with(cause: Failure, other: Failure) -> bool:
    """With the same agent."""
    both_lost = cause.outcome.kind is other.outcome.kind is Ended.LOST
    return both_lost and cause.agent == other.agent


def _others(
    cause: Failure,
    others: tuple[Failure, ...],
    returned: tuple[int, ...],
    stopped_at: Mapping[int, RankStacks],
    *,
    had_workers: bool = True,
) -> str:
    """One line for each other rank that failed by itself; those we stopped are only counted, unless
    it is known where they were.

    Ranks that had returned are named where they explain a peer that was missed.
    """
    own = [f for f in others if not f.consequence]
    along = [f for f in own if _is_lost_with(cause, f)]
    own = [f for f in own if not _is_lost_with(cause, f)]
    lacking = [f for f in own if _lacks(f) and _lacks(f) == _lacks(cause)]
    own = [f for f in own if f not in lacking]
    gave_up = _gave_up(others)
    missed = _missed(cause, others, stopped_at)
    stopped = len(others) - len(own) - len(along) - len(lacking) - len(gave_up) - len(missed)
    lines = [f"  {f.describe()}" for f in sorted(own, key=lambda f: f.outcome.rank)[:_OTHERS_SHOWN]]
    if len(own) > _OTHERS_SHOWN:
        lines.append(f"  and {len(own) - _OTHERS_SHOWN} more")
    if lines:
        lines.insert(0, "\nAlso failed later:")
    if lacking:
        ranks = in_short(sorted(f.outcome.rank for f in lacking))
        hosts = ", ".join(dict.fromkeys(f.hostname for f in lacking))
        lines.append(f"\n{_lacks(cause)} for {ranks} on {hosts} either.")
    if along and had_workers:
        ranks = in_short(sorted(f.outcome.rank for f in (cause, *along)))
        text = f"{ranks} on {cause.hostname} were lost with it."
        lines.append(f"\n{text[:1].upper()}{text[1:]}")
    if missed:
        lines += ["", *describe_stopped(missed)]
    if gave_up:
        lines.append(f"\n{in_short(gave_up)} gave up as well.")
    if stopped:
        workers = "worker was" if stopped == 1 else "workers were"
        lines.append(f"\n{stopped} other {workers} stopped.")
    exception = cause.outcome.exception
    if returned and exception is not None and exception.communication:
        some = in_short(sorted(returned)[:_OTHERS_SHOWN])
        they = "it" if len(returned) == 1 else "they"
        text = f"{some} had already returned, so {they} cannot join the collective."
        lines.append(f"\n{text[:1].upper()}{text[1:]}")
    return "\n".join(lines)


def _lacks(failure: Failure) -> str:
    """Which package a host did not have: what to do about it is said once."""
    exception = failure.outcome.exception
    found = re.match(r"No module named '\w+'", exception.message) if exception else None
    return found[0] if found else ""


def _gave_up(others: Collection[Failure]) -> list[int]:
    """Those that had given up waiting when they were told to stop."""
    return [f.outcome.rank for f in others if f.consequence and misses_others(f.outcome)]


def _missed(
    cause: Failure, others: Collection[Failure], stopped_at: Mapping[int, RankStacks]
) -> dict[int, RankStacks]:
    """Where those were that the cause may have waited for."""
    if not misses_others(cause.outcome):
        return {}  # it is known why the others were missed
    ranks = {f.outcome.rank for f in others if f.consequence} & stopped_at.keys()
    return {rank: stopped_at[rank] for rank in sorted(ranks - {*_gave_up(others)})}


def _log_file(rank: int, log_files: Mapping[int, Path]) -> str | None:
    path = log_files.get(rank)
    return None if path is None else str(path)
