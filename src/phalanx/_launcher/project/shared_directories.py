"""Whether hosts share the project's directories: there, a file of a moment's life is seen."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Mapping

from phalanx import _wire as wire

PREFIX = ".phalanx-"
_OLD = 3600.0


class SharedDirectories:
    """One file in each directory."""

    def __init__(self, directories: Mapping[str, str]) -> None:
        """Names that nothing has, for the directories by their names; `create` makes the files."""
        self.roots = tuple(
            wire.ProjectRoot(path, name, f"{PREFIX}{secrets.token_hex(8)}")
            for name, path in directories.items()
        )

    def create(self) -> None:
        """Make the files. One that cannot be made is seen nowhere, and the project is sent."""
        for root in self.roots:
            with contextlib.suppress(OSError):
                _remove_old(root.path)
                with open(_path(root), "x") as file:
                    file.write(root.token)

    def remove(self) -> None:
        """Remove them; idempotent."""
        for root in self.roots:
            with contextlib.suppress(OSError):
                os.unlink(_path(root))


def _remove_old(directory: str) -> None:
    """Remove what launchers that were killed have left."""
    for entry in os.scandir(directory):
        if entry.name.startswith(PREFIX) and time.time() - entry.stat().st_mtime > _OLD:
            os.unlink(entry.path)


def _path(root: wire.ProjectRoot) -> str:
    return os.path.join(root.path, root.token)
