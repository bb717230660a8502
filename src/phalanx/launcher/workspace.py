"""The user's project: which directory it is, which files are sent, and how they are named.

In a git repository: what is tracked, or neither tracked nor ignored. Elsewhere: everything, but for
what nobody wants sent. `.phalanxignore` takes more out, in the syntax of `.gitignore`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx import wire
from phalanx.agent.project import Entry, pack
from phalanx.errors import ConfigError, LaunchError
from phalanx.logs import logger

LIMIT = 256 << 20
"""How many bytes a project may have."""
_FILES_LIMIT = 50_000
_LARGEST_SHOWN = 5

IGNORE_FILE = ".phalanxignore"
_NEVER = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".ipynb_checkpoints"})
_TOKEN = ".phalanx-"  # noqa: S105 no secret
_CACHES = frozenset({".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox", ".nox", ".hypothesis"})


@dataclass(frozen=True)
class Workspace:
    """A project that may have to be sent."""

    root: str
    only: tuple[str, ...] | None = None
    """These files alone, where the directory is not one that is a project's."""
    without: str | None = None
    """A directory that is left out: that of the launch's logs."""

    def manifest(self) -> Manifest:
        """List and read the files. Raises `LaunchError` when there is too much."""
        entries: list[Entry] = []
        sources: dict[str, str] = {}
        found = list(self._files())
        _check_size(self.root, found)
        for path, status in found:
            full = os.path.join(self.root, path)
            mode = stat.S_IMODE(status.st_mode) & 0o777
            try:
                if stat.S_ISLNK(status.st_mode):
                    entries.append(Entry(path, mode, 0, link=os.readlink(full)))
                    continue
                digest = _digest(full)
            except OSError as error:
                logger.warning("phalanx: %s is not sent: %s", full, error.strerror)
                continue
            entries.append(Entry(path, mode, status.st_size, digest))
            sources[digest] = full
        data = pack(entries)
        sizes = {entry.digest: entry.size for entry in entries}
        return Manifest(hashlib.sha256(data).hexdigest(), data, sources, sizes)

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        listed = self.only if self.only is not None else _listed(self.root)
        ignored = _ignored(self.root)
        for path in sorted(listed):
            full = os.path.join(self.root, path)
            if self.without is not None and _is_within(full, self.without):
                continue
            if ignored(path) or os.path.basename(path).startswith(_TOKEN):
                continue
            with contextlib.suppress(OSError):  # tracked, and removed
                status = os.lstat(full)
                if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                    yield path, status


@dataclass(frozen=True)
class Manifest:
    """The list of a project's files as it travels, and where each is, by its digest."""

    digest: str
    data: bytes
    sources: dict[str, str]
    sizes: dict[str, int]

    def pieces(self, digest: str) -> Iterator[wire.Piece]:
        """The frames that carry the list, or a file. Raises `LaunchError` if it has changed."""
        if digest == self.digest:
            yield from _pieces(digest, len(self.data), [self.data])
            return
        path = self.sources[digest]
        seen = hashlib.sha256()

        def blocks() -> Iterator[bytes]:
            with open(path, "rb", buffering=0) as file:
                while data := file.read(wire.PIECE):
                    seen.update(data)
                    yield data

        try:
            yield from _pieces(digest, self.sizes[digest], blocks())
        except OSError as error:
            raise LaunchError(f"{path} cannot be sent: {error.strerror}") from None
        if seen.hexdigest() != digest:
            raise LaunchError(f"{path} was changed while it was sent. Launch again.")


def _pieces(digest: str, total: int, blocks: Iterable[bytes]) -> Iterator[wire.Piece]:
    offset = 0
    for block in blocks:
        yield wire.Piece(key=digest, offset=offset, total=total, data=block)
        offset += len(block)


def find(
    workspace: object, cwd: str | None, main_file: str | None, files: Collection[str]
) -> Workspace | None:
    """The project that `workspace` means; None for nothing. Raises `ConfigError`."""
    if workspace is None:
        return None
    if workspace != "auto":
        root = os.path.abspath(os.path.expanduser(str(workspace)))
        if not os.path.isdir(root):
            raise ConfigError(
                f'workspace={workspace!r} is not a directory. Give one, "auto" or None.'
            )
        return Workspace(root)
    start = cwd
    if main_file is not None and not _is_within(main_file, cwd):
        start = os.path.dirname(main_file)
    if start is None:
        return None
    root = _repository(start) or start
    if root in _too_wide():
        # A home directory is nobody's project: only what the function was seen to import.
        own = [os.path.relpath(file, root) for file in files if _is_within(file, root)]
        return Workspace(root, only=tuple(own))
    return Workspace(root)


