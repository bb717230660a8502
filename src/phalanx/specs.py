"""What an app is and how it stands, as data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from phalanx.rounds import Outcome


class AppState(Enum):
    """Where an app stands."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """It will not change any more."""
        return self not in (AppState.PENDING, AppState.RUNNING)


@dataclass(frozen=True)
class AppStatus:
    """An app at one moment."""

    app: str
    state: AppState
    message: str
    """What went wrong, in one line; empty while nothing has."""
    ended: tuple[Outcome, ...]
    """How the workers that have ended did, in rank order."""
    seconds: float
    """How long it has been going, or went."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """When it reached what, in seconds since its start: see `docs/performance.md`."""
