"""What the election needs of etcd: keys with revisions, leases, a way to hear of changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class EtcdUnreachable(Exception):
    """No member of etcd answers, or none that has a majority behind it; it may later."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key's value, and the revision that wrote it."""

    value: bytes
    revision: int


class ElectionKeys(Protocol):
    """The keys of one run. All methods but `close` raise `EtcdUnreachable`."""

    async def read(self, key: str) -> KeyValue | None:
        """The latest value of a key, as a majority has it."""

    async def names(self, prefix: str) -> frozenset[str]:
        """The keys that there are, without the prefix."""

    async def write(
        self, values: Mapping[str, bytes | None], at: Mapping[str, int], lease: int = 0
    ) -> int:
        """Write all values (None: delete) if these keys are at these revisions (0: not there).

        Gives the new revision; 0 if nothing was written. The values live as long as the lease.
        """

    async def grant(self, seconds: float) -> int:
        """A lease that ends so long after it was last kept alive."""

    async def keep_alive(self, lease: int) -> bool:
        """Have a lease go on; False if it has ended."""

    async def revoke(self, lease: int) -> None:
        """End a lease, and what lives as long as it."""

    async def wait_change(self, key: str, seconds: float) -> None:
        """Wait until a key has changed since it was last read, so many seconds at most."""

    async def close(self) -> None:
        """Let go of every connection; idempotent."""
