"""The user's project: which directory it is, which files are sent, and how they are named.

In a git repository: what is tracked, or neither tracked nor ignored. Elsewhere: everything, but for
what nobody wants sent. `.phalanxignore` takes more out, in the syntax of `.gitignore`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx import _wire as wire
from phalanx._agent.files.project_tree import ProjectFile, pack
from phalanx._launcher.project import shared_directories
from phalanx._logs import logger
from phalanx.errors import ConfigError, LaunchError

LIMIT = 256 << 20
"""How many bytes a project may have."""
_FILES_LIMIT = 50_000
_LARGEST_SHOWN = 5
_SETTLED = 10.0
"""Seconds after which a file is not taken to be still written to."""
_KEPT = 16 << 20
"""Files up to this size are kept in memory while they may change."""

IGNORE_FILE = ".phalanxignore"
_UNWANTED = frozenset(
    {".git", ".hg", ".svn", "__pycache__", "node_modules", ".ipynb_checkpoints", ".mypy_cache"}
    | {".ruff_cache", ".pytest_cache", ".tox", ".nox", ".hypothesis"}
)
"""Directories that nobody wants sent, unless they are tracked."""
_VENV = "pyvenv.cfg"
_LOG = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}-.+\.log")
"""The logs of launches."""


@dataclass(frozen=True)
class ProjectDirectory:
    """A directory of the user's, and which of its files are sent."""

    path: str
    only: tuple[str, ...] | None = None
    """These files and directories within it alone."""
    needed: tuple[str, ...] = ()
    """Files that are sent though git ignores them: the function was seen to need them."""
    is_outside: bool = False
    """It was found by what the function imports."""
    ignored_as: Callable[[str], bool] | None = None
    """Instead of git: whether a path is left out, or, where it ends in a slash, a directory."""

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """The files, by their paths within it. Raises `LaunchError` when there are too many."""
        ignored = _ignored(self.path, self.ignored_as)
        linked: dict[str, bool] = {"": False}
        above = {str(parent) for path in self.needed for parent in Path(path).parents}
        for path in sorted({*self._listed(ignored), *self.needed}):
            full = os.path.join(self.path, path)
            if ignored(path) or os.path.basename(path).startswith(shared_directories.PREFIX):
                continue
            if path not in self.needed and self._is_beyond_a_link(os.path.dirname(path), linked):
                continue
            if path in above:
                continue  # a link to a directory of which files are needed: it becomes one there
            with contextlib.suppress(OSError):  # tracked, and removed
                status = os.lstat(full)
                if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                    yield path, status

    def _is_beyond_a_link(self, directory: str, known: dict[str, bool]) -> bool:
        """The link itself is sent: what is behind it is somewhere else."""
        if directory not in known:
            here = os.path.islink(os.path.join(self.path, directory))
            known[directory] = here or self._is_beyond_a_link(os.path.dirname(directory), known)
        return known[directory]

    def _listed(self, ignored: _ignored) -> set[str]:
        if self.ignored_as is not None:
            return set(_walk(self.path, ignored))
        if self.only is None:
            return _listed(self.path, ignored)
        found: set[str] = set()
        for name in self.only:
            full = os.path.join(self.path, name)
            inner = _listed(full, ignored) if os.path.isdir(full) else None
            found |= {name} if inner is None else {os.path.join(name, path) for path in inner}
        return found


@dataclass(frozen=True)
class Project:
    """A project that may have to be sent: directories, by their names within it."""

    roots: dict[str, ProjectDirectory]
    without: str | None = None
    """A directory that is left out: that of the launch's logs."""

    def leaving_out(self, directory: str) -> Project:
        """Without a directory, unless that would be all of it."""
        inside = any(_is_within(directory, root.path) for root in self.roots.values())
        return dataclasses.replace(self, without=directory) if inside else self

    def manifest(self) -> Manifest:
        """List and read the files. Raises `LaunchError` when there is too much."""
        entries: list[ProjectFile] = []
        sources: dict[str, str | bytes] = {}
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
                    entries.append(ProjectFile(path, mode, 0, link=os.readlink(full)))
                    continue
                digest, size, content = _read(full)
            except OSError as error:
                logger.warning("phalanx: not sending %s: %s", full, error.strerror)
                continue
            entries.append(ProjectFile(path, mode, size, digest))
            sources[digest] = full if content is None else content
        data = pack(entries)
        sizes = {entry.digest: entry.size for entry in entries}
        return Manifest(hashlib.sha256(data).hexdigest(), data, sources, sizes)


