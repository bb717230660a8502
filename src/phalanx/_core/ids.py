"""Kinds of number that must not be taken for one another. Types alone."""

from __future__ import annotations

from typing import NewType

AgentId = NewType("AgentId", int)
"""Names an agent, for as long as its host takes part; no order."""
HostIndex = NewType("HostIndex", int)
"""The position of a host in a plan, in the order of the user's list."""
