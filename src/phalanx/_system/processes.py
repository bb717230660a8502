"""What is below this process, and how to end all of it. Linux only, no threads, no state."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import signal
import time
from collections.abc import Callable

from phalanx._core.signals import signal_name
from phalanx._system.libc import libc

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_WAKE_WITH_PARENT = (
    f"import ctypes; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {signal.SIGCONT:d}, 0, 0, 0); "
    "'a child of {parent}'; "
)
_CHILD_OF = re.compile(re.escape(_WAKE_WITH_PARENT).replace(r"\{parent\}", r"(\d+)").encode())

_BURIED = 5.0
"""Seconds in which a process that was killed is gone, unless it hangs in the kernel."""


def _prctl(option: int, value: int | bytes) -> None:
    if libc().prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_subreaper() -> None:
    """Have orphans below this process become its children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent's thread that started us ends; at once if it already has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def wake_with_parent() -> None:
    """Be continued, if stopped, when the parent's thread that started us ends.

    Nobody else would do so, and a stopped process does not notice that it is alone.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def first_words() -> str:
    """`wake_with_parent`, as the first words of a program that this process will start.

    Until they are spoken its command line says whose child it is, for `wake_orphans`.
    """
    return _WAKE_WITH_PARENT.format(parent=os.getpid())


def wake_orphans() -> None:
    """Continue what was stopped before its first words, if who started it has ended since.

    It then ends, or goes on, as it would have. Looks at every process of this machine.
    """
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                state, parent, *_ = file.read().rpartition(b")")[2].split(maxsplit=2)
            if state not in (b"T", b"t") or os.stat(f"/proc/{pid}").st_uid != os.geteuid():
                continue
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                child_of = _CHILD_OF.search(file.read())
            if child_of is not None and child_of[1] != parent:
                os.kill(int(pid), signal.SIGCONT)


def close_from(first: int) -> None:
    """Close all descriptors from this number on, however high the limit is."""
    try:
        last = max(map(int, os.listdir("/proc/self/fd")))
    except OSError:  # there is none left to look with
        last = 1 << 16
    os.closerange(first, last + 1)


def reset_signals() -> None:
    """Give every signal its default action and unblock it, whatever was inherited."""
    reset_actions()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def reset_actions() -> None:
    """Give every signal its default action; what is blocked stays so.

    What Python itself sets up (SIGPIPE ignored, SIGINT raising, the fault handler's signals) is as
    in a fresh interpreter.
    """
    for number in _handled() - _OF_PYTHON:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)


_FAULTS = {signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL}
_OF_PYTHON = frozenset(map(int, _FAULTS | {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT}))


def _handled() -> set[int]:
    """The signals that this process handles or ignores, also by what is not Python. Setting all
    others would cost a fork a page fault for each.
    """
    mask = 0
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith((b"SigIgn:", b"SigCgt:")):
                    mask |= int(line[7:], 16)
    except OSError:
        return set(map(int, signal.valid_signals()))
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def descendants(pid: int, sparing: Callable[[int], bool] | None = None) -> list[int]:
    """All processes below `pid`, parents before children; zombies included.

    Without those that `sparing` is true of, and what is below them.
    """
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children(queue.pop())
        if sparing is not None:
            below = [child for child in below if not sparing(child)]
        found += below
        queue += below
    return found


def children(pid: int) -> list[int]:
    """The processes that `pid` has started or adopted; zombies included."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            path = f"/proc/{pid}/task/{task}/children"
            with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
                found += map(int, file.readall().split())
    except OSError:
        return []
    return found


def start_time(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None when it is gone or a zombie.

    With the pid, and the boot, it names a process for good.
    """
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def is_stopped(pid: int) -> bool:
    """A signal or a debugger has stopped the process: it does nothing until it is continued."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in "Tt"


def is_zombie(pid: int) -> bool:
    """The process has ended, and its parent does not know."""
    fields = _stat(pid)
    return bool(fields) and fields[0] == "Z"


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; nothing when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


def session_of(pid: int) -> int | None:
    """The session id of a process, or None when it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def catches(pid: int, number: int) -> bool:
    """The process has a handler for this signal; to one that has none it could be death."""
    return in_mask(f"/proc/{pid}/status", "SigCgt", number)


def dies_of(pid: int, number: int) -> bool:
    """The process neither catches nor ignores this signal: one that exits in order after it was
    sent has not done so because of it.
    """
    path = f"/proc/{pid}/status"
    return not (in_mask(path, "SigCgt", number) or in_mask(path, "SigIgn", number))


def has_died(pid: int) -> bool:
    """A child has, and is not buried; it stays so."""
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def in_mask(path: str, mask: str, number: int) -> bool:
    """A signal is in one of the masks that the kernel shows of a process or a thread."""
    try:
        with open(path) as file:
            for line in file:
                if line.startswith(f"{mask}:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except OSError:
        pass
    return False


def state_of(pid: int) -> str | None:
    """What a process does, as the kernel has it (`S (sleeping)`); None if it is gone, or dead."""
    try:
        with open(f"/proc/{pid}/status") as file:
            state = next(line for line in file if line.startswith("State:")).split(None, 1)[1]
    except (OSError, StopIteration, IndexError):
        return None
    return None if state[0] in "ZX" else state.strip()


def continue_stopped(pid: int) -> None:
    """Continue a process that SIGSTOP has stopped; one that a debugger holds stays."""
    if (state_of(pid) or "").startswith("T"):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)


def waits_in_kernel(pid: int) -> str:
    """The kernel's function in which a process waits; empty where that is not known."""
    try:
        with open(f"/proc/{pid}/wchan") as file:
            function = file.read()
    except OSError:
        return ""
    return "" if function == "0" else function


def user_of(pid: int) -> int | None:
    """The user that files and sockets of a process belong to; None when it is gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next(int(line.split()[4]) for line in file if line.startswith("Uid:"))
    except (OSError, StopIteration, IndexError):
        return None


def send(pid: int, number: int) -> None:
    """Signal one process; that it is already gone is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def reap() -> bool:
    """Bury all children that have died, however they did; whether there is no other child."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return False
        except ChildProcessError:
            return True


def describe_status(status: int) -> str:
    """How a process ended, by its wait status."""
    code = os.waitstatus_to_exitcode(status)
    return f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"


def kill_descendants(
    reap: Callable[[], bool], sparing: Callable[[int], bool] | None = None
) -> None:
    """Kill everything below this process until nothing is left but what `sparing` is true of.

    Blocks until then. `reap` collects dead children, says whether that were all, and is called
    between the sweeps. Only a subreaper sees all of it: orphans, `setsid`ed ones too, are then its
    own children.
    """
    pause = 0.001
    while not reap() and (left := descendants(os.getpid(), sparing)):
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def kill_tree(pid: int, patience: float = _BURIED) -> bool:
    """Kill a subreaper and all that is below it; whether it was seen that nothing is left.

    A process that is stopped dies as well. Blocks for as long as that takes, or the patience: what
    hangs in the kernel cannot be killed. The caller makes sure that it is the process it means.
    """
    limit = time.monotonic() + patience
    send(pid, signal.SIGSTOP)  # or it might start something while what it has started is killed
    pause, empty = 0.001, 0
    while empty < 2:  # the kernel's list may be incomplete while it changes
        left = [below for below in descendants(pid) if start_time(below) is not None]
        empty = 0 if left else empty + 1
        for below in left:
            send(below, signal.SIGKILL)
        if left and time.monotonic() > limit:
            break
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    send(pid, signal.SIGKILL)
    while start_time(pid) is not None and time.monotonic() < limit:
        time.sleep(0.002)
    return not left and start_time(pid) is None


def set_title(title: str) -> None:
    """Show `title` in `ps` and `nvidia-smi`, cut to the length of our command line."""
    start, end = _command_line()
    length = end - start
    if length < 2:
        return
    text = title.encode("utf-8", "replace")[: length - 1]
    ctypes.memmove(start, text.ljust(length, b"\0"), length)
    with contextlib.suppress(OSError):
        _prctl(_PR_SET_NAME, _short(title).encode("utf-8", "replace"))


@functools.cache
def _command_line() -> tuple[int, int]:
    """Where the command line is in memory: in a fork, where it was."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[45]), int(fields[46])


def _short(title: str) -> str:
    """Fifteen characters of it, with the end. No spaces: Slurm, for one, loses count of them."""
    first, *rest = title.removeprefix("phalanx: ").split() or [""]
    end = "".join(f"-{word}" for word in rest)[-14:]
    return re.sub(r"[^\w.-]", "_", first[: 15 - len(end)], flags=re.ASCII) + end
