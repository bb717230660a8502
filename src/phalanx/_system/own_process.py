"""Whether this process is a command of ours, with no code in it but Python's and ours."""

from __future__ import annotations

import sys

_before: frozenset[str] | None = None
"""The modules that were there when our command began; None in anybody else's process."""


def begin() -> None:
    """This process is ours. What is loaded already is loaded in whatever Python starts here."""
    global _before  # noqa: PLW0603 a process has one program
    _before = frozenset(sys.modules)


def is_ours() -> bool:
    """Nobody else's code was loaded, which may have left anything in the process."""
    if _before is None:
        return False
    loaded = {name.partition(".")[0] for name in sys.modules.keys() - _before}
    return loaded <= sys.stdlib_module_names | {"phalanx"}
