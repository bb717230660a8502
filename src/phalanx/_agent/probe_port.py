"""Whether hosts reach each other, found out before workers wait for each other in vain."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Any

from phalanx import _wire as wire
from phalanx._system import identity, network

_PATIENCE = 5.0
"""Seconds for a host to answer."""


class ProbePort:
    """A port that takes connections and says nothing, for other hosts to try."""

    def __init__(self) -> None:
        """Open it, at every address."""
        self._listening = network.bind(anywhere=True)
        self._listening.listen(1024)
        self._listening.setblocking(False)
        self.number: int = self._listening.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.accept()[0].close()

    def close(self) -> None:
        """Close it; idempotent."""
        if self._listening.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()


def whereabouts(interface: str) -> dict[str, Any]:
    """The part of `Hello` that says where this host is found."""
    own = network.address_of(interface) if interface else network.own_address()
    return {"space": identity.space("net"), "address": own or ""}


async def reach(frame: wire.Reach, tell: Callable[[wire.Frame], Awaitable[None]]) -> None:
    """Try to connect, and say what came of it."""
    problem = ""
    try:
        async with asyncio.timeout(_PATIENCE):
            _, writer = await asyncio.open_connection(frame.address, frame.port)
        writer.close()
    except TimeoutError:
        problem = f"no answer within {_PATIENCE:g} s"
    except OSError as error:
        problem = os.strerror(error.errno) if error.errno else str(error)
    reached = wire.Reached(app=frame.app, problem=problem, address=frame.address, port=frame.port)
    await tell(reached)
