"""How a replica ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from phalanx._core.signals import signal_name


@dataclass(frozen=True)
class ReplicaEnd:
    """How a replica ended."""

    exit_code: int | None = None
    signal: str | None = None
    error: str = ""
    """What is known besides what it printed."""
    asked: bool = False
    """It had been asked to end before it did."""
    lost: bool = False
    """Its host was lost, and it with that."""
    python: str = ""
    """The interpreter that another host has for it."""

    @classmethod
    def of(cls, code: int, error: str = "", *, asked: bool = False, python: str = "") -> ReplicaEnd:
        """By its exit code, or minus the number of the signal that killed it."""
        if code < 0:
            return cls(signal=signal_name(-code), error=error, asked=asked, python=python)
        return cls(exit_code=code, error=error, asked=asked, python=python)

    @property
    def succeeded(self) -> bool:
        """It exited with 0."""
        return self.exit_code == 0 and self.signal is None

    @property
    def code(self) -> int:
        """What a shell would give for it."""
        if self.signal is not None:
            name, _, above = self.signal.partition("+")
            return 128 + int(getattr(signal, name, 0)) + int(above or 0)
        return 1 if self.exit_code is None else self.exit_code
