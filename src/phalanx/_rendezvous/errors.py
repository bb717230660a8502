"""What can go wrong where hosts meet, by the names that torch's users know.

RendezvousError                  hosts could not meet
├── RendezvousClosedError        it is over: nobody meets there any more
├── RendezvousTimeoutError       not enough hosts came in time
├── RendezvousConnectionError    the endpoint could not be reached, or was lost
├── RendezvousStateError         what was found there makes no sense
└── RendezvousGracefulExitError  this host is not needed, and may end
"""

from __future__ import annotations

from phalanx.errors import LaunchError

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
]


class RendezvousError(LaunchError):
    """Hosts could not meet."""


class RendezvousClosedError(RendezvousError):
    """It is over: nobody meets there any more."""


class RendezvousTimeoutError(RendezvousError):
    """Not enough hosts came in time."""


class RendezvousConnectionError(RendezvousError):
    """The endpoint where hosts meet could not be reached, or was lost."""


class RendezvousStateError(RendezvousError):
    """What was found there makes no sense."""


class RendezvousGracefulExitError(RendezvousError):
    """The host is not needed, and may end."""


for _name in __all__:  # tracebacks name them as users import them
    globals()[_name].__module__ = "phalanx.rendezvous"
