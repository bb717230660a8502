"""One that has connected and proves itself, or not: of a flood most do not, and must cost little.

Callbacks of the loop alone: a task with a timeout for each takes as long as all the rest, and
hosts that join wait behind it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from phalanx._channel import trust

_PROVING = 5.0
"""Seconds in which one that connects must have proved itself."""


class Newcomer:
    """A connection of which nothing is known."""

    def __init__(
        self,
        connection: socket.socket,
        admission: trust.Admission,
        *,
        greeted: Callable[[], object],
        proved: Callable[[trust.ConnectionSeal], object],
        refused: Callable[[trust.NotTrusted | OSError], object],
    ) -> None:
        """`refused` is not called by `end`; whose the connection is after `proved` it decides."""
        self._connection = connection
        self._admission = admission
        self._greeted = greeted
        self._proved = proved
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._hear)
        self._limit = self._loop.call_later(_PROVING, self._refuse, TimeoutError())
        self._hear()

    def end(self) -> None:
        """Close the connection."""
        self._let_go()
        self._connection.close()

    def _let_go(self) -> None:
        self._loop.remove_reader(self._connection)
        self._limit.cancel()

    def _refuse(self, why: trust.NotTrusted | OSError) -> None:
        self._let_go()
        self._refused(why)
        self._connection.close()

    def _hear(self) -> None:
        try:
            answer = self._admission.take(self._connection.recv(self._admission.wants))
            if answer and self._connection.send(answer) < len(answer):
                raise OSError("it does not read")  # there is room for all of that
        except BlockingIOError:
            return
        except (trust.NotTrusted, OSError) as error:
            self._refuse(error)
            return
        if self._admission.seal is not None:
            self._let_go()
            self._proved(self._admission.seal)
        elif answer:
            self._greeted()