def _is_within(path: str, directory: str | None) -> bool:
    return directory is not None and path.startswith(directory.rstrip(os.sep) + os.sep)


def _too_wide() -> set[str]:
    places = {os.sep, "/home", "/root", "/tmp", "/var/tmp", tempfile.gettempdir()}  # noqa: S108 not used
    return {*places, os.path.expanduser("~")}


def _repository(directory: str) -> str | None:
    """The root of the git repository that a directory is in."""
    place = Path(directory)
    for parent in (place, *place.parents):
        if (parent / ".git").exists():
            return str(parent)
    return None


# ── files ─────────────────────────────────────────────────────────────────────


def _listed(root: str) -> set[str]:
    if os.path.exists(os.path.join(root, ".git")) or _repository(root):
        listed = _ask_git(root)
        if listed is not None:
            return listed
    return set(_walk(root))


def _ask_git(root: str) -> set[str] | None:
    """What git knows of, and what it does not ignore; None where git cannot be asked."""
    command = ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        logger.warning("phalanx: git cannot list %s, so all files are taken: %s", root, said)
        return None
    found: set[str] = set()
    for raw in done.stdout.split(b"\0"):
        path = os.fsdecode(raw)
        full = os.path.join(root, path)
        if path and os.path.isdir(full) and not os.path.islink(full):
            inner = _ask_git(full) if os.path.exists(os.path.join(full, ".git")) else None
            found |= {os.path.join(path, name) for name in inner or ()}
        elif path:
            found.add(path)
    return found


def _walk(root: str) -> Iterator[str]:
    count = 0
    for place, directories, files in os.walk(root):
        directories[:] = [
            name
            for name in directories
            if name not in _NEVER
            and name not in _CACHES
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
            and not os.path.islink(os.path.join(place, name))
        ]
        links = [n for n in os.listdir(place) if os.path.islink(os.path.join(place, n))]
        for name in {*files, *links}:
            count += 1
            if count > _FILES_LIMIT:
                raise LaunchError(
                    f"the project in {root} has more than {_FILES_LIMIT} files. Name its directory "
                    f"with workspace=..., or leave some out in {IGNORE_FILE}."
                )
            yield os.path.relpath(os.path.join(place, name), root)


class _ignored:  # noqa: N801 asked like a function
    """Whether `.phalanxignore` leaves a path out."""

    def __init__(self, root: str) -> None:
        self._spec = None
        with contextlib.suppress(OSError), open(os.path.join(root, IGNORE_FILE)) as file:
            import pathspec

            self._spec = pathspec.PathSpec.from_lines("gitignore", file)

    def __call__(self, path: str) -> bool:
        return self._spec is not None and self._spec.match_file(path)


def _check_size(root: str, found: Collection[tuple[str, os.stat_result]]) -> None:
    total = sum(status.st_size for _, status in found)
    if total <= LIMIT:
        return
    largest = sorted(found, key=lambda item: -item[1].st_size)[:_LARGEST_SHOWN]
    lines = [f"  {status.st_size / (1 << 20):8.1f} MiB  {path}" for path, status in largest]
    raise LaunchError(
        f"the project in {root} has {total / (1 << 20):.0f} MiB; at most {LIMIT >> 20} are sent. "
        "The largest files:\n" + "\n".join(lines) + f"\nLeave some out in {IGNORE_FILE} (as in "
        ".gitignore), name another directory with workspace=..., or send nothing: workspace=None."
    )


def _digest(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ── is it shared? ─────────────────────────────────────────────────────────────


class Token:
    """A file in the project's directory for a moment: where it is seen, the directory is shared."""

    def __init__(self, root: str) -> None:
        """A name that nothing has; `create` makes the file."""
        self.name = f"{_TOKEN}{secrets.token_hex(8)}"
        self._path = os.path.join(root, self.name)

    def create(self) -> None:
        """Make the file. Where that cannot be, it is seen nowhere, and the project is sent."""
        with contextlib.suppress(OSError), open(self._path, "x") as file:
            file.write(self.name)

    def remove(self) -> None:
        """Remove it; idempotent."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
