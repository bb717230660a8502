"""The project's files as they were when the app was submitted, copied to where its job runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from phalanx._launcher.project.project_files import ProjectDirectory
from phalanx.errors import SchedulerError


def copy_workspaces(copies: Mapping[str, str]) -> None:
    """Copy the files of directories that are sent to hosts: see `workspace_files`.

    Links stay links. Raises `SchedulerError`, `LaunchError` where there is too much.
    """
    for source, target in copies.items():
        try:
            _copy(source, target)
        except OSError as error:
            raise SchedulerError(f"cannot copy the project {source} to {target}: {error}") from None


def _copy(source: str, target: str) -> None:
    os.makedirs(target, mode=0o700)
    made = {""}
    jobs = _left_out(source, target)
    for path, _ in ProjectDirectory(os.path.abspath(source)).files():
        full = os.path.join(source, path)
        if full.startswith(jobs + os.sep):
            continue
        directory = os.path.dirname(path)
        if directory not in made:
            os.makedirs(os.path.join(target, directory), exist_ok=True)
            made.add(directory)
        shutil.copy2(full, os.path.join(target, path), follow_symlinks=False)


def _left_out(source: str, target: str) -> str:
    """The directory of jobs, which may be within the project: it is no part of it."""
    app = os.path.dirname(target)
    jobs = os.path.dirname(app)
    return jobs if jobs.startswith(source + os.sep) else app
