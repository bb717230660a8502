"""Addresses of this host: which it has, which leads to another, and whether another is reached."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import ipaddress
import os
import random
import socket
import struct

_SIOCGIFCONF = 0x8912
_IFREQ = 40
"""The size of what the kernel tells of each address: the name first, the address from 20 on."""
_LOWEST = 10000
"""Of the ports to choose from: below it are well-known ones."""
_NOWHERE = "198.51.100.1"
"""An address for documentation: the way to it is the way out. Nothing is sent there."""


def interfaces() -> list[tuple[str, str]]:
    """Every (name, address) of this host, loopback among them."""
    found: list[tuple[str, str]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        buffer = array.array("B", bytes(128 * _IFREQ))
        pointer, length = buffer.buffer_info()
        answer = fcntl.ioctl(probe, _SIOCGIFCONF, struct.pack("iL", length, pointer))
        used = struct.unpack("iL", answer)[0]
    for at in range(0, used, _IFREQ):
        name, address = buffer[at : at + 16].tobytes(), buffer[at + 20 : at + 24].tobytes()
        found.append((name.partition(b"\0")[0].decode(), socket.inet_ntoa(address)))
    try:
        with open("/proc/net/if_inet6") as file:
            lines = [line.split() for line in file]
    except OSError:
        lines = []
    found += [(f[5], str(ipaddress.IPv6Address(bytes.fromhex(f[0])))) for f in lines]
    return found


def address_of(interface: str) -> str | None:
    """An address of an interface, of version 4 if it has one."""
    return next((address for name, address in interfaces() if name == interface), None)


def interface_of(address: str) -> str | None:
    """The interface that has an address."""
    wanted = _parsed(address)
    for name, own in interfaces():
        if wanted is not None and _parsed(own) == wanted:
            return name.partition(":")[0]
    return None


def address_towards(other: str = _NOWHERE) -> str | None:
    """The address that this host uses towards another; by default, towards the world."""
    try:
        family, kind, protocol, _, sockaddr = socket.getaddrinfo(
            other, 9, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(sockaddr)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def address_seen_from(name: str) -> str:
    """The address under which another host, by its name or address, sees this one; may be empty.

    Where the name is this machine's own, that is the address that others know it by.
    """
    try:
        address = str(socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError:
        return own_address()
    own = address_towards(address) or ""
    if is_loopback(own) and name != "localhost" and _parsed(name) is None:
        return own_address() or own  # a name of ours that our own tables have as loopback
    return own


def why_unknown(name: str) -> str:
    """Why the resolver gives no address of a host; empty if it gives one."""
    try:
        socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def interface_towards(address: str) -> str | None:
    """The interface that workers of this host use when they meet at an address, or at a name: the
    one that leads there. The only place where that is decided, whoever starts the workers.
    """
    own = address_seen_from(address)
    return interface_of(own) if own else None


def is_loopback(address: str) -> bool:
    """It leads nowhere else than to this host."""
    parsed = _parsed(address)
    return parsed is not None and parsed.is_loopback


def own_address() -> str:
    """The address that others may reach this host at: the one ssh came to, or the way out."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    candidates = [connection[2]] if len(connection) == 4 else []
    candidates.append(address_towards(os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")) or "")
    for address in candidates:
        if address and not is_loopback(address) and interface_of(address) is not None:
            return address
    return address_towards() or ""


def bind(*, anywhere: bool) -> socket.socket:
    """Bind a free port without listening: of loopback, or of every address of both versions."""
    if anywhere:
        try:
            return _bind(socket.socket(socket.AF_INET6), "::")
        except OSError:
            return _bind(socket.socket(), "0.0.0.0")  # noqa: S104 every address that it has
    return _bind(socket.socket(), "127.0.0.1")


def listen(port: int) -> socket.socket:
    """Listen at a port, of every address of both versions. Raises `OSError`."""
    try:
        bound = _bind(socket.socket(socket.AF_INET6), "::", port)
    except OSError:
        bound = _bind(socket.socket(), "0.0.0.0", port)  # noqa: S104 every address that it has
    bound.listen(1024)
    return bound


def bind_pair(*, anywhere: bool) -> tuple[socket.socket, socket.socket]:
    """Bind a free port and the one after it, without listening.

    Others that do the same do not get either; a server that reuses addresses can have both. Where
    there are no two in a row, the second socket is not bound: few want it.
    """
    for _ in range(200):
        first = bind(anywhere=anywhere)
        address, port = first.getsockname()[:2]
        second = socket.socket(first.family)
        try:
            _bind(second, address, port + 1)
        except (OSError, OverflowError):  # taken, or beyond the last
            first.close()
            second.close()
            continue
        return first, second
    return bind(anywhere=anywhere), socket.socket()


def confine_to_loopback(bound: socket.socket) -> None:
    """Have a socket take connections from this machine alone, where the kernel lets us."""
    with contextlib.suppress(OSError):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")


def free_port() -> int:
    """A port at which nobody listens, for a server that is started in a moment.

    Chosen at random, and not among those that the kernel gives to whoever connects somewhere: it
    will still be free then.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        below = int(file.read().split()[0])
    for _ in range(100):
        port = random.SystemRandom().randrange(_LOWEST, below) if below > 2 * _LOWEST else 0
        with contextlib.suppress(OSError), _bind(socket.socket(), "0.0.0.0", port) as bound:  # noqa: S104
            return int(bound.getsockname()[1])
    raise OSError(errno.EADDRINUSE, "no free port was found")


def _bind(bound: socket.socket, address: str, port: int = 0) -> socket.socket:
    if bound.family == socket.AF_INET6:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    bound.bind((address, port))
    # Only now: a port that is asked for by its number must not be shared with one who holds it so.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return bound


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed
