"""What a host brings to a rendezvous over TCP, and what it was told."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from phalanx._core.ids import AgentId
from phalanx._core.ranks import DEFAULT_ROLE
from phalanx._core.rounds import Endpoint
from phalanx._rendezvous.protocol import CoordinatorSettings
from phalanx._rendezvous.settings import Settings
from phalanx._system import network


@dataclass(frozen=True)
class TcpHost:
    """What this host brings, and what it was told."""

    agent: AgentId
    hostname: str
    workers: int
    run_id: str
    endpoint: Endpoint
    coordinator_settings: CoordinatorSettings
    settings: Settings
    key: bytes = b""
    """What hosts of the run prove to each other that they have."""
    role: str = DEFAULT_ROLE
    shares_port: bool = False
    """The store is to be found at the endpoint's own port."""

    @property
    def is_alone(self) -> bool:
        """No other host can come: not even as a spare, to a port that nobody knows."""
        return self.coordinator_settings.most == 1 and (self.shares_port or self.endpoint.port == 0)

    @property
    def is_local(self) -> bool:
        """All hosts that can come are this machine."""
        return is_local(self.endpoint, self.settings, self.coordinator_settings.most)

    @property
    def known_address(self) -> str:
        """The address that others reach this host at, where it is known; else empty."""
        if self.settings.local_addr:
            return self.settings.local_addr
        return "127.0.0.1" if self.coordinator_settings.most == 1 else ""

    def own_address(self) -> str:
        """The same, found out. Asks the resolver."""
        return network.address_seen_from(self.endpoint.address) or self.hostname

    def carries_store_anyway(self) -> bool:
        """The port is ours, so no worker can have it for a store of its own."""
        return self.shares_port and importlib.util.find_spec("torch") is not None


def is_local(endpoint: Endpoint, settings: Settings, most: int) -> bool:
    """The rendezvous is at this machine's loopback address."""
    name = endpoint.address
    loopback = name == "localhost" or network.is_loopback(name)
    return most == 1 or (loopback and settings.local_addr is None)
