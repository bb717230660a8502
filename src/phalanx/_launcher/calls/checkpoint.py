"""Results that outlast the process: what is done is not done again.

A file for each call, named by its digest. It appears whole or not at all, and says itself whether
it is: whatever else is found in the directory is no result. Several processes may use it at once;
whoever finishes a call last leaves the same file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

from phalanx._launcher.result import LaunchResult
from phalanx._logs import logger
from phalanx.errors import ConfigError

_HEAD = b"phalanx result 1\n"
_SUFFIX = ".result"


class Checkpoint:
    """A directory of results."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Create it if need be. Raises `ConfigError` if nothing can be written there."""
        self._directory = Path(directory).absolute()
        self._told = False
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._directory):
                pass
        except OSError as error:
            raise ConfigError(
                f"checkpoint={str(directory)!r}: cannot write there: {error.strerror}."
            ) from None

    def load(self, digest: str) -> LaunchResult[Any] | None:
        """The result of a call; None if it is not there, or is not whole."""
        try:
            data = self._path(digest).read_bytes()
        except OSError:
            return None
        head, sum_, body = data[: len(_HEAD)], data[len(_HEAD) :][:32], data[len(_HEAD) + 32 :]
        if head != _HEAD or hashlib.sha256(body).digest() != sum_:
            return None
        try:
            result = pickle.loads(body)  # noqa: S301 the directory is the user's own
        except Exception as error:  # noqa: BLE001 the user's classes, which may have changed
            path = self._path(digest)
            logger.warning(
                "phalanx: cannot read %s: %s: %s. Repeating the call.",
                path,
                type(error).__name__,
                error,
            )
            return None
        return result if isinstance(result, LaunchResult) else None

    def store(self, digest: str, result: LaunchResult[Any]) -> None:
        """Keep a result. That it cannot be kept is said once, and is no failure of the call."""
        import cloudpickle

        try:
            body = cloudpickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
            self._write(self._path(digest), _HEAD + hashlib.sha256(body).digest() + body)
        except Exception as error:  # noqa: BLE001 the user's classes, or a full disk
            if not self._told:
                self._told = True
                logger.warning(
                    "phalanx: cannot save a result to %s: %s: %s (reported once)",
                    self._directory,
                    type(error).__name__,
                    error,
                )

    def _path(self, digest: str) -> Path:
        return self._directory / f"{digest}{_SUFFIX}"

    def _write(self, path: Path, data: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
        number, temporary = tempfile.mkstemp(prefix=".new-", dir=self._directory)
        try:
            with open(number, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(number)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
