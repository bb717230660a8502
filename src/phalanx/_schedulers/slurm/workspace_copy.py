"""The project's files as they were when the app was submitted, copied to where its job runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping

from phalanx._launcher.project.project_files import ProjectDirectory, only_needed
from phalanx.errors import SchedulerError


def copy_workspaces(copies: Mapping[str, str], only: Mapping[str, Collection[str]]) -> None:
    """Copy the files of directories that are sent to hosts: see `workspace_files`.

    `only` says which, of directories that are not sent as a whole. Links stay links. Raises
    `SchedulerError`, `LaunchError` where there is too much.
    """
    for source, target in copies.items():
        try:
            whole = ProjectDirectory(os.path.abspath(source))
            _copy(only_needed(source, only[source]) if source in only else whole, target)
        except OSError as error:
            raise SchedulerError(f"cannot copy the project {source} to {target}: {error}") from None


def _copy(project: ProjectDirectory, target: str) -> None:
    source = project.path
    os.makedirs(target, mode=0o700)
    made = {""}
    jobs = _left_out(source, target)
    for path, _ in project.files():
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
