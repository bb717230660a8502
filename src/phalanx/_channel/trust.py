"""Proof of a shared secret between two processes, before anything that one says has an effect.

    opener ──► listener   greeting, a random number
    listener ──► opener   a random number
    opener ──► listener   HMAC(key, "opener", both numbers)
    listener ──► opener   HMAC(key, "listener", both numbers)

Until the opener has proved itself the listener reads `COST` bytes of it and no more, and says
nothing that another could use. Afterwards each record carries HMAC(key of its direction, count,
SHA-256 of it): what is forged, replayed, reordered or reflected ends the connection. Records are
not encrypted. HMAC-SHA256 of the standard library throughout.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import json
import secrets
import socket
import struct

from phalanx.errors import WireError

GREETING = b"PHXR\x01"
_RANDOM = 32
_PROOF = 32
COST = len(GREETING) + _RANDOM + _PROOF
"""How many bytes are read of one that has proved nothing."""
STRANGER = 64 << 10
"""The longest record of one that has proved itself, and does not take part yet."""
_HEADER = struct.Struct("!I32s")


class NotTrusted(Exception):
    """The other side did not prove that it has the token, or does not accept ours.

    `is_wrong`: it gave a proof, of another token. `heard`: what it said instead of a greeting.
    `greeted`: it speaks our protocol.
    """

    def __init__(
        self, reason: str, *, is_wrong: bool = False, heard: bytes = b"", greeted: bool = False
    ) -> None:
        super().__init__(reason)
        self.is_wrong = is_wrong
        self.heard = heard
        self.greeted = greeted


class ConnectionSeal:
    """What follows a proof: records that only the two can have written, in order."""

    def __init__(self, key: bytes, numbers: bytes, *, opener: bool) -> None:
        """`numbers` are those of this connection alone."""
        directions = [_derive(key, side, numbers) for side in (b"from opener", b"from listener")]
        self._out, self._in = directions if opener else reversed(directions)
        self._sent = self._taken = 0
        self._buffer = bytearray()
        self.limit = STRANGER
        """The longest record that is taken."""

    def seal(self, data: bytes) -> bytes:
        """A record for the other side."""
        tag = _derive(self._out, self._sent.to_bytes(8, "big"), _digest(data))
        self._sent += 1
        return b"".join((_HEADER.pack(len(data), tag), data))

    def open(self, data: bytes) -> list[bytes]:
        """Take some bytes; give the records that they complete. Raises `WireError`."""
        self._buffer += data
        found: list[bytes] = []
        while len(self._buffer) >= _HEADER.size:
            length, tag = _HEADER.unpack_from(self._buffer)
            if length > self.limit:
                raise WireError(f"a record of {length} bytes is over the limit of {self.limit}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            record = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            count = self._taken.to_bytes(8, "big")
            wanted = _derive(self._in, count, hashlib.sha256(record).digest())
            if not hmac.compare_digest(tag, wanted):
                raise WireError("a record that the other side has not written")
            self._taken += 1
            found.append(record)
        return found


async def prove(connection: socket.socket, key: bytes) -> ConnectionSeal:
    """Prove ourselves to whoever listens, and have it do so. Raises `NotTrusted`, `OSError`."""
    loop = asyncio.get_running_loop()
    own = secrets.token_bytes(_RANDOM)
    await loop.sock_sendall(connection, GREETING + own)
    numbers = own + await _receive(connection, _RANDOM, "it did not greet back")
    await loop.sock_sendall(connection, _derive(key, b"opener", numbers))
    proof = await _receive(connection, _PROOF, "it does not accept our token", greeted=True)
    if not hmac.compare_digest(proof, _derive(key, b"listener", numbers)):
        reason = "it could not prove that it has the token"
        raise NotTrusted(reason, is_wrong=True, greeted=True)
    return ConnectionSeal(key, numbers, opener=True)


async def admit(connection: socket.socket, *keys: bytes) -> ConnectionSeal:
    """Have one that has connected prove one of the keys. Raises `NotTrusted`, `OSError`."""
    loop = asyncio.get_running_loop()
    admission = Admission(*keys)
    while (seal := admission.seal) is None:
        heard = await loop.sock_recv(connection, admission.wants)
        await loop.sock_sendall(connection, admission.take(heard))
    return seal


class Admission:
    """How one that has connected proves one of the keys: what it says goes in, answers come out."""

    def __init__(self, *keys: bytes) -> None:
        """Nothing was said."""
        self._keys = keys
        self._heard = b""
        self._numbers = b""
        self.seal: ConnectionSeal | None = None
        """Once it has proved itself."""

    @property
    def wants(self) -> int:
        """How many bytes at most are to be read of it now."""
        return (_PROOF if self._numbers else len(GREETING) + _RANDOM) - len(self._heard)

    def take(self, heard: bytes) -> bytes:
        """What to answer to the next bytes, none at its end. Raises `NotTrusted`."""
        if not heard:
            raise NotTrusted("it left")
        self._heard += heard
        if not self._numbers and not begins_as_greeting(self._heard):
            raise NotTrusted("it uses another protocol", heard=self._heard)
        if self.wants:
            return b""
        said, self._heard = self._heard, b""
        if not self._numbers:
            own = secrets.token_bytes(_RANDOM)
            self._numbers = said[len(GREETING) :] + own
            return own
        for key in self._keys:
            if hmac.compare_digest(said, _derive(key, b"opener", self._numbers)):
                self.seal = ConnectionSeal(key, self._numbers, opener=False)
                return _derive(key, b"listener", self._numbers)
        raise NotTrusted("it could not prove that it has the token", is_wrong=True)


def begins_as_greeting(first: bytes) -> bool:
    """It may be the beginning of a peer's first word."""
    size = len(GREETING)
    return first[:size] == GREETING[: len(first)]


async def _receive(
    connection: socket.socket, size: int, reason: str, *, greeted: bool = False
) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        more = await loop.sock_recv(connection, size - len(data))
        if not more:
            raise NotTrusted(reason, greeted=greeted)
        data += more
    return data


def resume_proof(token: str, who: str, numbers: tuple[str, str], received: int) -> str:
    """What `who` proves with, that goes on with a connection of which it has so many frames.

    The numbers are random ones of both sides, for this proof alone.
    """
    said = json.dumps([who, *numbers, received]).encode()
    return _derive(key_of(token, "reconnect"), said).hex()


def _derive(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join((b"phalanx ", *parts)), "sha256")


@functools.lru_cache(maxsize=2)
def _digest(data: bytes) -> bytes:
    """Taken once for a record that goes to many, also with one of its own before it for each."""
    return hashlib.sha256(data).digest()


# ── keys ──────────────────────────────────────────────────────────────────────


def key_of(token: str, purpose: str) -> bytes:
    """The key that a token gives for a purpose: those of two are unrelated."""
    return _derive(token.encode(errors="surrogateescape"), b"for ", purpose.encode())


def key_at(key: bytes, port: int) -> bytes:
    """The key for those that mean to reach this very port."""
    return _derive(key, b"at ", str(port).encode())
