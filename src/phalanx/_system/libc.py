"""The C library, for what Python has no function for."""

from __future__ import annotations

import ctypes
import functools


@functools.cache
def libc() -> ctypes.CDLL:
    """Made once: each one defines classes of its own, which costs a fork more than the call."""
    return ctypes.CDLL(None, use_errno=True)
