"""What went wrong in a replica, from what it has left: its error file, or its stderr."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from phalanx._core.json_text import parse_json
from phalanx._core.last_words import last_words
from phalanx._schedulers.replicas.request import ReplicaRequest
from phalanx._system.small_files import open_regular
from phalanx._worker import missing_package
from phalanx._worker.error_file import ErrorOrigin

_LONGEST_REPORT = 4 << 20
"""Bytes of an error file that are read."""
_READ = 1 << 18
_LONGEST = 500
_LONGEST_TRACEBACK = 1 << 15
_UNSHOWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f\x7f]")
"""Colours, and what else is not for reading."""
_PREFIX = re.compile(r"^(?:\[[^\]\n]*\]:?[ ]?)+")
"""Whose line it is, as torchrun and torch put it."""
_TRACEBACK = re.compile(
    r"^(?:\[[^\]\n]*\]:?[ ]?)*\s*Traceback \(most recent call last\):$", re.MULTILINE
)


@dataclass(frozen=True)
class ReplicaError:
    """What went wrong in a replica."""

    text: str = ""
    """In one line."""
    traceback: str = ""
    """All of it, where the replica has reported that."""
    where: ErrorOrigin | None = None
    """The worker that it happened to, where the replica has named one."""
    is_complete: bool = False
    """The text says where it happened as well."""
    missed: str = ""
    """Where ranks of the replica were that others had waited for in a collective."""

    @property
    def is_own(self) -> bool:
        """It happened to a worker of this replica, as far as the replica says."""
        return self.where is not None and not self.where.is_remote

    @property
    def is_remote(self) -> bool:
        """It happened in another replica."""
        return self.where is not None and self.where.is_remote

    def describe_worker(self) -> str:
        """The worker, to follow the text; nothing where that names it, or none is known."""
        if self.where is None or self.where.is_remote or self.is_complete:
            return ""
        who = f"rank {self.where.rank} on {self.where.hostname}"
        return "" if self.text.startswith(f"{who} ") else f" ({who})"


def describe_missed(errors: Iterable[ReplicaError]) -> str:
    """Where ranks were that others had waited for, to follow the first of these errors."""
    return "".join(f"; {missed}" for missed in dict.fromkeys(e.missed for e in errors) if missed)


def with_interpreter(error: str, host: str, python: str) -> str:
    """An error, with the interpreter of the host where that is what matters: it lacks a package."""
    if re.search(r"No module named '\w+'$", error):
        return missing_package.describe(error, host, python, "-cfg python=…")
    return error


def first_error(replica: ReplicaRequest, told: int = 0, *, killed: bool = False) -> ReplicaError:
    """The first error that a replica has reported or printed; one without a text if it has none.

    `told` is how much of its stderr is of an earlier try; `killed`: it was, by a signal.
    """
    error = _reported(replica.error_file)
    text = error.text or in_text(_end_of(replica.logs["stderr"], told), killed=killed)
    return replace(error, text=shown(text))


def shown(text: str) -> str:
    """A text without colours, and what else is not for reading."""
    return _UNSHOWN.sub("", text)


def in_text(text: str, *, killed: bool = False) -> str:
    """The error of the last traceback in a text; without one, the last line. What a signal killed
    has not ended by that, unless it is about an error.

    Of a launcher that reports a worker's failure, the worker's own traceback, which comes before.
    """
    errors = [e for found in _TRACEBACK.finditer(text) if (e := _error_of(text[found.start() :]))]
    if errors:
        return errors[0] if "ChildFailedError" in errors[-1] else errors[-1]
    if killed:
        return last_words(text, killed=True)[:_LONGEST]
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


def _reported(path: str) -> ReplicaError:
    """What an error file says; nothing where there is none."""
    try:
        with open_regular(path) as file:  # a program may have left anything there
            return reported(file.read(_LONGEST_REPORT).decode(errors="replace"))
    except OSError:
        return ReplicaError()


def reported(content: str) -> ReplicaError:
    """What the content of an error file in torch's format says."""
    message: Any = ""
    extra: Any = {}
    with contextlib.suppress(ValueError, AttributeError, TypeError, KeyError):
        message = parse_json(content)["message"]
        if isinstance(message, dict):
            extra, message = message.get("extraInfo"), message["message"]
    text = message if isinstance(message, str) else ""
    facts = extra if isinstance(extra, dict) else {}
    return ReplicaError(
        text.strip().partition("\n")[0][:_LONGEST],
        str(facts.get("py_callstack") or "").strip()[-_LONGEST_TRACEBACK:],
        _where(facts),
        missed=_UNSHOWN.sub("", str(facts.get("missed") or ""))[:_LONGEST],
    )


def _where(facts: dict[str, Any]) -> ErrorOrigin | None:
    match facts:
        case {"rank": int(rank), "hostname": str(host), "is_remote": bool(is_remote)}:
            return ErrorOrigin(rank, _UNSHOWN.sub("", host)[:_LONGEST], is_remote=is_remote)
    return None
