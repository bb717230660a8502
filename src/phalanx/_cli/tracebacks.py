"""What the user's own code raised, without the frames of ours that led to it."""

from __future__ import annotations

import importlib
import linecache
import os
import sys
import traceback

from phalanx._aliases import instead_of

_PACKAGE = os.path.dirname(os.path.dirname(__file__))


def print_users_part(error: Exception) -> None:
    """Print an exception from the first frame on that is the user's."""
    trace = error.__traceback__
    while trace is not None and _is_machinery(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
    if instead := instead_of(error):
        print(f"phalanx: {instead}", file=sys.stderr)


def is_raised_outright(error: BaseException) -> bool:
    """It was raised by a `raise` of the user's own, not by something that was called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or _is_machinery(trace.tb_frame.f_code.co_filename):
        return False
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return line.strip().startswith("raise ")


def _is_machinery(path: str) -> bool:
    return path.startswith(("<frozen", os.path.dirname(importlib.__file__), _PACKAGE))
