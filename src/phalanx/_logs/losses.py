"""Output that a place could not take: counted there, marked there, and never passed over.

A full disk is an error; a pipe whose reader has left, or a terminal that was closed, is not.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import stat
import time
from collections.abc import Iterable

_LEFT = (errno.EPIPE, errno.ECONNRESET, errno.ESHUTDOWN, errno.ENOTCONN)
"""What a pipe or socket says whose reader has left."""


class Loss:
    """How much one place could not take, and why. It may take what comes later."""

    def __init__(self, place: str) -> None:
        """Nothing is lost."""
        self.place = place
        self.reason = ""
        self.size = 0
        self._missing = 0

    def add(self, size: int, error: BaseException) -> None:
        """So many bytes could not be written."""
        self.reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        self.size += size
        self._missing += size

    def __bool__(self) -> bool:
        """Something is lost."""
        return bool(self.reason)

    def mark(self) -> bytes:
        """What to write before what comes next: how much is missing there, if anything is."""
        if not self._missing:
            return b""
        return f"\n[phalanx: {self._missing} bytes missing: {self.reason}]\n".encode()

    def close_gap(self) -> None:
        """The mark was written."""
        self._missing = 0

    def forget(self) -> None:
        """Begin anew."""
        self.reason = ""
        self.size = self._missing = 0


def cut_on_host(rank: int | None, hostname: str) -> Loss:
    """What a worker's host had no room for; how much that was is not known."""
    loss = Loss(f"the temporary files of rank {rank} on {hostname}")
    loss.add(0, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    return loss


def describe(losses: Iterable[Loss], shown: int = 3) -> str:
    """What is lost where, in one sentence."""
    losses = list(losses)
    texts = [f"{loss.size or 'some'} bytes to {loss.place} ({loss.reason})" for loss in losses]
    more = [f"and to {len(losses) - shown} other places"] if len(losses) > shown else []
    return f"output could not be written: {', '.join(texts[:shown] + more)}"


def reader_has_left(error: OSError, number: int) -> bool:
    """A write has failed because nobody is there to read any more, not for lack of room."""
    if error.errno == errno.EIO:  # a terminal that was closed; on a disk it is an error
        try:
            return stat.S_ISCHR(os.fstat(number).st_mode)
        except OSError:
            return False
    return error.errno in _LEFT


class StandardStream:
    """Our own stdout or stderr, written so that a reader that does not read can be given up."""

    def __init__(self, place: str) -> None:
        """Wait as long as it takes."""
        self.loss = Loss(place)
        self._patience = math.inf
        self._give_up_at = math.inf
        """By the monotonic clock."""
        self.is_gone = False
        """Nobody reads it any more."""
        self.is_given_up = False

    def give_up(self, after: float) -> None:
        """Wait no longer than this for who reads nothing, from now on.

        A terminal has so long for all that is left: nobody reads it that fast. What goes to a file
        or a program is wanted.
        """
        self._patience, self._give_up_at = after, time.monotonic() + after

    def write(self, number: int, data: bytes) -> None:
        """Write all of it. What a full disk does not take is counted."""
        rest = memoryview(self.loss.mark() + data)
        poll = select.poll()
        poll.register(number, select.POLLOUT)
        try:
            # As much as a pipe that can be written takes without blocking; a file takes all.
            step = len(rest) if stat.S_ISREG(os.fstat(number).st_mode) else select.PIPE_BUF
            is_terminal = os.isatty(number)
            while rest:
                if time.monotonic() > self._give_up_at and (is_terminal or not poll.poll(0)):
                    self.is_gone = self.is_given_up = True
                    return
                if not poll.poll(100):
                    continue
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(number, rest[:step]) :]
                if math.isfinite(self._patience) and not is_terminal:
                    self._give_up_at = time.monotonic() + self._patience
        except OSError as error:
            self.fail(number, min(len(rest), len(data)), error)
        else:
            self.loss.close_gap()

    def fail(self, number: int, size: int, error: OSError) -> None:
        """So many bytes cannot be written: nobody wants them, or they are lost."""
        if reader_has_left(error, number):
            self.is_gone = True
        else:
            self.loss.add(size, error)
