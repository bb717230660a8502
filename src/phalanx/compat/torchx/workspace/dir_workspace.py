"""TorchX's base classes of schedulers that copy a directory for each app."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from phalanx._images.dockerignore import DockerIgnore
from phalanx._specs import Role
from phalanx.compat.torchx.workspace.api import WorkspaceMixin

__all__ = ["DirWorkspaceMixin", "TmpDirWorkspaceMixin"]

_IGNORE = ".torchxignore"


class TmpDirWorkspaceMixin(WorkspaceMixin[None]):
    """A role's image is a new temporary directory with the files."""

    def build_workspace_and_update_role(
        self, role: Role, workspace: str, cfg: Mapping[str, Any]
    ) -> None:
        """Copy the files, and have the role run there.

        Args:
            role: The role, which is changed.
            workspace: The directory.
            cfg: The options, of which none is used.
        """
        _run_in_copy(role, workspace, tempfile.mkdtemp(prefix="torchx_workspace"))


class DirWorkspaceMixin(WorkspaceMixin[None]):
    """A role's image is the directory that the option `job_dir` names, with the files."""

    def build_workspace_and_update_role(
        self, role: Role, workspace: str, cfg: Mapping[str, Any]
    ) -> None:
        """Copy the files, and have the role run there; without a `job_dir`, nothing is done.

        Args:
            role: The role, which is changed.
            workspace: The directory.
            cfg: The options.
        """
        if (job_dir := cfg.get("job_dir")) is not None:
            _run_in_copy(role, workspace, job_dir)


def _run_in_copy(role: Any, workspace: str, target: str) -> None:
    source = workspace.removeprefix("file://")
    for path in [*_files(source)]:
        made = os.path.join(target, path)
        os.makedirs(os.path.dirname(made), exist_ok=True)
        shutil.copy(os.path.join(source, path), made)
    role.image = target


def _files(directory: str) -> Iterator[str]:
    """The files of a directory that its `.torchxignore` leaves in, as paths within it."""
    try:
        with open(os.path.join(directory, _IGNORE), encoding="utf-8") as file:
            is_left_out = DockerIgnore(file.read())
    except FileNotFoundError:
        is_left_out = DockerIgnore("")
    for where, directories, files in os.walk(directory):
        at = os.path.relpath(where, directory)
        directories[:] = [d for d in directories if not is_left_out(os.path.join(at, d, ""))]
        found = (os.path.normpath(os.path.join(at, name)) for name in files)
        yield from (path for path in found if not is_left_out(path))
