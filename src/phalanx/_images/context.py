"""The files of a project that go into its image: which they are, their digest, their tar.

With a `.dockerignore`: what `docker build` would send, less caches and environments that nobody
wants. Without one: what hosts are sent (git's files). `.phalanxignore` takes out more.

The tar is made while it is sent, in pieces: it is never whole in memory or on disk.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from phalanx._images.dockerignore import DockerIgnore
from phalanx._launcher.project.project_files import ProjectDirectory, only_needed
from phalanx.errors import ConfigError, SchedulerError

DOCKERFILE = ".phalanx-Dockerfile"
"""The name in the tar of the Dockerfile that is used; it is not copied into the image."""
_IGNORE_FILE = ".dockerignore"
_PIECE = 1 << 20


@dataclass(frozen=True)
class ContextFile:
    """A file of the project, or a link."""

    path: str
    mode: int
    size: int
    mtime: int
    link: str | None = None


@dataclass(frozen=True)
class BuildContext:
    """The files, in the order of their names."""

    project: str
    files: tuple[ContextFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def digest(self) -> str:
        """Of paths, modes and bytes; reads all files. Raises `ConfigError`."""
        whole = hashlib.sha256()
        for file in self.files:
            content = hashlib.sha256()
            for piece in self._pieces(file):
                content.update(piece)
            _add(whole, file, content.digest())
        return whole.hexdigest()

    def read(self, file: ContextFile) -> bytes:
        """The bytes of one file. Raises `ConfigError`, `SchedulerError` where it has changed."""
        return b"".join(self._pieces(file))

    def tar(self, dockerfile: str, digest: str) -> Iterator[bytes]:
        """The tar that the engine builds from.

        Raises `SchedulerError` before its end where the files are not those of the digest any
        more: then the engine builds nothing.
        """
        yield from _text_member(DOCKERFILE, dockerfile)
        # The engine leaves out what this names, and would look for it anyway.
        yield from _text_member(_IGNORE_FILE, f"{DOCKERFILE}\n{_IGNORE_FILE}\n")
        whole = hashlib.sha256()
        for file in self.files:
            info = tarfile.TarInfo(file.path)
            info.mode, info.mtime, info.size = file.mode, file.mtime, file.size
            if file.link is not None:
                info.type, info.linkname = tarfile.SYMTYPE, file.link
            yield _header(info)
            content = hashlib.sha256()
            for piece in self._pieces(file):
                content.update(piece)
                yield piece
            yield bytes(-file.size % tarfile.BLOCKSIZE)
            _add(whole, file, content.digest())
        if whole.hexdigest() != digest:
            raise SchedulerError(
                f"files of {self.project} changed while the image was being built. Submit again."
            )
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _pieces(self, file: ContextFile) -> Iterator[bytes]:
        """As many bytes as the file had when it was listed."""
        if file.link is not None:
            return
        full = os.path.join(self.project, file.path)
        try:
            with open(full, "rb", buffering=0) as opened:
                left = file.size
                while left and (piece := opened.read(min(left, _PIECE))):
                    left -= len(piece)
                    yield piece
        except OSError as error:
            raise ConfigError(
                f"cannot read {full}: {error.strerror}. Exclude it in .phalanxignore, or change "
                "its permissions."
            ) from None
        if left:
            raise SchedulerError(f"{full} changed while it was read. Submit again.")


def list_files(
    project: str, dockerfile: str | None, only: Collection[str] | None = None
) -> BuildContext:
    """The files of a project. Raises `ConfigError`, `LaunchError` where there are too many.

    `only`: those of it that go, where it is nobody's project.
    """
    project = os.path.abspath(project)
    root = (
        ProjectDirectory(project, ignored_as=_docker_ignore(project, dockerfile))
        if only is None
        else only_needed(project, only)
    )
    files = []
    for path, status in root.files():
        if path == _IGNORE_FILE:
            continue
        is_link = stat.S_ISLNK(status.st_mode)
        files.append(
            ContextFile(
                path=path,
                mode=stat.S_IMODE(status.st_mode) & 0o777,
                size=0 if is_link else status.st_size,
                mtime=max(0, int(status.st_mtime)),
                link=os.readlink(os.path.join(project, path)) if is_link else None,
            )
        )
    return BuildContext(project, tuple(files))


def _docker_ignore(project: str, dockerfile: str | None) -> Callable[[str], bool] | None:
    """As the engine's own command has it, a Dockerfile may have a file of its own."""
    names = [_IGNORE_FILE] if dockerfile is None else [f"{dockerfile}{_IGNORE_FILE}", _IGNORE_FILE]
    for name in names:
        path = os.path.join(project, name)
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                return DockerIgnore(file.read())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from None
    return None


def _add(whole: hashlib._Hash, file: ContextFile, content: bytes) -> None:
    link = None if file.link is None else os.fsencode(file.link)
    mode = 0 if link is not None else file.mode
    whole.update(repr((os.fsencode(file.path), mode, link, content)).encode())


def _text_member(name: str, text: str) -> Iterator[bytes]:
    data = text.encode("utf-8", "surrogateescape")
    info = tarfile.TarInfo(name)
    info.size = len(data)
    yield _header(info)
    yield data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
