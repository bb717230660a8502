"""Error files: how a program tells whoever started it what went wrong, in torch's own format.

`{"message": {"message": …, "extraInfo": {"py_callstack": …, "timestamp": …}}}`, at the path that
`TORCHELASTIC_ERROR_FILE` names.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from phalanx._system.small_files import open_regular

if TYPE_CHECKING:
    from phalanx._core.rounds import ExceptionInfo

VARIABLE = "TORCHELASTIC_ERROR_FILE"
_LIMIT = 1 << 20

P = ParamSpec("P")
R = TypeVar("R")


def record(function: Callable[P, R]) -> Callable[P, R]:
    """Write what the function raises into the error file; it is raised all the same.

    Workers of Phalanx need no such decorator for their traceback to arrive. It is for programs
    that others start, and for scripts that were written for torchrun.

    Args:
        function: The function to decorate, such as a script's `main`.

    Returns:
        A function that is called in the same way.
    """

    @functools.wraps(function)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except SystemExit as end:
            if end.code == 0:
                return cast("R", None)  # as torch's does: it is no failure
            raise
        except BaseException as error:
            if not _write_of_worker(error):
                from phalanx._worker.outcome import format_traceback, type_name

                write(f"{type_name(error)}: {error}", format_traceback(error))
            raise

    return recorded


def _write_of_worker(error: BaseException) -> bool:
    """Pass on what the worker that failed first has written, if this is an error about workers.

    Torch's `ChildFailedError` and ours: the cause is theirs, not the traceback of who ran them.
    """
    if type(error).__name__ != "ChildFailedError":
        return False
    try:
        _, failure = error.get_first_failure()  # type: ignore[attr-defined]
        data = failure.error_file_data
    except (AttributeError, TypeError, ValueError):
        return False
    if not isinstance(data, dict) or data.get("message", "<NONE>") == "<NONE>":
        return False
    if isinstance(data["message"], dict) and failure.exitcode:
        data = {"message": {**data["message"], "errorCode": failure.exitcode}}
    if path := os.environ.get(VARIABLE):
        _write_file(path, data)
    return True


@dataclass(frozen=True)
class ErrorOrigin:
    """The worker that an error is of; `is_remote`: not one of the program that writes the file."""

    rank: int
    hostname: str
    is_remote: bool = False


def write(
    message: str,
    callstack: str,
    *,
    again: bool = True,
    where: ErrorOrigin | None = None,
    missed: str = "",
) -> None:
    """Write the error file, if one is named. What cannot be written is left unsaid.

    `missed` says where ranks were that others had waited for.
    """
    path = os.environ.get(VARIABLE)
    if not path or (not again and os.path.exists(path)):
        return
    data = content(message, callstack, time.time())
    if where is not None:
        data["message"]["extraInfo"] |= asdict(where)
    if missed:
        data["message"]["extraInfo"]["missed"] = missed
    _write_file(path, data)


def content(message: str, callstack: str, when: float) -> dict[str, Any]:
    """What an error file has in it."""
    extra = {"py_callstack": callstack, "timestamp": str(int(when))}
    return {"message": {"message": message, "extraInfo": extra}}


def _write_file(path: str, data: Any) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w") as file:
            json.dump(data, file)
    except (OSError, ValueError):
        if os.path.isfile(path):  # half of it says nothing
            with contextlib.suppress(OSError):
                os.unlink(path)


def read(path: str) -> ExceptionInfo | None:
    """What an error file says; None where there is none, or it is none."""
    from phalanx._core.rounds import ExceptionInfo

    try:
        with open_regular(path) as file:
            said = json.loads(file.read(_LIMIT)).get("message", "")
        extra = said.get("extraInfo", {}) if isinstance(said, dict) else {}
        text = str(said.get("message", "")) if isinstance(said, dict) else str(said)
        callstack = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    kind, _, message = text.partition(": ")
    if not kind.replace(".", "").isidentifier():
        kind, message = "an error", text
    return ExceptionInfo(kind, message, callstack, reraise=False) if text else None
