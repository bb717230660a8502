"""Signals, by name."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """Name a signal as `kill -l` does, real-time ones included."""
    try:
        return signal.Signals(number).name
    except ValueError:
        if signal.SIGRTMIN < number < signal.SIGRTMAX:
            return f"SIGRTMIN+{number - signal.SIGRTMIN}"
        return f"signal {number}"
