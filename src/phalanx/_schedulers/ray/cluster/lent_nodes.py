"""Nodes that are lent to a launch: a placement group, of which lost ones are replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx._schedulers.ray.cluster.nodes import NodeNames, NodeServer, PlacedGroup

_ASK = 2.0
"""Seconds between two questions for which resources are missing."""


class LentNodes:
    """All methods may be called from any thread."""

    def __init__(
        self,
        bundles: Sequence[Mapping[str, float]],
        strategy: str,
        token: str,
        env: Mapping[str, str],
        pip: Sequence[str] = (),
    ) -> None:
        """Ask for them; does not wait. `pip` is for those that have no job with it."""
        self._lock = threading.Lock()
        runtime_env = {"pip": list(pip)} if pip else None
        self._group = PlacedGroup(bundles, strategy, token, NodeNames(), runtime_env, env)
        self._was_ready = False
        self._waiting = ""
        self._asked = 0.0

    def look(self) -> None:
        """Ask Ray what has happened since the last time."""
        with self._lock:
            self._group.look()
            places = self._group.places
            if all(one.server is not None for one in places):
                self._was_ready = True
            if time.monotonic() - self._asked > _ASK:
                self._asked = time.monotonic()
                self._waiting = self._group.why_waiting()

    def describe(self) -> dict[str, Any]:
        """How they stand, as data: `hosts` by name, address and port."""
        with self._lock:
            places = self._group.places
            hosts = [
                [one.server.name, one.server.address, one.server.port]
                for one in places
                if one.server is not None
            ]
            ends = [one.end for one in places if one.end]
            end = ""
            if ends and (not self._was_ready or len(ends) == len(places)):
                end = ends[0]
            return {
                "hosts": hosts,
                "ready": self._was_ready,
                "waiting": self._waiting if any(one.waits for one in places) else "",
                "end": end,
            }

    def find(self, name: str) -> NodeServer | None:
        """The server of a host, if it is there."""
        with self._lock:
            servers = (one.server for one in self._group.places)
            return next((s for s in servers if s is not None and s.name == name), None)

    def replace(self, name: str) -> None:
        """Have another for one that is lost: its bundle is placed again, where there is room."""
        with self._lock:
            for one in self._group.places:
                lost = one.server is None and bool(one.end)
                if lost or (one.server is not None and one.server.name == name):
                    one.replace()
                    return

    def remove(self) -> None:
        """Give everything back."""
        with self._lock:
            self._group.remove()
