"""TorchX's scheduler for this host."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

from phalanx._core.lazy import loader
from phalanx.compat.torchx.schedulers._wrapped import WrappedScheduler

__all__ = ["LocalOpts", "LocalScheduler", "LogIterator", "create_scheduler"]

LocalOpts = dict[str, Any]
"""Options, by name: `runner.scheduler_run_opts('local_cwd')` has those that there are."""


class LocalScheduler(WrappedScheduler):
    """Runs replicas as processes of this host."""

    name = "local_cwd"


def create_scheduler(session_name: str, **kwargs: Any) -> LocalScheduler:
    """Create it.

    Args:
        session_name: The middle part of handles.
        **kwargs: What it is created with.
    """
    return LocalScheduler(session_name, **kwargs)


class LogIterator:
    """The lines of a file that an app writes, with their ends, until the app has ended."""

    def __init__(
        self,
        app_id: str,
        log_file: str,
        scheduler: Any,
        should_tail: bool = True,  # noqa: FBT001, FBT002 TorchX's
    ) -> None:
        """Read nothing yet.

        Args:
            app_id: The app.
            log_file: The file, which may appear later.
            scheduler: What describes the app.
            should_tail: Also new lines.
        """
        self._app_id, self._path, self._scheduler = app_id, log_file, scheduler
        self._follow = should_tail

    def __iter__(self) -> Iterator[str]:
        position, rest = 0, ""
        while True:
            has_ended = not self._follow or self._is_over()
            try:
                with open(self._path, newline="") as file:
                    file.seek(position)
                    rest += file.read()
                    position = file.tell()
            except FileNotFoundError:
                if has_ended:
                    raise
            *lines, rest = re.split(r"(?<=\n)", rest)
            yield from lines
            if has_ended:
                if rest:
                    yield rest
                return
            if not lines:
                time.sleep(0.1)

    def _is_over(self) -> bool:
        told = self._scheduler.describe(self._app_id)
        return told is None or told.state.is_final


__getattr__ = loader(
    __name__,
    {},
    {
        "AppId": "an app's id is a str",
        "COMBINED_LOG": "runner.log_lines(handle, role, k) reads logs",
        "CWDImageProvider": "local apps run in the current directory, and need no image",
        "ImageProvider": "local apps run in the current directory, and need no image",
        "LocalDirectoryImageProvider": "local apps run in a role's workspace, and need no image",
        "PopenRequest": "str(info) shows what is submitted",
        "ReplicaParam": "str(info) shows what is submitted",
        "STDERR_LOG": "runner.log_lines(handle, role, k) reads logs",
        "STDOUT_LOG": "runner.log_lines(handle, role, k) reads logs",
        "SignalException": "apps outlive the process that submits them",
        "_LocalAppDef": "runner.describe(handle) gives an app, runner.status(handle) how it stands",
        "create_cwd_scheduler": "use create_scheduler",
    },
)
