"""Hosts that could not be used, in one error."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.errors import StartFailed


def not_started(reasons: Mapping[str, str]) -> StartFailed:
    """One error for all hosts that could not be used."""
    first = next(iter(reasons))
    if len(reasons) == 1:
        message = f"the agent on {first} could not be started: {reasons[first]}"
    else:
        told = {name: reason.replace("\n", "\n    ") for name, reason in reasons.items()}
        lines = [f"  {name}: {reason}" for name, reason in told.items()]
        message = f"the agents on {len(reasons)} hosts could not be started:\n" + "\n".join(lines)
    return StartFailed(message, hostname=first)
