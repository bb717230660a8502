"""How the hosts of a rendezvous are connected: over TCP, or as a simulation has it."""

from __future__ import annotations

from phalanx._channel import trust
from phalanx._core.rounds import Endpoint
from phalanx._rendezvous.tcp.connections.link import CONNECTING, Link
from phalanx._rendezvous.tcp.connections.listener import Listener


class Connector:
    """Connections over TCP, between those that have the key of the run.

    What is proved says where one meant to go: to the endpoint, or to a port of one host. So
    somebody who sits at one port and passes bytes on to another is refused there: hosts that
    followed each other through him would wait for each other.
    """

    def __init__(self, key: bytes, endpoint: Endpoint) -> None:
        """`key` is what peers prove to each other that they have."""
        self._key = key
        self._endpoint = endpoint

    def listen(self, port: int, *, anywhere: bool, is_endpoint: bool = False) -> Listener:
        """Take a port (0: any), of every address or of loopback. Raises `OSError`."""
        return Listener(port, self._key, anywhere=anywhere, is_endpoint=is_endpoint)

    async def connect(self, contact: Endpoint, patience: float = CONNECTING) -> Link:
        """Connect to another host, within so many seconds. Raises `PeerUnreachable`."""
        is_endpoint = contact == self._endpoint
        key = self._key if is_endpoint else trust.key_at(self._key, contact.port)
        return await Link.to(contact, key, patience)
