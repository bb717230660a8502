"""`docker exec -i` where there is no docker command: our streams are those of a command in a
container, and its exit code is ours.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import sys
from typing import Any

from phalanx._schedulers.docker.engine import Engine
from phalanx.errors import PhalanxError

_HEADER = struct.Struct("!BxxxI")
_PIECE = 1 << 16
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
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
        _Conversation(getattr(stream, "_sock", stream)).run()
        return int(engine.api.exec_inspect(made).get("ExitCode") or 0)


class _Conversation:
    """Our streams, and the engine's connection. On one thread: TLS allows no second one."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._unsent, self._unread = b"", b""
        self._input_ended = self._output_ended = False

    def run(self) -> None:
        """Until the command's output ends."""
        while True:
            self._receive()  # all of it: what TLS has read, no select shows
            if self._output_ended:
                return
            self._send()
            wants_input = not self._unsent and not self._input_ended
            reading: list[Any] = [self._connection, *([0] if wants_input else [])]
            writing = [self._connection] if self._unsent else []
            if 0 in select.select(reading, writing, [])[0]:
                self._unsent = os.read(0, _PIECE)
                self._input_ended = not self._unsent
                if self._input_ended:
                    self._end_input()

    def _send(self) -> None:
        with contextlib.suppress(*_LATER):
            while self._unsent:
                self._unsent = self._unsent[self._connection.send(self._unsent) :]

    def _end_input(self) -> None:
        """Say that nothing more comes; the other direction goes on."""
        if isinstance(self._connection, ssl.SSLSocket):
            with contextlib.suppress(ssl.SSLError):  # it would wait for the other's end, too
                self._connection.unwrap()
        else:
            self._connection.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        with contextlib.suppress(*_LATER):
            while data := self._connection.recv(_PIECE):
                self._unread += data
                self._write()
            self._output_ended = True

    def _write(self) -> None:
        """Output comes in pieces, each behind a header that says of which stream it is."""
        while len(self._unread) >= _HEADER.size:
            stream, size = _HEADER.unpack(self._unread[: _HEADER.size])
            end = _HEADER.size + size
            if len(self._unread) < end:
                return
            data, self._unread = self._unread[_HEADER.size : end], self._unread[end:]
            while data:
                data = data[os.write(2 if stream == 2 else 1, data) :]


if __name__ == "__main__":
    main()
