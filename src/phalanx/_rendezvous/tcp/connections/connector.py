"""How the hosts of a rendezvous are connected: over TCP, or as a simulation has it."""

from __future__ import annotations

from phalanx._core.rounds import Endpoint
from phalanx._rendezvous.tcp.connections.link import CONNECTING, Link
from phalanx._rendezvous.tcp.connections.listener import Listener


class Connector:
    """Connections over TCP, between those that have the key of the run."""

    def __init__(self, key: bytes) -> None:
        """`key` is what peers prove to each other that they have."""
        self._key = key

    def listen(self, port: int, *, anywhere: bool) -> Listener:
        """Take a port (0: any), of every address or of loopback. Raises `OSError`."""
        return Listener(port, self._key, anywhere=anywhere)

    async def connect(self, contact: Endpoint, patience: float = CONNECTING) -> Link:
        """Connect to another host, within so many seconds. Raises `PeerUnreachable`."""
        return await Link.to(contact, self._key, patience)
