"""What went wrong in a replica, from what it has left: its error file, or its stderr."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

from phalanx._schedulers.request import ReplicaRequest
from phalanx._worker import missing_package

_READ = 1 << 18
_LONGEST = 500
_UNSHOWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f\x7f]")
"""Colours, and what else is not for reading."""
_PREFIX = re.compile(r"^(?:\[[^\]\n]*\]:?[ ]?)+")
"""Whose line it is, as torchrun and torch put it."""
_TRACEBACK = re.compile(
    r"^(?:\[[^\]\n]*\]:?[ ]?)*\s*Traceback \(most recent call last\):$", re.MULTILINE
)


def with_interpreter(error: str, host: str, python: str) -> str:
    """An error, with the interpreter of the host where that is what matters: it lacks a package."""
    if re.search(r"No module named '\w+'$", error):
        return missing_package.describe(error, host, python, "-cfg python=…")
    return error


def first_error(replica: ReplicaRequest, told: int = 0) -> str:
    """The first error that a replica has reported or printed, in one line; or nothing.

    `told` is how much of its stderr is of an earlier try.
    """
    error = _reported(replica.error_file) or in_text(_end_of(replica.logs["stderr"], told))
    return _UNSHOWN.sub("", error)


def in_text(text: str) -> str:
    """The error of the last traceback in a text; without one, the last line.

    Of a launcher that reports a worker's failure, the worker's own traceback, which comes before.
    """
    errors = [e for found in _TRACEBACK.finditer(text) if (e := _error_of(text[found.start() :]))]
    if errors:
        return errors[0] if "ChildFailedError" in errors[-1] else errors[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_LONGEST] if lines else ""


def _error_of(text: str) -> str:
    """The line behind a traceback's frames."""
    lines = [_PREFIX.sub("", line) for line in text.splitlines()]
    indent = len(lines[0]) - len(lines[0].lstrip())
    for line in lines[1:]:
        depth = len(line) - len(line.lstrip())
        if line.strip() and depth <= indent:
            return line.strip()[:_LONGEST]
    return ""


def _end_of(path: str, start: int) -> str:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - _READ))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _reported(path: str) -> str:
    """What an error file in torch's format says."""
    message: Any = ""
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        with open(path) as file:
            message = json.load(file)["message"]
        if isinstance(message, dict):
            message = message["message"]
    text = message if isinstance(message, str) else ""
    return text.strip().partition("\n")[0][:_LONGEST]
