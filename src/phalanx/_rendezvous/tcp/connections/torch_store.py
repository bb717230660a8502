"""Torch's own store, as it is met at an endpoint: torchrun waits with it, or asks for it.

A host that was started with torchrun and one of ours can never meet; both should hear of it at
once. Only the first bytes of its protocol are known here.
"""

from __future__ import annotations

import asyncio
import struct

from phalanx._core.rounds import Endpoint

_FIRST_WORDS = b"\x00\xce\xf7\x85\x3c"
"""What a client of the store begins with: a query of kind 0, and a number that never changes."""
_PING = b"\x0d"
_OUR_NUMBER = b"PHXR"
"""Sent with a ping, and answered with. torch's clients send their pid, which is never so large."""
_OUR_FIRST_WORDS = _FIRST_WORDS + _PING + _OUR_NUMBER
LONGEST = len(_OUR_FIRST_WORDS)
"""Bytes by which a client of torch's and a host of ours that asks are told apart."""
_CHECK = b"\x05"
_NOT_THERE = b"\x01"
_OUR_KEY = b"/phalanx"
"""Set in stores of ours (`_torch.store`), which may answer at a port that hosts meet at."""
_PATIENCE = 2.0

MIXED = (
    "torchrun is not phalanx torchrun. Start all hosts of a job with the same command: "
    "phalanx torchrun on every host, or torchrun on every host"
)


def is_from_torch(first: bytes) -> bool:
    """Whether a client of torch's begins so: not a host of ours that asks what listens here."""
    return first.startswith(_FIRST_WORDS) and not first.startswith(_OUR_FIRST_WORDS)


async def listens_at(endpoint: Endpoint) -> bool:
    """Whether a store of torchrun's answers there; ours, any other answer, or none, is no."""
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(endpoint.address, endpoint.port)
            try:
                writer.write(_OUR_FIRST_WORDS)
                if await reader.readexactly(4) != _OUR_NUMBER:
                    return False
                writer.write(_CHECK + struct.pack("=QQ", 1, len(_OUR_KEY)) + _OUR_KEY)
                return await reader.readexactly(1) == _NOT_THERE
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError):
        return False
