"""How hosts meet: `RendezvousHandler` to write your own, `get_handler` by name, the errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx._core.lazy import loader

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


__getattr__ = loader(__name__, _PUBLIC)
