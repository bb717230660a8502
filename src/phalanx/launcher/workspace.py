"""The user's project: which directory it is, which files are sent, and how they are named.

In a git repository: what is tracked, or neither tracked nor ignored. Elsewhere: everything, but for
what nobody wants sent. `.phalanxignore` takes more out, in the syntax of `.gitignore`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx import wire
from phalanx.agent.project import Entry, pack
from phalanx.errors import ConfigError, LaunchError
from phalanx.launcher import tokens
from phalanx.logs import logger

LIMIT = 256 << 20
"""How many bytes a project may have."""
_FILES_LIMIT = 50_000
_LARGEST_SHOWN = 5

IGNORE_FILE = ".phalanxignore"
_NEVER = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".ipynb_checkpoints"})
_CACHES = frozenset({".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox", ".nox", ".hypothesis"})


@dataclass(frozen=True)
class Root:
    """A directory of the user's, and which of its files are sent."""

    path: str
    only: tuple[str, ...] | None = None
    """These files and directories within it alone."""

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """The files, by their paths within it. Raises `LaunchError` when there are too many."""
        ignored = _ignored(self.path)
        for path in sorted(self._listed()):
            full = os.path.join(self.path, path)
            if ignored(path) or os.path.basename(path).startswith(tokens.PREFIX):
                continue
            with contextlib.suppress(OSError):  # tracked, and removed
                status = os.lstat(full)
                if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                    yield path, status

    def _listed(self) -> set[str]:
        if self.only is None:
            return _listed(self.path)
        found: set[str] = set()
        for name in self.only:
            full = os.path.join(self.path, name)
            inner = _listed(full) if os.path.isdir(full) else None
            found |= {name} if inner is None else {os.path.join(name, path) for path in inner}
        return found


@dataclass(frozen=True)
class Workspace:
    """A project that may have to be sent: directories, by their names within it."""

    roots: dict[str, Root]
    without: str | None = None
    """A directory that is left out: that of the launch's logs."""

    def manifest(self) -> Manifest:
        """List and read the files. Raises `LaunchError` when there is too much."""
        entries: list[Entry] = []
        sources: dict[str, str] = {}
        found = [
            (os.path.join(name, path), os.path.join(root.path, path), status)
            for name, root in self.roots.items()
            for path, status in root.files()
        ]
        found = [f for f in found if not _is_within(f[1], self.without)]
        _check_size([(full, status.st_size) for _, full, status in found])
        for path, full, status in found:
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


def find(workspace: object, cwd: str | None, files: Collection[str]) -> Workspace | None:
    """The project that `workspace` means; None for nothing. Raises `ConfigError`.

    `files` are those of the user's that the function was seen to need.
    """
    if workspace is None:
        return None
    roots: list[Root] = []
    if workspace != "auto":
        path = os.path.abspath(os.path.expanduser(str(workspace)))
        if not os.path.isdir(path):
            raise ConfigError(
                f'workspace={workspace!r} is not a directory. Give one, "auto" or None.'
            )
        roots.append(Root(path))
    elif cwd is not None:
        path = _repository(cwd) or cwd
        # A home directory is nobody's project: only what the function was seen to need of it.
        wide = path in _too_wide()
        own = tuple(os.path.relpath(f, path) for f in files if _is_within(f, path))
        roots.append(Root(path, only=own if wide else None))
    outside: dict[str, dict[str, None]] = {}
    for file in files:
        if not any(_is_within(file, root.path) for root in roots):
            place = _import_place(file)
            top = os.path.relpath(file, place).split(os.sep)[0]
            outside.setdefault(place, {})[top] = None
    roots += [Root(place, only=tuple(tops)) for place, tops in outside.items()]
    named: dict[str, Root] = {}
    for root in roots:
        name = os.path.basename(root.path) or "root"
        while name in named:
            name += "_"
        named[name] = root
    return Workspace(named)


def _import_place(file: str) -> str:
    """The directory that a module's file is imported from: above its packages."""
    place = os.path.dirname(file)
    while os.path.exists(os.path.join(place, "__init__.py")) and place != os.sep:
        place = os.path.dirname(place)
    return place


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


def _check_size(files: Collection[tuple[str, int]]) -> None:
    total = sum(size for _, size in files)
    if total <= LIMIT:
        return
    largest = sorted(files, key=lambda item: -item[1])[:_LARGEST_SHOWN]
    lines = [f"  {size / (1 << 20):8.1f} MiB  {path}" for path, size in largest]
    raise LaunchError(
        f"the project has {total / (1 << 20):.0f} MiB; at most {LIMIT >> 20} are sent. The largest "
        "files:\n" + "\n".join(lines) + f"\nLeave some out in {IGNORE_FILE} (as in .gitignore), "
        "name another directory with workspace=..., or send nothing: workspace=None."
    )


def _digest(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
