"""The record of an app on a scheduler: what was submitted, and where it is."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx._logs import logger
from phalanx._registry import VERSION, directory, directory_name, make, replace
from phalanx._registry.recorded_app import apps, by_handle

_KEPT, _PRUNED_TO = 1000, 800
"""How many apps are kept, and how many are left when there are more."""


def facts_of(
    app_id: str, name: str, scheduler: str, session: str, roles: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What is recorded of any app: who submitted it, when, from where."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    try:
        cwd: str | None = os.getcwd()
    except OSError:
        cwd = None
    return {
        "version": VERSION,
        "id": app_id,
        "name": name,
        "scheduler": scheduler,
        "session": session,
        "created": time.time(),
        "command": [str(part) for part in _typed()],
        "cwd": cwd,
        "user": user,
        "owner": None,
        "stop_grace": 0.0,
        "roles": list(roles),
    }


def _typed() -> list[str]:
    """This process's command line; in a worker, which nobody has typed, that of its script."""
    words = sys.orig_argv or sys.argv
    program = words[words.index("-c") + 1 :][:1] if "-c" in words else []
    is_ours = any("from phalanx._worker" in text for text in program)
    return [sys.executable, *sys.argv] if is_ours else words


def make_directory(name: str) -> Path:
    """The directory of a new app. Raises `OSError`."""
    root = directory()
    make(root)
    path = root / name
    path.mkdir(mode=0o700)
    with contextlib.suppress(OSError):
        _prune(root)
    return path


def define(scheduler: str, session: str, app_id: str, definition: Mapping[str, Any]) -> None:
    """Note what an app was made from. One that its scheduler has not recorded is recorded here.

    Where that cannot be, the app runs all the same, and that is said.
    """
    app = definition["app"]
    try:
        known = by_handle(scheduler, session, app_id)
        path = None if known is None else known.path
        if path is None:
            roles = [
                {"name": role["name"], "replicas": _replicas(role["num_replicas"])}
                for role in app["roles"]
            ]
            path = make_directory(directory_name(scheduler, session, app_id))
            replace(path / "app.json", facts_of(app_id, app["name"], scheduler, session, roles))
        replace(path / "definition.json", definition)
    except (OSError, RuntimeError) as error:
        logger.warning("phalanx: cannot record %s: %s", app_id, error)


def _replicas(count: int) -> list[dict[str, Any]]:
    nothing: dict[str, Any] = {"hostname": "", "ranks": [], "logs": {}, "log": None, "streams": {}}
    return [{"id": i, **nothing} for i in range(count)]


def _prune(root: Path) -> None:
    """Forget the oldest of very many apps that have ended."""
    names = os.listdir(root)
    if len(names) <= _KEPT:
        return
    # Of apps on schedulers that are not ours it is not known here; only the record goes.
    ended = [app for app in apps(root) if app.facts["owner"] is None or app.state.is_final]
    for app in ended[: max(0, len(names) - _PRUNED_TO)]:
        with contextlib.suppress(OSError):
            app.remove()
