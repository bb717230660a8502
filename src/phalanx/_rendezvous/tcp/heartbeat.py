"""Signs of life between hosts, and their absence.

The leader asks, the others answer: that is a sign of life both ways.
"""

from __future__ import annotations

import asyncio

from phalanx import _wire as wire
from phalanx._logs import logger
from phalanx._rendezvous.tcp.connections.link import Link
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.leader import Leader
from phalanx._rendezvous.tcp.state import TcpState
from phalanx._system import network
from phalanx._wire.rendezvous_frames import GivenUp

SAID_AFTER = 2.0
"""Seconds after which it is said what is waited for."""
_TICK = 0.1
_LOOKS = 4
"""How often in the time between two pings it is looked who is silent."""


class Heartbeat:
    """Pings those that follow, and gives up those of which nothing is heard."""

    def __init__(self, host: TcpHost, state: TcpState) -> None:
        """Nothing is sent before `run`."""
        self._host = host
        self._state = state
        self._limit = host.settings.host_timeout
        self._waited = 0.0
        """Seconds that more hosts were waited for."""
        self._saying: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until cancelled. Time in which this process was stopped does not count."""
        try:
            await self._watch()
        finally:
            if self._saying is not None:
                self._saying.cancel()

    async def _watch(self) -> None:
        look = self._host.settings.heartbeat / _LOOKS
        waited = 0.0
        while True:
            await asyncio.sleep(_TICK)
            waited += _TICK
            self._say_who_is_missing()
            if (leader := self._state.leader) is not None:
                leader.pings.pass_time(_TICK)
            if waited >= look:
                for link in self._links():
                    link.pass_time(waited)
                    if link.silent >= self._limit:
                        self._give_up(link)
                waited = 0.0

    def _links(self) -> list[Link]:
        link, leader = self._state.link, self._state.leader
        return ([] if link is None else [link]) + ([] if leader is None else leader.links)

    def _give_up(self, link: Link) -> None:
        if link is self._state.link:
            link.post_encoded(wire.encode(GivenUp()))  # it may have been stopped for a while
            link.abort()
        elif (leader := self._state.leader) is not None:
            leader.lose(link, f"no heartbeat for {self._limit:g} s", closed=False)

    def _say_who_is_missing(self) -> None:
        """Say once, after a moment, that more hosts are waited for."""
        leader, waited, few = self._state.leader, self._waited, False
        if leader is not None and self._state.request is not None and not self._host.is_alone:
            few = leader.lacks_hosts
        if few and leader is not None and waited < SAID_AFTER <= waited + _TICK:
            self._saying = asyncio.create_task(self._say_missing(leader))
        self._waited = waited + _TICK if few else 0.0

    async def _say_missing(self, leader: Leader) -> None:
        endpoint, limit = self._host.endpoint, self._host.settings.join_timeout
        problem = await asyncio.to_thread(network.why_unknown, endpoint.address)
        hint = problem and f". This host finds no address of {endpoint.address}: {problem}"
        logger.warning(
            "phalanx: waiting for hosts at %s:%d, up to %g s (join_timeout): %s%s",
            endpoint.address,
            endpoint.port,
            limit,
            leader.gathered,
            hint,
        )
