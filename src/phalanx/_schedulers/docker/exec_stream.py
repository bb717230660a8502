"""`docker exec -i` where there is no docker command: our streams are those of a command in a
container, and its exit code is ours.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading

from phalanx._schedulers.docker.engine import Engine
from phalanx.errors import PhalanxError

_HEADER = struct.Struct("!BxxxI")
_PIECE = 1 << 16
_FAILED = 125
"""What `docker exec` exits with when it cannot run the command."""


def main() -> None:
    """Run the command that the arguments name: a container, and what is run in it."""
    container, *command = sys.argv[1:]
    try:
        sys.exit(_run(container, command))
    except PhalanxError as error:
        print(f"docker: {error}", file=sys.stderr)
        sys.exit(_FAILED)


def _run(container: str, command: list[str]) -> int:
    with Engine() as engine, engine.errors(f"run a command in {container}"):
        made = engine.api.exec_create(container, command, stdin=True)["Id"]
        stream = engine.api.exec_start(made, socket=True)
        connection: socket.socket = getattr(stream, "_sock", stream)
        connection.settimeout(None)
        threading.Thread(target=_send, args=(connection,), daemon=True).start()
        _receive(connection)
        return int(engine.api.exec_inspect(made).get("ExitCode") or 0)


def _send(connection: socket.socket) -> None:
    while data := os.read(0, _PIECE):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def _receive(connection: socket.socket) -> None:
    """Its output comes in pieces, each behind a header that says of which stream it is."""
    while header := _exactly(connection, _HEADER.size):
        stream, left = _HEADER.unpack(header)
        while left:
            data = connection.recv(min(left, _PIECE))
            if not data:
                return
            left -= len(data)
            target = 2 if stream == 2 else 1
            while data:
                data = data[os.write(target, data) :]


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            return b""
        data += more
    return data


if __name__ == "__main__":
    main()
