"""What a host brings to a rendezvous over TCP, and what it was told. Data alone."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.rendezvous.protocol import Policy
from phalanx.rendezvous.settings import Settings
from phalanx.rounds import Endpoint


@dataclass(frozen=True)
class Part:
    """What this host brings, and what it was told."""

    agent: int
    hostname: str
    workers: int
    run_id: str
    endpoint: Endpoint
    policy: Policy
    settings: Settings
    shares_port: bool = False
    """The store is to be found at the endpoint's own port."""
