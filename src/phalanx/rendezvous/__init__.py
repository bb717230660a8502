"""Who takes part in a round, and when it ends. `coordinator` decides; others host it.

What is public: `RendezvousHandler` and what belongs to it, `get_handler`, and the errors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "RendezvousClosedError": "phalanx.rendezvous.errors",
    "RendezvousConnectionError": "phalanx.rendezvous.errors",
    "RendezvousError": "phalanx.rendezvous.errors",
    "RendezvousGracefulExitError": "phalanx.rendezvous.errors",
    "RendezvousHandler": "phalanx.rendezvous.handlers",
    "RendezvousInfo": "phalanx.rendezvous.handlers",
    "RendezvousParameters": "phalanx.rendezvous.handlers",
    "RendezvousStateError": "phalanx.rendezvous.errors",
    "RendezvousStoreInfo": "phalanx.rendezvous.handlers",
    "RendezvousTimeoutError": "phalanx.rendezvous.errors",
    "Settings": "phalanx.rendezvous.settings",
    "get_handler": "phalanx.rendezvous.handlers",
}

if TYPE_CHECKING:
    from phalanx.rendezvous.errors import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousStateError,
        RendezvousTimeoutError,
    )
    from phalanx.rendezvous.handlers import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStoreInfo,
        get_handler,
    )
    from phalanx.rendezvous.settings import Settings

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "Settings",
    "get_handler",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
