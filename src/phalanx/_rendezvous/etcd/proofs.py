"""Proof, in each value in etcd, that whoever wrote it has the token of the run. Pure.

    value = HMAC(key for this run's values, name of the key, frames), frames

A value cannot be made, changed, or moved to another key or run without the token. One that was
there before can be put back: what that does is for its readers to bear. HMAC-SHA256 of the
standard library.
"""

from __future__ import annotations

import hmac

from phalanx._rendezvous.etcd.keys import KeyValue

_SIZE = 32


class ValueProof:
    """Seals the values of one run, and tells which are sealed."""

    def __init__(self, key: bytes, run_id: str) -> None:
        """`key` is what hosts of the run prove to each other that they have."""
        name = run_id.encode(errors="surrogateescape")
        self._key = hmac.digest(key, b"phalanx values in etcd of " + name, "sha256")

    def seal(self, key: str, frames: bytes) -> bytes:
        """The value for some frames."""
        return self._prove(key, frames) + frames

    def open(self, key: str, entry: KeyValue | None) -> KeyValue | None:
        """What is there, without its proof; None where nothing is, or it has none."""
        if entry is None:
            return None
        proof, frames = entry.value[:_SIZE], without_proof(entry.value)
        if not hmac.compare_digest(proof, self._prove(key, frames)):
            return None
        return KeyValue(frames, entry.revision)

    def _prove(self, key: str, frames: bytes) -> bytes:
        return hmac.digest(self._key, key.encode() + b"\0" + frames, "sha256")


def without_proof(value: bytes) -> bytes:
    """The frames of a value, whether they are proved or not."""
    return value[_SIZE:]
