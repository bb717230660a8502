"""From the program that launches to the process that will host the app.

What that process needs travels in a file without a name; it answers with the app's id, or with what
it raised. Nothing else of the program's is its own: no terminal, no session, no parent.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from phalanx._core.ranks import APP
from phalanx._launcher.launch_options import LaunchOptions
from phalanx._launcher.start import Work
from phalanx._system.machine import python_command
from phalanx._system.sessions import spawn_session
from phalanx.errors import ConfigError, LaunchError

HOST_MODULE = "phalanx._launcher.detached_host"
TITLE_ROOM = " " * 120
"""An argument that pads the command line, so that the process can show a title."""


@dataclass(frozen=True)
class DetachedLaunch:
    """What the host takes over of the program: workers start as if that had started them."""

    argv: list[str]
    orig_argv: list[str]
    path: list[str]
    main_file: str | None
    launch: bytes
    """The pickled launcher and work: its classes are looked for when all the rest is in place."""


def start_host(options: LaunchOptions, work: Work) -> str:
    """Start a process that runs the app; gives the app's id once it has begun.

    Raises `ConfigError`, and whatever the start of the app raises.
    """
    if APP in os.environ:
        raise ConfigError(
            "detach=True cannot be used in a worker: what a worker starts ends with it. "
            "Start the app from the program that launches."
        )
    detached = DetachedLaunch(
        argv=[str(word) for word in sys.argv],
        orig_argv=list(sys.orig_argv),
        path=[entry for entry in sys.path if isinstance(entry, str)],
        main_file=getattr(sys.modules.get("__main__"), "__file__", None),
        launch=_pickled(options, work),
    )
    with (
        open(os.memfd_create("phalanx-launch", os.MFD_CLOEXEC), "w+b") as sent,
        tempfile.TemporaryFile() as errors,
    ):
        pickle.dump(detached, sent)
        sent.flush()
        sent.seek(0)
        answer, reply = os.pipe()
        try:
            _spawn(sent.fileno(), reply, errors.fileno())
        finally:
            os.close(reply)
        with open(answer, "rb") as file:
            data = file.read()
        if not data:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise LaunchError(f"the process for the detached app ended at its start: {said}")
    kind, value = pickle.loads(data)  # noqa: S301 of a process that we started
    if kind == "raised":
        raise value
    return str(value)


def _pickled(options: LaunchOptions, work: Work) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps((options, work.function.result(), work.needs, work.title))  # type: ignore[no-any-return]
    except Exception as error:
        raise ConfigError(
            f"the launcher cannot be pickled for a detached app: {type(error).__name__}: {error}. "
            "Use a log_spec without open handlers."
        ) from error


def _spawn(sent: int, reply: int, errors: int) -> None:
    """Start the process, and wait for its first part, which leaves the rest without a parent."""
    command = python_command(HOST_MODULE, "3", "4", TITLE_ROOM)
    # Numbers above those that are set, so that none is overwritten before it is used.
    high = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10) for number in (sent, reply, errors)]
    null = os.devnull
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, null, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, null, os.O_WRONLY, 0),
        *((os.POSIX_SPAWN_DUP2, number, at) for number, at in zip(high, (3, 4, 2), strict=True)),
    ]
    try:
        pid = spawn_session(command, actions)
    finally:
        for number in high:
            os.close(number)
    os.waitpid(pid, 0)
