"""A real terminal for a command, and what it shows."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time


class Terminal:
    """Runs a command under a pseudo-terminal."""

    def __init__(self, *command, width=100, **environ):
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", **environ})
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self.raw = b""

    def wait_for(self, text, timeout=30):
        """Read until something was shown."""
        limit = time.monotonic() + timeout
        while text.encode() not in self.raw:
            if not self._read(limit):
                raise AssertionError(f"never shown: {text!r} in {self.raw!r}")

    def _read(self, limit):
        left = limit - time.monotonic()
        if left <= 0 or not select.select([self.descriptor], [], [], left)[0]:
            return False
        try:
            data = os.read(self.descriptor, 1 << 16)
        except OSError:
            return False
        self.raw += data
        return bool(data)

    def type(self, text):
        os.write(self.descriptor, text.encode())

    def finish(self, timeout=60):
        """Read to the end; gives the exit code."""
        limit = time.monotonic() + timeout
        while self._read(limit):
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(status)

    @property
    def lines(self):
        """What is left on the screen: erased lines are gone, as are colours."""
        shown = []
        for line in self.raw.decode("utf-8", "replace").split("\n"):
            line = line.rstrip("\r")
            line = re.sub(r"\x1b\[[0-9;]*m", "", line)
            line = line.rpartition("\r\x1b[2K")[2]
            shown.append(line.rpartition("\r")[2])
        return [line for line in shown if line]


def phalanx(*arguments, **kwargs):
    """Run `phalanx …` at a terminal."""
    return Terminal(sys.executable, "-m", "phalanx", *arguments, **kwargs)
