"""For authors of plugins and components: what theirs must pass."""

from __future__ import annotations

from phalanx.testing._component_test_case import ComponentTestCase
from phalanx.testing._lending_suite import LendingSuite
from phalanx.testing._rendezvous_suite import RendezvousSuite
from phalanx.testing._scheduler_suite import SchedulerSuite

__all__ = ["ComponentTestCase", "LendingSuite", "RendezvousSuite", "SchedulerSuite"]
