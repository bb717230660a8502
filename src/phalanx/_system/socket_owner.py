"""Whose a TCP socket of this machine is, as the kernel says: the user of a peer, the process that
holds a port.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBBI")
_ANSWER = struct.Struct("=IIIII")
"""Expiry, both queues, user, inode; behind the header, four bytes and the addresses."""
_ADDRESSES = 48
_ANY_STATE = 0xFFFFFFFF
_NO_COOKIE = b"\xff" * 8
_LISTENS = "0A"
_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_ROUTE = struct.Struct("=BBBBBBBBI")
"""Family, lengths of both prefixes, four that are not asked for, kind (as answered), flags."""
_ROUTE_KIND_AT = 7
_TO = 1
_LOCAL = 2


@dataclass(frozen=True)
class PortHolder:
    """A process that listens at a port."""

    pid: int
    command: str


def peer_uid(connection: socket.socket) -> int | None:
    """The user at the other end of a connection, if that is on this machine and can be seen.

    What is in another network namespace is as remote as another machine.
    """
    try:
        peer, own = connection.getpeername(), connection.getsockname()
    except OSError:
        return None
    there, here = plain_address(peer[0]), plain_address(own[0])
    try:
        return _ask_kernel(there, peer[1], here, own[1])
    except (OSError, struct.error):
        # A kernel without this question; its table is long to read, so only where it can help.
        is_local = there == here or ipaddress.ip_address(there).is_loopback
        return _look_up(there, peer[1], here, own[1]) if is_local else None


def is_on_this_machine(connection: socket.socket) -> bool:
    """The other end has an address of this machine, also if nobody has it open any more.

    As far as this network namespace goes; of what has left already nothing is known: True.
    """
    try:
        there = plain_address(connection.getpeername()[0])
        here = plain_address(connection.getsockname()[0])
    except OSError:
        return True
    return there == here or is_of_this_machine(there)


def is_of_this_machine(address: str) -> bool:
    """Whether what has this address is reached without leaving the machine, as far as is known."""
    if ipaddress.ip_address(address).is_loopback:
        return True
    try:
        return _leads_nowhere_else(address)
    except (OSError, struct.error):
        return False  # a kernel without this question


@functools.lru_cache(maxsize=1024)
def plain_address(address: str) -> str:
    """An address as it is written, without a scope, and as version 4 where it stands for one.

    Kept, as those of connections are asked for one by one, and few.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def port_holder(port: int) -> PortHolder | None:
    """The process that listens at a port, as far as this user may see it."""
    inodes = {row[9] for row in _rows() if row[3] == _LISTENS and row[1].endswith(f":{port:04X}")}
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{number}") in wanted:
                        return PortHolder(int(pid), _command(pid))
    return None


def _command(pid: str) -> str:
    """How a process was called, short."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read(1 << 12).rstrip(b"\0 ").replace(b"\0", b" ")
    text = words.decode(errors="replace").strip()
    return text if len(text) <= 80 else f"{text[:79]}…"


def _ask_kernel(there: str, there_port: int, here: str, here_port: int) -> int | None:
    """The owner of one socket, by both its ends. Raises `OSError` where that cannot be asked."""
    family = socket.AF_INET6 if ":" in there else socket.AF_INET
    ends = [socket.inet_pton(family, address).ljust(16, b"\0") for address in (there, here)]
    ports = struct.pack("!HH", there_port, here_port)
    body = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE)
    body += ports + b"".join(ends) + struct.pack("=I", 0) + _NO_COOKIE
    size = _HEADER.size + len(body)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
        link.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + body)
        answer = link.recv(1 << 12, socket.MSG_DONTWAIT)
    kind = _HEADER.unpack_from(answer)[1]
    if kind != _SOCK_DIAG_BY_FAMILY:
        (number,) = struct.unpack_from("=i", answer, _HEADER.size)
        if number == -2:  # ENOENT: there is no such socket here
            return None
        raise OSError(-number, os.strerror(-number))
    *_, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size + 4 + _ADDRESSES)
    return int(uid) if inode else None  # without one, nobody has it open any more


def _leads_nowhere_else(address: str) -> bool:
    """Whether the way to an address stays on this machine. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    body = _ROUTE.pack(family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0)
    body += struct.pack("=HH", 4 + len(packed), _TO) + packed
    size = _HEADER.size + len(body)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.send(_HEADER.pack(size, _RTM_GETROUTE, _NLM_F_REQUEST, 0, 0) + body)
        answer = link.recv(1 << 12, socket.MSG_DONTWAIT)
    # An error is no route at all: whoever came from there is on no machine that we know.
    is_route = _HEADER.unpack_from(answer)[1] == _RTM_NEWROUTE
    return is_route and answer[_HEADER.size + _ROUTE_KIND_AT] == _LOCAL


def _look_up(there: str, there_port: int, here: str, here_port: int) -> int | None:
    """The same, in the kernel's table."""
    wanted = (there, there_port), (here, here_port)
    for row in _rows():
        if (_end(row[1]), _end(row[2])) == wanted and row[9] != "0":
            return int(row[7])
    return None


def _rows() -> Iterator[list[str]]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}") as file:
            next(file, None)
            yield from (row for line in file if len(row := line.split()) > 9)


def _end(text: str) -> tuple[str, int]:
    """An address and a port, as the table has them: words of the machine's own byte order."""
    address, _, port = text.partition(":")
    words = bytes.fromhex(address)
    whole = b"".join(
        struct.pack("!I", *struct.unpack("=I", words[i : i + 4])) for i in range(0, len(words), 4)
    )
    return plain_address(str(ipaddress.ip_address(whole))), int(port, 16)
