"""Processes in sessions of their own, which outlive the one that starts them."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from phalanx._core.environment import users
from phalanx._core.ranks import RANK_VARIABLES
from phalanx._system import own_process
from phalanx._system.processes import close_from, reset_signals, set_title, wake_with_parent

_FIRST_STEPS = 5.0
"""Seconds for a fork to be known by its title, unless somebody has stopped it."""


def spawn_session(command: list[str], file_actions: Sequence[tuple[Any, ...]]) -> int:
    """Start a program in a session of its own, with default signals; gives its pid.

    It has the user's environment: a worker's own variables are not those of what it starts.
    """
    return os.posix_spawn(
        command[0],
        command,
        {k: v for k, v in users(os.environ).items() if k not in RANK_VARIABLES},
        setsid=True,
        setsigmask=(),
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        file_actions=file_actions,
    )


def can_fork_session() -> bool:
    """A fork of this process would do as well as a new one: see `fork_session`.

    Not of a program of the user's: handlers of its logs, whose descriptors would be others' by
    now, what it has put in place of Python's functions, its hooks at forks and its secrets would go
    on for as long as the fork does. Nor with a second thread: the fork has none that could release
    its locks.
    """
    environ = dict(os.environ)
    if users(environ) != environ or not RANK_VARIABLES.isdisjoint(environ):
        return False
    return own_process.is_ours() and len(os.listdir("/proc/self/task")) == 1


def fork_session(run: Callable[[], object], title: str, log: str) -> int:
    """Start a fork in a session of its own, which has loaded already what it needs; gives its pid.

    It is known by its title, to whoever ends what we leave behind, before this returns. `run` finds
    default signals, and no descriptors but the standard ones, of which the output goes to the end
    of the file `log`; so does what it raises.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    has_title, held = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _run_session(run, title, log)
        os.close(held)
        held = -1
        select.select([has_title], [], [], _FIRST_STEPS)  # it closes its end then
    finally:
        os.close(has_title)
        if held != -1:
            os.close(held)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _run_session(run: Callable[[], object], title: str, log: str) -> NoReturn:
    code = 1
    _kept = sys.stdin, sys.stdout, sys.stderr  # what they have yet to write is not ours to write
    try:
        gc.freeze()  # nor is it ours to close descriptors whose numbers mean others now
        os.setsid()
        with contextlib.suppress(OSError):  # of too few descriptors
            set_title(title)
        wake_with_parent()
        signal.set_wakeup_fd(-1)
        faulthandler.disable()
        sys.settrace(None)
        sys.setprofile(None)
        _replace_streams(log)
        sys.excepthook = sys.__excepthook__
        reset_signals()
        run()
        code = 0
    except BaseException:  # noqa: BLE001 there is nobody else to hear of it
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _replace_streams(log: str) -> None:
    close_from(3)  # there may be few
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, descriptor in enumerate((null, output, output)):
        os.dup2(descriptor, number)
        os.set_inheritable(number, True)  # also if it was that number already
    close_from(3)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)
