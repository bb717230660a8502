"""What is different for an agent on another host than the launcher's: where things are there."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Sequence

from phalanx import _wire as wire
from phalanx._system import network


@dataclasses.dataclass(frozen=True)
class TreeLocation:
    """Where the project is put that has to come here: those of its directories, by their names.

    The path is empty where all of it is here already, or none is sent.
    """

    path: str = ""
    names: frozenset[str] = frozenset()


def localize(prepare: wire.Prepare) -> tuple[wire.Prepare, TreeLocation]:
    """An app's first frame in terms of this host, and where the project is put.

    Raises `OSError`.
    """
    if prepare.interface and network.address_of(prepare.interface) is None:
        names = ", ".join(dict.fromkeys(name for name, _ in network.interfaces()))
        raise OSError(f"no network interface {prepare.interface!r}; choose one of {names}")
    remote = prepare.remote
    if remote is None:
        return prepare, TreeLocation()
    missing = [root for root in remote.roots if not _is_shared(root)]
    tree = _make_tree(prepare.app) if missing else ""
    move = _PathMap(missing, tree)
    environment = dict(prepare.environment)
    if tree and "PYTHONPATH" in environment:
        entries = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(map(move, entries))
    own = [entry for entry in sys.path if entry]
    users = [move(entry) for entry in prepare.python_path]
    # What was sent here comes first among what is not the user's, behind the script's directory.
    entries = [*users[:1], own[0], *users[1:], *own]
    mapped = dataclasses.replace(
        prepare,
        python_path=tuple(dict.fromkeys(entries)),
        environment=environment,
        cwd=_directory(prepare.cwd, move),
        main_file=None if prepare.main_file is None else move(prepare.main_file),
    )
    return mapped, TreeLocation(tree, frozenset(root.name for root in missing))


class _PathMap:
    """From a path at the launcher's to the same here."""

    def __init__(self, roots: Sequence[wire.ProjectRoot], tree: str) -> None:
        moved = [(root.path, os.path.join(tree, root.name)) for root in roots]
        self.first = moved[0][1] if moved else None
        # One root may lie within another.
        self._moved = sorted(moved, key=lambda target: -len(target[0]))

    def __call__(self, path: str) -> str:
        for root, target in self._moved:
            if path == root:
                return target
            if path.startswith(root.rstrip(os.sep) + os.sep):
                return os.path.join(target, os.path.relpath(path, root))
        return path


def _directory(cwd: str | None, move: _PathMap) -> str:
    """Where workers run: the launcher's directory, or what is nearest to it here."""
    moved = None if cwd is None else move(cwd)
    if moved is not None and moved != cwd:
        os.makedirs(moved, exist_ok=True)
    if moved is not None and os.path.isdir(moved) and os.access(moved, os.X_OK):
        return moved
    if move.first is not None:
        os.makedirs(move.first, exist_ok=True)
        return move.first
    home = os.path.expanduser("~")
    return home if os.path.isdir(home) else os.sep


def _is_shared(root: wire.ProjectRoot) -> bool:
    """The launcher's very directory is here: the file that it has just made there is."""
    try:
        with open(os.path.join(root.path, root.token)) as file:
            return file.read() == root.token
    except OSError:
        return False


def _make_tree(app: str) -> str:
    from phalanx._remote import bootstrap

    problems = []
    for cache in bootstrap.caches():
        try:
            return tempfile.mkdtemp(prefix=f"{app}-", dir=bootstrap.make_directory(cache, "trees"))
        except OSError as error:
            problems.append(f"{cache}: {error.strerror or error}")
    raise OSError(f"cannot store the project there ({'; '.join(problems)})")
