"""The directory of a call that was submitted to a scheduler: the call, and what came of it.

For its owner alone. Both files appear whole or not at all, and say themselves whether they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.errors import LaunchError, SchedulerError

if TYPE_CHECKING:
    from phalanx._launcher.launch_options import LaunchOptions
    from phalanx._launcher.payload import Function
    from phalanx._launcher.planning.imports import Needs

_CALL, _OUTCOME = "call", "outcome"
_SUM = 32


@dataclass(frozen=True)
class SubmittedWork:
    """What is called, as the program on the other host needs it. The function stays pickled."""

    options: LaunchOptions
    function: Function
    needs: Needs
    title: str
    python_path: tuple[str, ...]
    cwd: str | None


@dataclass(frozen=True)
class CallOutcome:
    """What came of it: a result, or what to raise."""

    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True)
class CallDirectory:
    """A directory with a call in it."""

    path: Path

    @classmethod
    def create(cls, base: Path, work: SubmittedWork) -> CallDirectory:
        """A new one, with this call. Raises `SchedulerError`."""
        made = cls(base / secrets.token_hex(8))
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.path.mkdir(mode=0o700)
            made._write(_CALL, work)
        except OSError as error:
            with contextlib.suppress(OSError):
                made.path.rmdir()
            raise SchedulerError(f"cannot write the call to {made.path}: {error}") from error
        return made

    def work(self) -> SubmittedWork:
        """The call. Raises `OSError`, and `ValueError` for a file that is not whole."""
        found = self._read(_CALL)
        if not isinstance(found, SubmittedWork):
            raise ValueError(f"{self.path / _CALL} is not a call")  # noqa: TRY004 a file's content
        return found

    def outcome(self) -> CallOutcome | None:
        """What came of it; None while that is not known."""
        try:
            found = self._read(_OUTCOME)
        except (OSError, ValueError):
            return None
        except Exception as error:  # noqa: BLE001 the user's classes
            text = f"the result cannot be unpickled here: {type(error).__name__}: {error}"
            return CallOutcome(error=LaunchError(text))
        return found if isinstance(found, CallOutcome) else None

    def forget(self) -> None:
        """Have it be unknown what came of it. Raises `OSError`."""
        (self.path / _OUTCOME).unlink(missing_ok=True)

    def finish(self, outcome: CallOutcome) -> None:
        """Say what came of it. Raises `OSError`."""
        try:
            self._write(_OUTCOME, outcome)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 the user's classes
            what = outcome.error if outcome.error is not None else error
            text = f"{type(what).__name__}: {what}"
            instead = LaunchError(text)
            for note in getattr(what, "__notes__", ()):
                instead.add_note(note)
            self._write(_OUTCOME, CallOutcome(error=instead))

    def _write(self, name: str, value: object) -> None:
        import cloudpickle

        data = cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        new = self.path / f"{name}.{secrets.token_hex(4)}.new"
        try:
            with open(new, "xb", opener=lambda p, f: os.open(p, f, 0o600)) as file:
                file.write(hashlib.sha256(data).digest() + data)
                file.flush()
                os.fsync(file.fileno())
            new.rename(self.path / name)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
            raise

    def _read(self, name: str) -> object:
        data = (self.path / name).read_bytes()
        if hashlib.sha256(data[_SUM:]).digest() != data[:_SUM]:
            raise ValueError(f"{self.path / name} is not whole")
        return pickle.loads(data[_SUM:])  # noqa: S301 only its owner can have written it
