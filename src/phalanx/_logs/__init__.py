"""What workers and agents say, and where it goes: files, the terminal, a program's own handlers.

`LogSpec` says where. Raw output is carried as bytes to what takes bytes, and becomes records, line
by line, only for `logging` handlers. Writing happens on threads of its own, so that a slow disk, a
terminal that is not read or a handler that blocks holds up neither the launch nor the workers.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("phalanx")
PASSING = "phalanx_passing"
"""The attribute of a record that tells how far something is: nothing to keep."""
