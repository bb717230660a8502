"""What came of a detached app, kept in its record: values, or what is to be raised."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from phalanx._launcher.result import LaunchResult
from phalanx._system.installed_files import is_installed
from phalanx.errors import LaunchError

LOG = "detached.log"
"""What the process that hosts a detached app prints; that there is one says that it is detached."""
_NAME = "result.pickle"


def is_kept(record: Path) -> bool:
    """It has ended, and what came of it is there."""
    return (record / _NAME).exists()


def keep(record: Path, result: LaunchResult[Any] | BaseException) -> None:
    """Keep what came of it, for its user alone. Raises `OSError`."""
    import cloudpickle

    try:
        data = cloudpickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 the user's classes
        said = f"what the app returned or raised cannot be kept: {type(error).__name__}: {error}"
        data = pickle.dumps(LaunchError(said))
    path = [entry for entry in sys.path if entry and not is_installed(entry + os.sep)]
    new = record / f"{_NAME}.new"
    try:
        with open(new, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            pickle.dump((path, data), file)
        os.replace(new, record / _NAME)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def read(record: Path) -> LaunchResult[Any] | BaseException:
    """What came of it. Raises `LaunchError` if that cannot be loaded here."""
    try:
        path, data = pickle.loads((record / _NAME).read_bytes())  # noqa: S301 our own record
        return _load(data, path)
    except Exception as error:
        raise LaunchError(
            f"cannot load the result of {record.name}: {type(error).__name__}: {error}"
        ) from error


def _load(data: bytes, path: list[str]) -> LaunchResult[Any] | BaseException:
    """Load it; classes that are not found here are looked for where the app's program has them."""
    try:
        return pickle.loads(data)  # type: ignore[no-any-return]  # noqa: S301 our own record
    except ModuleNotFoundError:
        added = [entry for entry in path if entry not in sys.path]
        sys.path.extend(added)
        try:
            return pickle.loads(data)  # type: ignore[no-any-return]  # noqa: S301 the same
        finally:
            for entry in added:
                sys.path.remove(entry)
