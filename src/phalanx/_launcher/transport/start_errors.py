"""Hosts that could not be used, in one error."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from phalanx.errors import StartFailed


def not_started(reasons: Mapping[str, str], lost: Collection[str] = ()) -> StartFailed:
    """One error for all hosts that could not be used; of those in `lost`, agents had started."""
    first = next(iter(reasons))
    if len(reasons) == 1:
        what = f"lost {first} before its workers started"
        message = f"{what if lost else f'cannot start the agent on {first}'}: {reasons[first]}"
    else:
        told = {name: reason.replace("\n", "\n    ") for name, reason in reasons.items()}
        lines = [
            f"  {name}: {'lost before its workers started: ' if name in lost else ''}{reason}"
            for name, reason in told.items()
        ]
        message = f"cannot start the agents on {len(reasons)} hosts:\n" + "\n".join(lines)
    return StartFailed(message, hostname=first)
