"""An agent without an app, to be found by the next command of the same user.

It listens on a socket in a directory that only its owner may enter. Beside it lies a description,
so that one can ask what is there without disturbing it. A visitor brings the streams that it will
speak over, as descriptors; from then on it is as if it had started the agent itself. One visitor at
a time: while an agent is busy there is nothing to be found.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any

from phalanx import _wire as wire
from phalanx._channel.channel import PipeChannel
from phalanx._system import identity, processes

Streams = tuple[int, int]
"""Descriptors to read from and to write to."""

ACCEPTED = b"1"
"""What a visitor is told once the agent is its own."""

_CREDENTIALS = struct.Struct("3i")
_PATIENCE = 2.0
"""Seconds for a visitor to say what it has come with."""


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(raw)
    return pid, user


async def wait_to_be_found(
    stay: wire.StayWarm, facts: Mapping[str, Any], ending: asyncio.Event
) -> PipeChannel | None:
    """Let go of everything that belongs to the last command, and wait for the next, or the end."""
    let_go()
    visiting = asyncio.create_task(wait_for_visitor(stay, facts))
    ended = asyncio.create_task(ending.wait())
    await asyncio.wait({visiting, ended}, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    visiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        streams = await visiting
        if streams is not None:
            read, write = open(streams[0], "rb", 0), open(streams[1], "wb", 0)  # noqa: ASYNC230, SIM115
            return await PipeChannel.open(read, write)
    return None


async def wait_for_visitor(stay: wire.StayWarm, facts: Mapping[str, Any]) -> Streams | None:
    """Be there to be found for as long as was said; gives a visitor's streams, or None.

    Only processes of the same user are let in. Raises `OSError` if the socket cannot be made.
    """
    path = os.path.join(stay.directory, f"{stay.key}-{os.getpid()}")
    # By descriptor: the path of a socket may have only 107 bytes.
    directory = os.open(stay.directory, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.setblocking(False)
        try:
            listening.bind(f"/proc/self/fd/{directory}/{stay.key}-{os.getpid()}.sock")
            os.chmod(f"{path}.sock", 0o600)
            listening.listen(8)
            _describe(f"{path}.json", stay, facts)
            async with asyncio.timeout(stay.keep):
                while True:
                    connection, _ = await asyncio.get_running_loop().sock_accept(listening)
                    with connection:
                        if streams := _streams(connection):
                            return streams
        except TimeoutError:
            return None
        finally:
            os.close(directory)
            for suffix in ("sock", "json"):
                with contextlib.suppress(OSError):
                    os.unlink(f"{path}.{suffix}")


def _streams(connection: socket.socket) -> Streams | None:
    if peer(connection)[1] != os.geteuid():
        return None
    connection.settimeout(_PATIENCE)
    try:
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
    except OSError:
        return None
    for number in descriptors:
        os.set_inheritable(number, False)
    if len(descriptors) == 3 and _acknowledge(connection):
        read, write, errors = descriptors
        _print_to(errors)
        return read, write
    for number in descriptors:
        os.close(number)
    return None


def _acknowledge(connection: socket.socket) -> bool:
    """Tell the visitor that it is the one; whether it is still there."""
    try:
        connection.sendall(ACCEPTED)
    except OSError:
        return False
    return True


def let_go() -> None:
    """Keep neither the streams nor the directory of whoever started this process."""
    _print_to(os.open(os.devnull, os.O_WRONLY))
    os.chdir("/")


def _print_to(number: int) -> None:
    for stream in (1, 2):
        os.dup2(number, stream)
    os.close(number)


def _describe(path: str, stay: wire.StayWarm, facts: Mapping[str, Any]) -> None:
    now = time.time()
    known = {
        "pid": os.getpid(),
        "start": processes.start_time(os.getpid()),
        "space": identity.space("pid"),
        "python": sys.executable,
        "since": now,
        "until": now + stay.keep,
    }
    try:
        with open(f"{path}.new", "w", opener=lambda p, f: os.open(p, f, 0o600)) as file:
            json.dump({**known, **facts}, file)
        os.rename(f"{path}.new", path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(f"{path}.new")
        raise
