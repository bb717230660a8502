"""Take the stacks of this host's workers: a signal, and what they write because of it.

Only to a process that catches it, is not stopped (it would come when it goes on), and has its file
open: what has taken over the pid of a worker that is gone has not. One that will be killed anyway
may be woken for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from phalanx._system import processes
from phalanx._wire import RankDump
from phalanx._worker.hooks import stack_signal

LIMIT = 64 << 10
"""The most that is sent home of one rank; a hundred threads come to more."""

_IS_STACKS = re.compile(rf"/phalanx-[^/]*/(?:.*/)?[0-9]{{1,9}}/{stack_signal.FILE}$")
"""Such a file is in the spool directory of an agent, in the directory of its rank."""
_PAUSE, _LONGEST = 0.002, 0.02


class WorkerBelow(NamedTuple):
    """A worker of a launch that another agent, below this one, has started."""

    rank: int
    pid: int
    path: str
    """The file that it writes its stacks to, in the directory of its rank."""


async def take(
    directory: str, pids: Mapping[int, int], seconds: float, *, wake: Collection[int] = ()
) -> tuple[RankDump, ...]:
    """The stacks of these ranks, or why there are none, in at most so many seconds.

    Those in `wake` are continued if they are stopped, until they have answered.
    """
    until = time.monotonic() + seconds
    paths = {rank: os.path.join(directory, str(rank), stack_signal.FILE) for rank in pids}
    taking = (
        _take_one(paths[rank], rank, pid, until, wake=rank in wake)
        for rank, pid in sorted(pids.items())
    )
    return tuple(await asyncio.gather(*taking))


async def take_of(workers: Iterable[WorkerBelow], seconds: float) -> tuple[RankDump, ...]:
    """The same of workers of launches that are below this host's own, in their order."""
    until = time.monotonic() + seconds
    taking = (_take_one(one.path, one.rank, one.pid, until) for one in workers)
    return tuple(await asyncio.gather(*taking))


def workers_below(pids: Iterable[int]) -> list[WorkerBelow]:
    """The workers of launches that are below these processes, on this host, by their ranks."""
    return sorted(one for pid in pids for one in _workers_below(pid))


def _workers_below(pid: int) -> Iterator[WorkerBelow]:
    """What workers have forked has their file open as well."""
    for child in processes.children(pid):
        if (path := _open_file_of(child)) and processes.catches(child, stack_signal.SIGNAL):
            yield WorkerBelow(int(os.path.basename(os.path.dirname(path))), child, path)
        else:
            yield from _workers_below(child)


def _open_file_of(pid: int) -> str:
    """The file that a worker, if the process is one, writes its stacks to."""
    return next((path for path in _open_files(pid) if _IS_STACKS.search(path)), "")


async def _take_one(
    path: str, rank: int, pid: int, until: float, *, wake: bool = False
) -> RankDump:
    stopped = _describe_stop(pid)
    if problem := ("" if wake else stopped) or _obstacle(pid, path):
        return RankDump(rank, pid, problem=problem)
    began = time.monotonic()
    try:
        os.truncate(path, 0)
        before = _threads_that_block(pid)
        os.kill(pid, stack_signal.SIGNAL)
        if stopped:
            os.kill(pid, signal.SIGCONT)
    except OSError as error:
        return RankDump(rank, pid, problem=str(error.strerror))
    pause = _PAUSE
    try:
        while not _has_written(pid, path, before):
            if time.monotonic() >= until:
                problem = stopped or _describe_silence(pid, time.monotonic() - began)
                return RankDump(rank, pid, problem=problem)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST)
    finally:
        if stopped:
            # It must not go on meanwhile, and beat, or write a checkpoint that nobody expects.
            processes.send(pid, signal.SIGSTOP)
    return RankDump(rank, pid, text=_read(path), problem=stopped)


def _describe_stop(pid: int) -> str:
    """That a process is stopped; empty if it is not."""
    match (processes.state_of(pid) or "")[:1]:
        case "T":
            return "it is stopped by a signal (state T)"
        case "t":
            return "it is stopped by a debugger (state t)"
    return ""


def _describe_silence(pid: int, seconds: float) -> str:
    """Why a process may not have answered in so many seconds."""
    state = processes.state_of(pid)
    if state is None:
        return "it has ended"
    if state[:1] == "D":
        function = processes.waits_in_kernel(pid)
        return f"it is stuck in the kernel (state D{f', in {function}' if function else ''})"
    return _describe_stop(pid) or f"no answer in {seconds:.1f} s ({state})"


def _obstacle(pid: int, path: str) -> str:
    """Why a process must not be asked; empty if it may be."""
    if processes.state_of(pid) is None:
        return "it has ended"
    if not processes.catches(pid, stack_signal.SIGNAL):
        return f"it does not handle signal {stack_signal.SIGNAL}: it is starting, or is not Python"
    if not _has_open(pid, path):
        return "it has closed the file for its stacks"
    return ""


def _has_open(pid: int, path: str) -> bool:
    return os.path.realpath(path) in _open_files(pid)


def _open_files(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{number}")


def _threads_that_block(pid: int) -> set[str]:
    """Those in which the signal is blocked: while it is handled, the one that handles it too."""
    found = set()
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            if processes.in_mask(f"/proc/{pid}/task/{task}/status", "SigBlk", stack_signal.SIGNAL):
                found.add(task)
    return found


def _has_written(pid: int, path: str, before: set[str]) -> bool:
    """The signal was taken, and nobody handles it any more."""
    with contextlib.suppress(OSError):
        if os.stat(path).st_size == 0:
            return False
        if processes.in_mask(f"/proc/{pid}/status", "ShdPnd", stack_signal.SIGNAL):
            return False
    return _threads_that_block(pid) <= before


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        data = file.read()
        if len(data) > LIMIT:  # the main thread comes last, and is what counts
            data = data[-LIMIT:]
        return data.decode("utf-8", "replace")
    return ""
