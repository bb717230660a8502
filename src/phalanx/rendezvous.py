"""How hosts meet: `RendezvousHandler` to write your own, `get_handler` by name, the errors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx._rendezvous.errors import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousStateError,
        RendezvousTimeoutError,
    )
    from phalanx._rendezvous.handler_api import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStoreInfo,
    )
    from phalanx._rendezvous.handlers import get_handler
    from phalanx._rendezvous.settings import Settings

_PUBLIC = {
    "RendezvousClosedError": "phalanx._rendezvous.errors",
    "RendezvousConnectionError": "phalanx._rendezvous.errors",
    "RendezvousError": "phalanx._rendezvous.errors",
    "RendezvousGracefulExitError": "phalanx._rendezvous.errors",
    "RendezvousHandler": "phalanx._rendezvous.handler_api",
    "RendezvousInfo": "phalanx._rendezvous.handler_api",
    "RendezvousParameters": "phalanx._rendezvous.handler_api",
    "RendezvousStateError": "phalanx._rendezvous.errors",
    "RendezvousStoreInfo": "phalanx._rendezvous.handler_api",
    "RendezvousTimeoutError": "phalanx._rendezvous.errors",
    "Settings": "phalanx._rendezvous.settings",
    "get_handler": "phalanx._rendezvous.handlers",
}

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