@dataclass(frozen=True)
class Manifest:
    """The list of a project's files as it travels, and where each is, by its digest.

    Of a file that is just being written, such as another job's log, what was read is kept.
    """

    digest: str
    data: bytes
    sources: dict[str, str | bytes]
    sizes: dict[str, int]

    def pieces(self, digest: str) -> Iterator[wire.Piece]:
        """The frames that carry the list, or a file. Raises `LaunchError` if it has changed."""
        path = self.data if digest == self.digest else self.sources[digest]
        if isinstance(path, bytes):
            parts = (path[i : i + wire.PIECE] for i in range(0, len(path), wire.PIECE))
            yield from _pieces(digest, len(path), parts)
            return
        seen = hashlib.sha256()

        def blocks() -> Iterator[bytes]:
            with open(path, "rb", buffering=0) as file:
                while data := file.read(wire.PIECE):
                    seen.update(data)
                    yield data

        try:
            yield from _pieces(digest, self.sizes[digest], blocks())
        except OSError as error:
            raise LaunchError(f"cannot send {path}: {error.strerror}") from None
        if seen.hexdigest() != digest:
            raise LaunchError(f"{path} changed while it was being sent. Launch again.")


def _pieces(digest: str, total: int, blocks: Iterable[bytes]) -> Iterator[wire.Piece]:
    offset = 0
    for block in blocks:
        yield wire.Piece(key=digest, offset=offset, total=total, data=block)
        offset += len(block)


def find(workspace: object, cwd: str | None, files: Collection[str]) -> Project | None:
    """The project that `workspace` means; None for nothing. Raises `ConfigError`.

    `files` are those of the user's that the function was seen to need.
    """
    if workspace is None:
        return None
    roots: list[ProjectDirectory] = []
    if workspace != "auto":
        path = os.path.abspath(os.path.expanduser(str(workspace)))
        if not os.path.isdir(path):
            raise ConfigError(
                f'workspace={workspace!r} is not a directory; use a directory, "auto" or None.'
            )
        roots.append(ProjectDirectory(path, needed=_needed(files, path)))
    elif cwd is not None:
        wide = _too_wide()
        path = _repository(cwd) or cwd
        path = cwd if path in wide else path
        needed = _needed(files, path)
        roots.append(
            only_needed(path, files) if path in wide else ProjectDirectory(path, needed=needed)
        )
    outside: dict[str, dict[str, None]] = {}
    for file in files:
        if not any(_is_within(file, root.path) for root in roots):
            base = _import_base(file)
            top = os.path.relpath(file, base).split(os.sep)[0]
            outside.setdefault(base, {})[top] = None
    roots += [
        ProjectDirectory(base, tuple(tops), _needed(files, base), is_outside=True)
        for base, tops in outside.items()
    ]
    named: dict[str, ProjectDirectory] = {}
    for root in roots:
        name = os.path.basename(root.path) or "root"
        while name in named:
            name += "_"
        named[name] = root
    return Project(named)


def only_needed(directory: str, files: Collection[str]) -> ProjectDirectory:
    """Of a directory that is nobody's project, such as a home directory: what was seen to be
    needed of it, packages as a whole.
    """
    tops: dict[str, None] = {}
    for path in _needed(files, directory):
        tops[_package_root(path, directory)] = None
    return ProjectDirectory(directory, only=tuple(tops))


def _package_root(path: str, root: str) -> str:
    """The outermost package, within a directory, that a file is in; the file where it is in none.

    Both are paths within the directory.
    """
    while parent := os.path.dirname(path):
        if not os.path.exists(os.path.join(root, parent, "__init__.py")):
            break
        path = parent
    return path


def _needed(files: Collection[str], root: str) -> tuple[str, ...]:
    return tuple(os.path.relpath(file, root) for file in files if _is_within(file, root))


def _import_base(file: str) -> str:
    """The directory that a module's file is imported from: above its packages."""
    base = os.path.dirname(file)
    while os.path.exists(os.path.join(base, "__init__.py")) and base != os.sep:
        base = os.path.dirname(base)
    return base


def _is_within(path: str, directory: str | None) -> bool:
    return directory is not None and path.startswith(directory.rstrip(os.sep) + os.sep)


def is_too_wide(directory: str) -> bool:
    """A directory is nobody's project: a home directory, or one of the system's."""
    return directory in _too_wide()


def _too_wide() -> set[str]:
    wide = {os.sep, "/home", "/root", "/tmp", "/var/tmp", tempfile.gettempdir()}  # noqa: S108 not used
    return {*wide, os.path.expanduser("~")}


def _repository(directory: str) -> str | None:
    """The root of the git repository that a directory is in."""
    start = Path(directory)
    for parent in (start, *start.parents):
        if (parent / ".git").exists():
            return str(parent)
    return None


# ── files ─────────────────────────────────────────────────────────────────────


