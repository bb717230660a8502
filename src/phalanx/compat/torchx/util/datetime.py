"""TorchX's helper for times."""

from __future__ import annotations

import time

__all__ = ["get_past_epoch_time"]


def get_past_epoch_time(days_past: int) -> int:
    """The time some days ago, in seconds since 1970.

    Args:
        days_past: How many days.
    """
    return int(time.time() - days_past * 24 * 3600)
