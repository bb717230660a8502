"""Asking an app where its workers are, from another process: a file, and the answer in another.

As for the end of an app: it works for a notebook, and from another host with the same home.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class StackQuestion:
    """Who asks, how many seconds workers are given, and whether native frames are wanted."""

    name: str
    seconds: float
    native: bool = False


class StacksUnanswered(Exception):
    """An app did not say where its workers are."""


def ask(app: RecordedApp, seconds: float, *, native: bool = False) -> Mapping[str, Any]:
    """Where its workers are, by rank. Blocks until it answers; workers get so many seconds, and as
    many again for native frames.

    Raises `StacksUnanswered` if it has ended or does not answer, and `OSError` if it cannot be
    asked.
    """
    directory = app.path / _DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    name = f"{os.getpid()}-{os.urandom(4).hex()}"
    question, answer = directory / f"{name}.ask", directory / f"{name}.json"
    patience = seconds * (2 if native else 1) + _PATIENCE
    limit = time.monotonic() + patience
    try:
        replace(question, {"seconds": seconds, "native": native})
        while (found := read(answer)) is None:
            if not directory.is_dir():
                raise StacksUnanswered(f"{app.id} is no longer recorded")
            if (state := app.state).is_final:
                raise StacksUnanswered(f"{app.id} has ended: {state.value}")
            if time.monotonic() > limit:
                owner = app.facts["owner"]
                raise StacksUnanswered(
                    f"{app.id} did not answer: its launcher (pid {owner['pid']} on "
                    f"{owner['host']}) was asked {patience:g} s ago. Is it stopped?"
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


def questions(path: Path) -> list[StackQuestion]:
    """The app's side: what is asked. Each is given once."""
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
            native = asked.get("native") is True
            found.append(StackQuestion(name.removesuffix(".ask"), float(seconds), native))
    return found


def reply(path: Path, name: str, answer: Mapping[str, Any]) -> None:
    """Answer one; if who asked has gone, there is nobody to read it. Raises `OSError`."""
    try:
        replace(path / _DIRECTORY / f"{name}.json", answer)
    except OSError as error:
        # The question has left room for this much.
        replace(path / _DIRECTORY / f"{name}.json", {_UNWRITTEN: error.strerror})
        raise
