"""Asking an app where its workers are, from another process: a file, and the answer in another.

As for the end of an app: it works for a notebook, and from another host with the same home.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx._registry import read, replace
from phalanx._registry.recorded_app import RecordedApp

_DIRECTORY = "stacks"
_UNWRITTEN = "unwritten"
"""In the place of an answer: why there is none."""
_POLL = 0.05
_PATIENCE = 5.0
"""Seconds for the app to look, beyond those that its workers are given."""
_LONGEST = 60.0


class StacksUnanswered(Exception):
    """An app did not say where its workers are."""


def ask(app: RecordedApp, seconds: float) -> Mapping[str, Any]:
    """Where its workers are, by rank. Blocks until it answers; workers get so many seconds.

    Raises `StacksUnanswered` if it has ended or does not answer, and `OSError` if it cannot be
    asked.
    """
    directory = app.path / _DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    name = f"{os.getpid()}-{os.urandom(4).hex()}"
    question, answer = directory / f"{name}.ask", directory / f"{name}.json"
    limit = time.monotonic() + seconds + _PATIENCE
    try:
        replace(question, {"seconds": seconds})
        while (found := read(answer)) is None:
            if not directory.is_dir():
                raise StacksUnanswered(f"{app.id} is no longer recorded")
            if (state := app.state).is_final:
                raise StacksUnanswered(f"{app.id} has ended: {state.value}")
            if time.monotonic() > limit:
                owner = app.facts["owner"]
                raise StacksUnanswered(
                    f"{app.id} did not answer: its launcher (pid {owner['pid']} on "
                    f"{owner['host']}) was asked {seconds + _PATIENCE:g} s ago. Is it stopped?"
                )
            time.sleep(_POLL)
        if (unwritten := found.get(_UNWRITTEN)) is not None:
            raise StacksUnanswered(f"{app.id} cannot write its answer: {unwritten}")
        return found
    finally:
        for path in (question, answer):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            directory.rmdir()


def questions(path: Path) -> list[tuple[str, float]]:
    """The app's side: who asks, and how many seconds workers are given. Each is given once."""
    found = []
    try:
        names = os.listdir(path / _DIRECTORY)
    except OSError:
        return []
    for name in names:
        if name.endswith(".ask"):
            asked = read(path / _DIRECTORY / name) or {}
            seconds = asked.get("seconds")
            if not isinstance(seconds, int | float) or not 0 <= seconds <= _LONGEST:
                seconds = 1.0
            try:
                (path / _DIRECTORY / name).unlink(missing_ok=True)
            except OSError:
                continue  # where this cannot be done an answer cannot be written either
            found.append((name.removesuffix(".ask"), float(seconds)))
    return found


def reply(path: Path, name: str, answer: Mapping[str, Any]) -> None:
    """Answer one; if who asked has gone, there is nobody to read it. Raises `OSError`."""
    try:
        replace(path / _DIRECTORY / f"{name}.json", answer)
    except OSError as error:
        # The question has left room for this much.
        replace(path / _DIRECTORY / f"{name}.json", {_UNWRITTEN: error.strerror})
        raise
