"""Whose a socket of this machine is."""

import socket
import subprocess
import sys

import pytest

from phalanx._system import network, socket_owner

LISTEN = """
import socket, sys
listening = socket.socket(getattr(socket, sys.argv[1]))
listening.bind((sys.argv[2], 0))
listening.listen()
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""
CONNECT = """
import encodings.idna, os, socket, sys
if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(os.getuid(), flush=True)
sys.stdin.read()
"""


def start(code, *words):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("ask", ["the kernel", "its table"])
@pytest.mark.parametrize("version", [4, 6])
def test_the_user_at_the_other_end(monkeypatch, version, ask):
    """Over version 4 to a socket of both versions, and over version 6; asked for in both ways."""
    if ask == "its table":
        monkeypatch.setattr(socket_owner, "_NETLINK_SOCK_DIAG", 31)  # there is no such question
    own, address = ("::", "127.0.0.1") if version == 4 else ("::1", "::1")
    with socket.socket(socket.AF_INET6) as listening:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listening.bind((own, 0))
        except OSError:
            pytest.skip("this machine has no addresses of version 6")
        listening.listen()
        listening.settimeout(30)
        client = start(CONNECT, address, listening.getsockname()[1])
        connection, _ = listening.accept()
        with connection:
            assert socket_owner.peer_uid(connection) == int(client.stdout.readline())
            client.communicate("")
            assert connection.recv(1) == b""
            assert socket_owner.peer_uid(connection) is None  # nobody has it any more


@pytest.mark.parametrize(("family", "address"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::")])
def test_the_process_that_holds_a_port(family, address):
    """By its number and its command line."""
    holder = start(LISTEN, family, address)
    port = int(holder.stdout.readline())
    found = socket_owner.port_holder(port)
    holder.communicate("")
    assert found.pid == holder.pid
    assert found.command.startswith(sys.executable) and len(found.command) <= 80
    assert socket_owner.port_holder(port) is None


def test_a_listening_socket_has_no_peer():
    """And what is closed has none either."""
    listening = socket.create_server(("127.0.0.1", 0))
    assert socket_owner.peer_uid(listening) is None
    listening.close()
    assert socket_owner.peer_uid(listening) is None


@pytest.mark.parametrize(
    ("address", "is_local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("198.51.100.1", False)],
)
def test_the_way_to_an_address_stays_on_this_machine(address, is_local):
    """Asked of the kernel, so that no address of ours is forgotten."""
    assert socket_owner._leads_nowhere_else(address) is is_local
    for _, own in network.interfaces():
        assert socket_owner._leads_nowhere_else(own)


def test_the_other_end_is_on_this_machine_whoever_has_it():
    """Also when it has left; from another address of ours too."""
    with socket.create_server(("", 0)) as listening:
        place = "127.0.0.1", listening.getsockname()[1]
        with socket.create_connection(place, source_address=("127.0.0.2", 0)):
            connection, _ = listening.accept()
            assert socket_owner.is_on_this_machine(connection)
        with connection:
            assert connection.recv(1) == b""
            assert socket_owner.is_on_this_machine(connection)
    assert socket_owner.is_on_this_machine(connection)
