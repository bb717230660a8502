"""What was sent and is not known to have arrived, and what has arrived. Pure.

Frames are counted in each direction from the beginning. A side keeps what it sends until the other
has confirmed it; over a new stream both say how many they have, and the rest is sent again. So
nothing is lost or doubled, wherever a stream breaks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from phalanx.errors import WireError

KEPT = 4 << 20
"""Bytes that are kept for a peer before `is_full`: whoever has more to say waits."""
_CONFIRMED_EVERY = 256 << 10
"""Bytes, or frames of about `_FRAME` bytes, after which what has come is confirmed at once."""
_FRAME = 4 << 10


class FrameLedger:
    """The frames of one connection, over all of its streams."""

    def __init__(self, received: int = 0) -> None:
        """Nothing was sent so far, and so many frames have come."""
        self.received = received
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._confirmed = 0
        self._told = received
        self._owed = 0

    @property
    def sent(self) -> int:
        """How many frames were sent."""
        return self._confirmed + len(self._kept)

    @property
    def kept(self) -> Sequence[bytes]:
        """What was sent and is not confirmed: over a new stream, all of it is sent again."""
        return tuple(self._kept)

    @property
    def is_full(self) -> bool:
        """More is kept than should be."""
        return self._kept_bytes > KEPT

    @property
    def is_confirmed(self) -> bool:
        """All that was sent has arrived."""
        return not self._kept

    @property
    def is_owing(self) -> bool:
        """Something has come that the peer does not know of."""
        return self._told < self.received

    def keep(self, frame: bytes) -> None:
        """One more was sent."""
        self._kept.append(frame)
        self._kept_bytes += len(frame)

    def receive(self, size: int) -> bool:
        """One more has come, of about so many bytes; gives whether to confirm it at once."""
        self.received += 1
        self._owed += max(size, _FRAME)
        return self._owed >= _CONFIRMED_EVERY

    def tell(self) -> int:
        """How many have come, for the peer; it is known to it from now on."""
        self._told, self._owed = self.received, 0
        return self.received

    def check(self, count: int) -> None:
        """Raises `WireError` if the peer cannot have so many."""
        if not self._confirmed <= count <= self.sent:
            raise WireError(
                f"a confirmation of {count} frames: {self.sent} were sent, and "
                f"{self._confirmed} confirmed"
            )

    def confirm(self, count: int) -> None:
        """The peer has so many. Raises `WireError` for what cannot be."""
        self.check(count)
        while self._confirmed < count:
            self._kept_bytes -= len(self._kept.popleft())
            self._confirmed += 1
