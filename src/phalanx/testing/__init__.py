"""For authors of plugins: what theirs must pass."""

from __future__ import annotations

from phalanx.testing._lending_suite import LendingSuite
from phalanx.testing._scheduler_suite import SchedulerSuite

__all__ = ["LendingSuite", "SchedulerSuite"]
