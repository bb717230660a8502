"""The rendezvous `phalanx` of torch's own torchrun, as the entry point `torchrun.handlers` wants.

torch loads this module while it is being imported itself: it imports nothing of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def get_factory() -> Callable[[Any], Any]:
    """What makes a handler from torch's `RendezvousParameters`."""
    return _create


def _create(parameters: Any) -> Any:
    from phalanx._torch.torchrun_handler import create

    return create(parameters)
