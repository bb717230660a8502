"""The token of a cluster that asks for one, where Ray itself would look for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from phalanx.errors import SchedulerError

VARIABLE = "RAY_AUTH_TOKEN"
DEFAULT_FILE = "~/.ray/auth_token"
_FILE_VARIABLE = "RAY_AUTH_TOKEN_PATH"
_MODE = "RAY_AUTH_MODE"


def find_token(environ: Mapping[str, str]) -> str:
    """It, or nothing. Raises `SchedulerError` where a file is named that cannot be read."""
    if environ.get(_MODE) == "disabled":
        return ""
    if token := environ.get(VARIABLE, "").strip():
        return token
    if path := environ.get(_FILE_VARIABLE):
        try:
            return _read(path)
        except OSError as error:
            reason = f"cannot read {path}: {error.strerror}"
            raise SchedulerError(f"{_FILE_VARIABLE}: {reason}") from None
    with contextlib.suppress(OSError):
        return _read(DEFAULT_FILE)
    return ""


def with_mode(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a client of Ray's, which does not look for a token unless it is told."""
    asks = _MODE not in environ and find_token(environ)
    return {**environ, _MODE: "token"} if asks else dict(environ)


def _read(path: str) -> str:
    with open(os.path.expanduser(path)) as file:
        return file.read().strip()
