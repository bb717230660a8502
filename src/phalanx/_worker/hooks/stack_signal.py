"""Have this worker's stacks written into a file whenever it is sent a signal.

By `faulthandler`: in C, whatever the interpreter is doing. Who sends the signal looks first whether
it is caught, and whether the file is still open here: the program may have closed it, and its
number may be another file's by now.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal

SIGNAL = int(signal.SIGRTMAX) - 4
"""A real-time signal that nobody is known to use: 60 on Linux."""

FILE = "stacks"
"""The file in a rank's directory."""


def listen(directory: str) -> None:
    """From now on the signal has the stacks of all threads added to the file."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        number = os.open(os.path.join(directory, FILE), flags, 0o600)
        faulthandler.register(SIGNAL, file=number, all_threads=True)
