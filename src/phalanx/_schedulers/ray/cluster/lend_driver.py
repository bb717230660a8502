"""Holds hosts for a launcher outside the cluster, and leads it to them.

One port, on the node that the job's driver runs on. Who connects says in a line where to:

| line | leads to |
|---|---|
| `lease` | here: how the hosts stand, as JSON, and what the launcher wants of them |
| the name of a host | the server on that node, byte for byte |

Nobody is believed before it has proved the token, here or to the server. The launcher's connection
is what keeps the hosts: without it, everything ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from typing import Any

from phalanx._schedulers.ray import command_stream, job_log
from phalanx._schedulers.ray.cluster.guarded_port import GuardedPort
from phalanx._schedulers.ray.cluster.lent_nodes import LentNodes
from phalanx._schedulers.ray.command_stream import PIECE, RecordStream

LEASE = "lease"
_LOOK = 0.1
_FIRST = 120.0
"""Seconds for the launcher to come at all."""
_LONGEST = 300
_CONNECTIONS = 4096
"""Most connections to hosts, and of who has not said where to."""
_SAYING = 10.0


async def lend_hosts(request: dict[str, Any]) -> None:
    """Hold the hosts until the launcher gives them back, or is gone."""
    lending = _Lending(request)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lending.ended.set)
    try:
        await lending.run()
    finally:
        lending.close()


class _Lending:
    def __init__(self, request: dict[str, Any]) -> None:
        self._token = request["token"]
        self._port = request["relay_port"]
        self._nodes = LentNodes(
            request["bundles"], request["strategy"], self._token, request["env"]
        )
        self._alone = float(request["alone"])
        """Seconds without the launcher after which the hosts are given back; it may come back."""
        self.ended = asyncio.Event()
        self._launchers: set[RecordStream] = set()
        self._heard = time.monotonic() + _FIRST - self._alone
        self._said = ""

    async def run(self) -> None:
        import ray

        listening = socket.create_server(("", self._port), backlog=128)
        listening.setblocking(False)
        addresses = [ray.util.get_node_ip_address()]
        port = listening.getsockname()[1]
        sys.stdout.write(job_log.relay({"addresses": addresses, "port": port}))
        sys.stdout.flush()
        self._clients = GuardedPort(listening, _CONNECTIONS, keeps=True)
        accepting = asyncio.create_task(self._clients.serve(self._serve))
        try:
            while not self.ended.is_set():
                await asyncio.to_thread(self._nodes.look)
                await self._tell_all()
                if self._launchers:
                    self._heard = time.monotonic()
                elif time.monotonic() - self._heard > self._alone:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await self.ended.wait()
        finally:
            accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await accepting

    def close(self) -> None:
        """Give everything back."""
        self._nodes.remove()

    # ── who connects ──────────────────────────────────────────────────────────

    async def _serve(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(_SAYING):
                where = await _read_line(connection)
        except (OSError, TimeoutError):
            return
        if where == LEASE:
            stream = await command_stream.admit(connection, self._token)
            if stream is not None:
                self._clients.admit()
                await self._serve_launcher(stream)
            return
        server = self._nodes.find(where)
        if server is not None:
            self._clients.advance()
            await _splice(connection, server.address, server.port)

    async def _serve_launcher(self, stream: RecordStream) -> None:
        self._launchers.add(stream)
        try:
            with contextlib.suppress(OSError):
                await stream.send(self._said.encode())
            async for record in stream.records():
                wanted = json.loads(record)
                if "replace" in wanted:
                    await asyncio.to_thread(self._nodes.replace, wanted["replace"])
                elif "give_back" in wanted:
                    self.ended.set()
        finally:
            self._launchers.discard(stream)
            stream.close()

    async def _tell_all(self) -> None:
        said = json.dumps(self._nodes.describe())
        if said == self._said:
            return
        self._said = said
        for stream in list(self._launchers):
            with contextlib.suppress(OSError):
                await stream.send(said.encode())


async def _read_line(connection: socket.socket) -> str:
    """A line, byte by byte: what follows it is for somebody else."""
    loop = asyncio.get_running_loop()
    line = b""
    while not line.endswith(b"\n"):
        more = await loop.sock_recv(connection, 1)
        if not more or len(line) > _LONGEST:
            return ""
        line += more
    return line[:-1].decode("utf-8", "replace")


async def _splice(connection: socket.socket, address: str, port: int) -> None:
    """Both both, until both have ended."""
    reader, writer = await asyncio.open_connection(address, port)
    loop = asyncio.get_running_loop()

    async def inwards() -> None:
        while data := await loop.sock_recv(connection, PIECE):
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def outwards() -> None:
        while data := await reader.read(PIECE):
            await loop.sock_sendall(connection, data)
        connection.shutdown(socket.SHUT_WR)

    both = [asyncio.create_task(inwards()), asyncio.create_task(outwards())]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        # The records say when a command has ended: who leaves first leaves for good.
    finally:
        for one in both:
            one.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        writer.close()
