"""A directory that files of another host are put into, and read from, without ever leaving it.

Directories below it are opened one by one and links are not followed: where a link leads is not
this directory's. A new file has its name only when all of it is there and its digest is right.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from phalanx._core.patterns import TEMPORARY, Patterns

_BLOCK = 1 << 20
_NEW = f"{TEMPORARY}new-"
_OLD = 3600.0
"""Seconds after which what a killed process has left of a new file is removed."""
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe has nobody at its other end
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class FoundFile:
    """A file within the directory."""

    path: str
    size: int
    state: tuple[int, ...]
    """Changes when the file does."""
    changed: int
    """When it was last changed, as no program can set it."""


class FileTree:
    """A directory."""

    def __init__(self, root: str) -> None:
        """Nothing is looked at yet."""
        self.root = root
        self._tidied: set[tuple[int, int]] = set()
        """Directories in which nothing is left of what killed processes began."""

    def files(
        self, patterns: Patterns, on_unread: Callable[[str, OSError], None] = lambda *_: None
    ) -> Iterator[FoundFile]:
        """The regular files that are meant. A link to one of them within the directory is that.

        `on_unread` is called with the directories that cannot be looked into.
        """
        for start in patterns.starts:
            top = os.path.join(self.root, start) if start else self.root
            if start and not os.path.isdir(top):
                yield from self.look(start, patterns)
            if os.path.realpath(top) != os.path.join(os.path.realpath(self.root), start).rstrip(
                "/"
            ):
                continue  # behind a link
            pending = [start]
            while pending:
                directory = pending.pop()
                try:
                    with os.scandir(os.path.join(self.root, directory)) as opened:
                        entries = list(opened)
                except (FileNotFoundError, NotADirectoryError):
                    continue  # a program has removed it meanwhile
                except OSError as error:
                    on_unread(directory, error)
                    continue
                for entry in entries:
                    path = os.path.join(directory, entry.name)
                    if not entry.is_dir(follow_symlinks=False):
                        yield from self.look(path, patterns)
                    elif entry.name != "__pycache__":
                        pending.append(path)

    def look(self, path: str, patterns: Patterns) -> Iterator[FoundFile]:
        """A file, if it is there and meant."""
        full = os.path.join(self.root, path)
        with contextlib.suppress(OSError):
            status = own = os.lstat(full)
            if stat.S_ISLNK(own.st_mode):
                if not self._leads_within(full):
                    return
                status = os.stat(full)
            if stat.S_ISREG(status.st_mode) and patterns.fits(path):
                changed = max(own.st_ctime_ns, status.st_ctime_ns)
                state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, changed)
                yield FoundFile(path, status.st_size, state, changed)

    def _leads_within(self, full: str) -> bool:
        root = os.path.realpath(self.root)
        return os.path.realpath(full).startswith(os.path.join(root, ""))

    def open(self, path: str) -> int:
        """A descriptor to read a regular file. Raises `OSError`."""
        full = os.path.join(self.root, path)
        if not self._leads_within(full):
            raise OSError(errno.EXDEV, "it leads out of the directory")
        number = os.open(full, _READING)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise OSError(errno.EINVAL, "it is not a regular file")
        return number

    def digest(self, path: str, on_block: Callable[[], None] = lambda: None) -> str:
        """The digest of a file's contents; `on_block` is called now and then. Raises `OSError`."""
        digest = hashlib.sha256()
        with open(self.open(path), "rb", buffering=0) as file:
            while data := file.read(_BLOCK):
                digest.update(data)
                on_block()
        return digest.hexdigest()

    def create(self, path: str, size: int) -> NewFile:
        """A file to be, of so many bytes; the directories to it are made. Raises `OSError`."""
        room = os.statvfs(self.root)
        if size > room.f_bavail * room.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        *parents, name = path.split("/")
        directory = self._open_directory(parents, make=True)
        try:
            self._tidy(directory)
            return NewFile(directory, name)
        except BaseException:
            os.close(directory)
            raise

    def put(self, path: str, data: bytes, digest: str) -> None:
        """A whole file at once, if it is what it should be. Raises `OSError`."""
        file = self.create(path, len(data))
        try:
            file.write(data)
            file.commit(digest)
        finally:
            file.close()

    def _tidy(self, directory: int) -> None:
        status = os.fstat(directory)
        if (status.st_dev, status.st_ino) in self._tidied:
            return
        self._tidied.add((status.st_dev, status.st_ino))
        for name in os.listdir(directory):
            if name.startswith(_NEW):
                with contextlib.suppress(OSError):
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if time.time() - status.st_mtime > _OLD:
                        os.unlink(name, dir_fd=directory)

    def remove(self, path: str) -> None:
        """Remove a file. Raises `OSError`."""
        *parents, name = path.split("/")
        number = self._open_directory(parents)
        try:
            os.unlink(name, dir_fd=number)
        finally:
            os.close(number)

    def _open_directory(self, names: list[str], *, make: bool = False) -> int:
        number = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in names:
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=number)
                inner = os.open(name, _DIRECTORY, dir_fd=number)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                message = f"{name} is a link, or not a directory"
                raise OSError(error.errno, message) from None
            finally:
                os.close(number)
            number = inner
        return number


class NewFile:
    """A file on its way to its place. May be used from several threads, one at a time."""

    def __init__(self, directory: int, name: str) -> None:
        """Owns the directory's descriptor once it is made. Raises `OSError`."""
        self._directory = directory
        self._name = name
        self._temporary = f"{_NEW}{secrets.token_hex(8)}"
        self._digest = hashlib.sha256()
        self._lock = threading.Lock()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._number = os.open(self._temporary, flags, 0o666, dir_fd=directory)

    def write(self, data: bytes) -> None:
        """Append. Raises `OSError`."""
        with self._lock:
            if self._number < 0:
                return  # it was given up
            self._digest.update(data)
            view = memoryview(data)
            while view:
                view = view[os.write(self._number, view) :]

    def commit(self, digest: str) -> None:
        """Put it in its place, if it is what it should be. Raises `OSError`."""
        with self._lock:
            if self._number < 0:
                return
            if self._digest.hexdigest() != digest:
                raise OSError(errno.EBADMSG, "it was changed or damaged on its way")
            with contextlib.suppress(FileNotFoundError):
                old = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
                if stat.S_ISREG(old.st_mode):
                    os.fchmod(self._number, old.st_mode & 0o666)
            os.fsync(self._number)  # some file systems say only now that they are full
            names = self._temporary, self._name
            os.rename(*names, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            self._temporary = ""

    def close(self) -> None:
        """Leave nothing behind unless it is in its place. Idempotent."""
        with self._lock:
            if self._number < 0:
                return
            os.close(self._number)
            self._number = -1
            if self._temporary:
                with contextlib.suppress(OSError):
                    os.unlink(self._temporary, dir_fd=self._directory)
            os.close(self._directory)
