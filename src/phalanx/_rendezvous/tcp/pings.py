"""When each of many hosts is asked for a sign of life."""

from __future__ import annotations

import time
from collections import deque

from phalanx import _wire as wire
from phalanx._rendezvous.settings import Settings
from phalanx._rendezvous.tcp.connections.link import Link

_MOST = 1250
"""Pings a second, as long as every host is asked at least twice within `host_timeout`."""


class Pings:
    """Asks all that have joined again and again, each at its own moment."""

    def __init__(self, settings: Settings) -> None:
        """Nobody has joined."""
        self._settings = settings
        self._due: deque[tuple[float, Link]] = deque()
        self._now = 0.0

    @property
    def beat(self) -> float:
        """Seconds between two pings to one host: more, the more hosts there are."""
        paced = min(len(self._due) / _MOST, self._settings.host_timeout / 2)
        return max(self._settings.heartbeat, paced)

    def add(self, link: Link) -> None:
        """One has joined: ask it now, and from now on."""
        self._ping(link, _encoded())

    def pass_time(self, seconds: float) -> None:
        """So much time was waited for: ask those whose time has come."""
        self._now += seconds
        ping = _encoded()
        while self._due and self._due[0][0] <= self._now:
            _, link = self._due.popleft()
            if not link.is_over:
                self._ping(link, ping)

    def _ping(self, link: Link, ping: bytes) -> None:
        link.post_ping(ping)
        self._due.append((self._now + self.beat, link))


def _encoded() -> bytes:
    """The same for everybody who is asked now."""
    return wire.encode(wire.Ping(sent=time.monotonic()))
