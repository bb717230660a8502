"""How large a value that a peer sends may be. Checked where frames are decoded. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from phalanx._core.ids import AgentId


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `low` to `high`, both included."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class AtMost:
    """A text of so many characters, or a collection of so many items."""

    size: int


ANY_TEXT = AtMost(4 << 20)
"""For a text that has no limit of its own."""
ANY_ITEMS = AtMost(1 << 20)
"""For a collection that has no limit of its own."""

Port = Annotated[int, Between(0, 65535)]
AnyCount = Annotated[int, Between(0, 1 << 31)]
"""A number of things: restarts, the position of a rank."""
WorkerCount = Annotated[int, Between(1, 1 << 20)]
AgentNumber = Annotated[AgentId, Between(-(1 << 31), 1 << 63)]
"""Below 0: one that somebody else's rendezvous knows, and we do not."""
RoundNumber = Annotated[int, Between(0, 1 << 62)]
Pid = Annotated[int, Between(0, 1 << 31)]
Size = Annotated[int, Between(0, 1 << 62)]
"""A number of bytes."""
SignalNumber = Annotated[int, Between(0, 64)]
ExitCode = Annotated[int, Between(-(1 << 31), 1 << 32)]
Moment = Annotated[float, Between(-1e15, 1e15)]
"""A time by some host's monotonic clock."""
Seconds = Annotated[float, Between(0.0, float("inf"))]
"""How long something takes, or may take."""
Amount = Annotated[float, Between(0.0, 1 << 62)]
"""What a check goes by: bytes, seconds, or a number of things."""
Name = Annotated[str, AtMost(255)]
"""A host, an address, an interface, an app."""
RunId = Annotated[str, AtMost(4096)]
"""What names an app; the user may have chosen it."""
Digest = Annotated[str, AtMost(255)]
Path = Annotated[str, AtMost(32 << 10)]
Message = Annotated[str, AtMost(256 << 10)]
"""What is shown to the user."""
