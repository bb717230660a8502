"""Torch's own store, as it is met at an endpoint: torchrun waits with it, or asks for it.

A host that was started with torchrun and one of ours can never meet; both should hear of it at
once. Only the first bytes of its protocol are known here.
"""

from __future__ import annotations

import asyncio
import secrets

from phalanx._core.rounds import Endpoint

FIRST_WORDS = b"\x00\xce\xf7\x85\x3c"
"""What a client of the store begins with: a query of kind 0, and a number that never changes."""
_PING = 13
_PATIENCE = 2.0

MIXED = (
    "torchrun is not phalanx torchrun. Start all hosts of a job with the same command: "
    "phalanx torchrun on every host, or torchrun on every host"
)


async def listens_at(place: Endpoint) -> bool:
    """Whether a store of torch's answers there; any other answer, or none, is no."""
    number = secrets.token_bytes(4)
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(place.address, place.port)
            try:
                writer.write(FIRST_WORDS + bytes([_PING]) + number)
                return await reader.readexactly(4) == number
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError):
        return False
