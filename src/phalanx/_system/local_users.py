"""Which users of this machine may connect to a port of ours: this one, root, and those that
processes of ours run as.
"""

from __future__ import annotations

import functools
import os
import socket
import time

from phalanx._system import processes, socket_owner

_REFUSED_FOR = 1.0
"""Seconds before it is looked again whether a user has come to be one of those."""


class LocalUsers:
    """Tells connections of one's own from those of other users of this machine.

    What comes from another machine is not known to be anybody's, and is let in.
    """

    def __init__(self, above: int) -> None:
        """`above` is the process that those of ours are below."""
        self._above = above
        self._own = {0, os.geteuid()}
        self._refused: dict[int, float] = {}

    def admit(self, connection: socket.socket) -> bool:
        """Whether the other end may be served."""
        uid = socket_owner.peer_uid(connection)
        if uid is None:
            # Who has left cannot be known any more, but what it has sent is still to be read.
            return not (socket_owner.is_on_this_machine(connection) and _kernel_tells())
        return uid in self._own or self._runs_ours(uid)

    def _runs_ours(self, uid: int) -> bool:
        """A program may have become another user: root's, in a container, often do."""
        now = time.monotonic()
        if now < self._refused.get(uid, now):
            return False
        if any(processes.user_of(pid) == uid for pid in processes.descendants(self._above)):
            self._own.add(uid)
            return True
        self._refused[uid] = time.monotonic() + _REFUSED_FOR
        return False


@functools.cache
def _kernel_tells() -> bool:
    """Whether users of connections can be known here at all: our own ones show it."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.create_connection(listening.getsockname()),
            listening.accept()[0] as connection,
        ):
            return socket_owner.peer_uid(connection) is not None
    except OSError:  # no such address, or no descriptor left: nothing speaks against it
        return True
