"""While others' code runs, stdout is not theirs: it is for handles, listings and JSON."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What components, plugins and their children print meanwhile goes to stderr.

    Only for a command, which has one thread.
    """
    ours, kept = sys.stdout, None
    with contextlib.suppress(OSError, AttributeError):  # it may be closed
        ours.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = ours
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)