def _listed(root: str, ignored: _ignored) -> set[str]:
    # A directory that its own repository ignores is meant all the same.
    listed = _ask_git(root, ignored) if _repository(root) else None
    return listed or set(_walk(root, ignored))


def _ask_git(root: str, ignored: _ignored) -> set[str] | None:
    """What git tracks, and of what it does not ignore what anybody wants; None without git."""
    tracked = _git_lists(root, "--cached")
    others = None if tracked is None else _git_lists(root, "--others", "--exclude-standard")
    if tracked is None or others is None:
        return None
    made = {os.path.dirname(path) for path in others if os.path.basename(path) == _VENV}
    found = {path for path in others if not _is_unwanted(path, made)}
    for path in tracked:
        full = os.path.join(root, path)
        if os.path.isdir(full) and not os.path.islink(full):
            found |= {os.path.join(path, name) for name in _listed(full, ignored)}
        else:
            found.add(path)
    return found


def _git_lists(root: str, *options: str) -> list[str] | None:
    command = ["git", "-C", root, "ls-files", "-z", *options]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
        said = done.stderr.decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    except (OSError, subprocess.TimeoutExpired) as error:
        done, said = None, str(error)
    if done is None or done.returncode:
        logger.warning("phalanx: git cannot list %s, sending all files: %s", root, said)
        return None
    return [os.fsdecode(raw) for raw in done.stdout.split(b"\0") if raw]


def _is_unwanted(path: str, environments: Collection[str]) -> bool:
    """In a cache or a virtual environment, or a log of an earlier launch."""
    *parents, name = path.split(os.sep)
    if not _UNWANTED.isdisjoint(parents) or _LOG.fullmatch(name):
        return True
    return any(os.sep.join(parents[: i + 1]) in environments for i in range(len(parents)))


def _walk(root: str, ignored: _ignored) -> Iterator[str]:
    count = 0
    for parent, directories, files in os.walk(root):
        directories[:] = [
            name
            for name in directories
            if name not in _UNWANTED
            and not ignored(os.path.join(os.path.relpath(parent, root), name, ""))
            and not os.path.exists(os.path.join(parent, name, _VENV))
            and not os.path.islink(os.path.join(parent, name))
        ]
        links = [n for n in os.listdir(parent) if os.path.islink(os.path.join(parent, n))]
        for name in {*files, *links}:
            if _LOG.fullmatch(name):
                continue
            count += 1
            if count > _FILES_LIMIT:
                raise LaunchError(
                    f"the project in {root} has more than {_FILES_LIMIT} files. Set a smaller "
                    f"directory with workspace=..., or exclude files in {IGNORE_FILE}."
                )
            yield os.path.relpath(os.path.join(parent, name), root)


class _ignored:  # noqa: N801 asked like a function
    """Whether `.phalanxignore` leaves a path out, or something else does."""

    def __init__(self, root: str, also: Callable[[str], bool] | None = None) -> None:
        self._spec = None
        self._also = also
        path = os.path.join(root, IGNORE_FILE)
        with contextlib.suppress(OSError), open(path, errors="surrogateescape") as file:
            import pathspec

            try:
                self._spec = pathspec.PathSpec.from_lines("gitignore", file)
            except ValueError as error:
                raise LaunchError(f"{path}: {error}") from None

    def __call__(self, path: str) -> bool:
        if self._also is not None and self._also(path):
            return True
        if self._spec is None:
            return False
        slash = os.sep if path.endswith(os.sep) else ""
        return self._spec.match_file(os.path.normpath(path) + slash)


def _check_size(files: Collection[tuple[str, int]]) -> None:
    total = sum(size for _, size in files)
    if total <= LIMIT:
        return
    largest = sorted((f for f in files if f[1] > total / 100), key=lambda item: -item[1])
    largest = largest[:_LARGEST_SHOWN]
    lines = [f"  {size / (1 << 20):8.1f} MiB  {path}" for path, size in largest]
    raise LaunchError(
        f"the project has {total / (1 << 20):.0f} MiB; the limit is {LIMIT >> 20} MiB. The largest "
        "files:\n" + "\n".join(lines) + f"\nExclude some in {IGNORE_FILE} (like .gitignore), set "
        "another directory with workspace=..., or send nothing with workspace=None."
    )


def _read(path: str) -> tuple[str, int, bytes | None]:
    """Digest and size of a file, by one reading; and what was read, if it is likely to change."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        changing = time.time() - status.st_mtime < _SETTLED and status.st_size <= _KEPT
        kept: list[bytes] = []
        while data := file.read(wire.PIECE):
            digest.update(data)
            size += len(data)
            if changing:
                kept.append(data)
    return digest.hexdigest(), size, b"".join(kept) if changing else None
