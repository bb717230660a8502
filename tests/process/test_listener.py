"""Where hosts of a rendezvous connect: who is taken first."""

import contextlib
import socket

import pytest

from phalanx._channel import trust
from phalanx._rendezvous.tcp.connections.listener import Listener
from tests.conftest import wait_until

IDLE = 200


def waiting(port):
    """How many the kernel has ready for whoever listens at a port of loopback."""
    with open("/proc/net/tcp") as file:
        (row,) = [line for line in file if f":{port:04X} " in line and " 0A " in line]
    return int(row.split()[4].partition(":")[2], 16)


def test_who_speaks_is_before_those_that_are_idle():
    """A peer speaks first: it does not wait behind thousands that say nothing."""
    with open("/proc/sys/net/ipv4/tcp_syncookies") as file:
        if file.read().strip() == "0":
            pytest.skip("without SYN cookies idle connections must not stay with the kernel")
    listener = Listener(0, bytes(32), anywhere=False, is_endpoint=True)
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        connect = lambda: stack.enter_context(
            socket.create_connection(("127.0.0.1", listener.port), timeout=5)
        )
        for _ in range(IDLE):
            connect()
        peer = connect()
        peer.sendall(trust.GREETING)
        wait_until(lambda: waiting(listener.port) >= 1)
        assert waiting(listener.port) < IDLE
