"""Follow the files that workers print into, and hand on what is new, in whole lines.

A worker writes into its files and is never held up. The reader decides the pace; what was handed on
is freed on disk, but for the end. Past `LOG_CAP` bytes a stream is no longer handed on: the rest is
counted, freed as well, and announced when it ends. That a full disk takes nothing more is told to
whoever writes; a program that a worker has started may pass over it, so gaps are looked for here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import time
from collections.abc import Container, Iterator

from phalanx._system.libc import libc
from phalanx._wire import LOG_CAP, LOG_CHUNK
from phalanx._worker.hooks.debugger import PROMPTING
from phalanx._worker.outcome import RAISED, is_exhausted, open_regular

KEPT = 64 << 10
OLD = 0.5
"""Seconds after which a line that was begun and not ended is handed on all the same."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK = 4096
_FULL = 16 << 10
"""Bytes of room at which a file system refuses some writes already."""
GAP = b"\n[phalanx: output missing: the disk of the temporary files was full]\n"


class OutputFile:
    """One file of one rank, read as it grows."""

    def __init__(self, path: str, rank: int, name: str, cap: int = LOG_CAP) -> None:
        """The file need not exist yet."""
        self.rank = rank
        self.name = name
        self._path = path
        self._prompting = os.path.join(os.path.dirname(path), PROMPTING)
        self._cap = cap
        self._file: int | None = None
        self._at = 0
        self._dropped = 0
        self._freed = 0
        self._partial = (0, 0.0)
        self.unfinished = False
        """A line too long to be held was handed on in part: its rest should come next."""
        self.is_cut = False
        """The disk was full where this ends, or ended: something that was written is missing."""

    def read(self, *, final: bool) -> bytes:
        """New whole lines, at most a chunk; a line without an end once it is old, or `final`.

        Progress bars end their lines with a carriage return: that counts as an end too. Raises
        `OSError` when the file cannot be opened though it may be there.
        """
        if self._file is None and not self.open():
            return b""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        self._look_for_gap(size)
        if size < self._at:
            self._at = self._freed = 0  # someone has opened /dev/stdout anew, and emptied it
        if self._at >= self._cap:
            self._drop(size)
            return self._marker() if final else b""
        data = os.pread(self._file, min(LOG_CHUNK, self._cap - self._at), self._at)
        full = len(data) == LOG_CHUNK
        last = final or self._at + len(data) >= self._cap
        old = not full and self._is_old(self._at + len(data))
        old = old or (0 < len(data) < LOG_CHUNK and os.path.exists(self._prompting))
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if cut and (full or not last):
            data = data[:cut]
        elif not (full or last or old):
            data = b""
        if data or last or old:
            self.unfinished = full and not cut
        self._at += len(data)
        return data

    def skip(self, size: int) -> None:
        """So much of it was handed on by another."""
        self._at = self._freed = size

    def free(self, on_its_way: int) -> None:
        """Give back the disk that what was handed on takes, but for the end of it.

        Of what was handed on so much may not have arrived.
        """
        start, end = self._freed, (self._at - max(KEPT, on_its_way)) & ~0xFFF
        if self._file is not None and end - start >= LOG_CHUNK:
            self._look_for_gap(os.fstat(self._file).st_size)  # while the disk is as it was
            self._allocate(_KEEP_SIZE | _PUNCH_HOLE, start, end - start)
            self._freed = end

    def _look_for_gap(self, size: int) -> None:
        """Find out whether writes have failed: one that finds no room has filled the last block."""
        if self._file is None or self.is_cut or not size or size % _BLOCK:
            return
        disk = os.fstatvfs(self._file)
        room = disk.f_bavail if os.geteuid() else disk.f_bfree
        self.is_cut = room * disk.f_frsize < _FULL

    def _is_old(self, size: int) -> bool:
        """The file has not grown beyond this for a while."""
        now = time.monotonic()
        if size != self._partial[0]:
            self._partial = (size, now)
        return now - self._partial[1] > OLD

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def open(self) -> bool:
        """Have the file open, if it is there. Raises `OSError` when it cannot be opened."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        try:
            number = os.open(self._path, flags)
        except OSError as error:
            if is_exhausted(error):
                raise
            return False
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):  # the worker has put something else there
            os.close(number)
            return False
        self._file = number
        if not self._at and not status.st_blocks and self.name == "stdout":
            # Room for a first block: a size of none would tell nothing of writes that failed.
            self._allocate(_KEEP_SIZE, 0, _BLOCK)
        return True

    def limit(self) -> None:
        """Give back the disk that is over the limit, though nobody takes what comes before it."""
        with contextlib.suppress(OSError):  # no descriptor: whoever reads it next makes room
            if self._file is not None or self.open():
                assert self._file is not None
                self._drop(os.fstat(self._file).st_size)

    def _drop(self, size: int) -> None:
        new = size - self._cap - self._dropped
        if new <= 0 or self._file is None:
            return
        self._allocate(_KEEP_SIZE | _PUNCH_HOLE, self._cap + self._dropped, new)
        self._dropped += new

    def _allocate(self, mode: int, start: int, size: int) -> None:
        libc().fallocate(self._file, mode, ctypes.c_int64(start), ctypes.c_int64(size))

    def _marker(self) -> bytes:
        if not self._dropped:
            return b""
        count, self._dropped = self._dropped, 0
        self._cap = self._at = self._at + count
        return f"\n[phalanx: {count} bytes left out: over the limit for one rank]\n".encode()


def tail(path: str, lines: int = 10, size: int = 8 << 10) -> str:
    """The last lines of a file, as text; empty when there is none."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        text = file.read(size).decode("utf-8", "replace")
        return "\n".join(text.rstrip("\n").splitlines()[-lines:])
    return ""


def streams(directory: str, ranks: range, records: Container[int] = ()) -> Iterator[OutputFile]:
    """The streams of these ranks, in the order in which they are looked at."""
    for rank in ranks:
        for name in ("stdout", "stderr", "records", RAISED):
            if name != "records" or rank in records:
                yield OutputFile(os.path.join(directory, str(rank), name), rank, name)
