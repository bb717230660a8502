"""Runs commands on a node of a Ray cluster, for those who have the token.

A process beside Ray's: an actor of a placement group starts it, holds its stdin, and does nothing
else. Whatever becomes of that actor (its node, its job, its driver), stdin ends, and everything
below this process with it. What runs here is in no way Ray's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import sys
from collections.abc import Mapping
from typing import Any

from phalanx._schedulers.ray import command_stream
from phalanx._schedulers.ray.cluster.guarded_port import GuardedPort
from phalanx._schedulers.ray.command_stream import ERR, EXIT, IN, OUT, PIECE, SIGNAL, RecordStream
from phalanx._schedulers.replicas.request import with_python
from phalanx._system import processes

_STRANGERS = 64
"""Connections that have proved nothing."""
CANNOT_START = 127
_GRACE = 5.0
"""Seconds for a replica to end by itself when nobody listens to it any more."""


def main() -> None:
    """Read who we are from stdin, say at which port we listen, and serve until stdin ends."""
    processes.become_subreaper()
    told = json.loads(sys.stdin.readline())
    answers = os.fdopen(os.dup(1), "w")  # open until the end, which its reader waits for
    os.dup2(2, 1)
    try:
        asyncio.run(_serve(told, answers))
    finally:
        processes.kill_descendants(processes.reap)
        shutil.rmtree(told["code"], ignore_errors=True)


async def _serve(told: Mapping[str, Any], answers: Any) -> None:
    listening = socket.create_server((told["address"], 0), family=_family(told["address"]))
    listening.setblocking(False)
    facts = {
        "address": told["address"],
        "port": listening.getsockname()[1],
        "hostname": socket.gethostname(),
        "free_port": _free_port(),
    }
    answers.write(json.dumps(facts) + "\n")
    answers.flush()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def hear() -> None:
        if not os.read(0, PIECE):
            loop.remove_reader(0)
            ended.set()

    loop.add_reader(0, hear)
    serving = asyncio.create_task(_accept(listening, told))
    await ended.wait()
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _free_port() -> int:
    """One for the replicas of a role to meet at."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


async def _accept(listening: socket.socket, told: Mapping[str, Any]) -> None:
    port = GuardedPort(listening, _STRANGERS)

    async def serve(connection: socket.socket) -> None:
        stream = await command_stream.admit(connection, told["token"])
        if stream is not None:
            port.admit()
            await _Command(stream, told).run()

    await port.serve(serve)


class _Command:
    """One that runs, and the connection that it was asked for by."""

    def __init__(self, stream: RecordStream, told: Mapping[str, Any]) -> None:
        self._stream = stream
        self._told = told
        self._is_replica = False
        self._error_file = ""

    async def run(self) -> None:
        request = await self._stream.receive()
        if request is None:
            return
        wanted = json.loads(request)
        self._is_replica = wanted.get("replica", False)
        try:
            process = await self._start(wanted)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            text = f"cannot start {wanted['argv'][0]!r}: {reason}"
            await self._tell(ERR + f"phalanx: {text}\n".encode())
            await self._tell(
                EXIT + json.dumps({"code": CANNOT_START, "error": text, "report": ""}).encode()
            )
            return
        out = asyncio.create_task(self._forward(process.stdout, OUT))
        err = asyncio.create_task(self._forward(process.stderr, ERR))
        obeying = asyncio.create_task(self._obey(process))
        try:
            code = await process.wait()
            if self._is_replica:
                # Its own processes are all that there is here; they go before its end is told.
                processes.kill_descendants(processes.reap)
            await asyncio.gather(out, err)
        finally:
            for task in (out, err, obeying):
                task.cancel()
        said = {"code": code, "error": "", "report": self._reported()}
        await self._tell(EXIT + json.dumps(said).encode())

    async def _start(self, wanted: Mapping[str, Any]) -> asyncio.subprocess.Process:
        env = {**_environment(), "RAY_ADDRESS": self._told["cluster"], **self._told["env"]}
        if self._is_replica:
            env |= wanted["env"]
            _make_executable(wanted["executables"])
            self._error_file = os.path.join(self._told["code"], "error.json")
            with contextlib.suppress(OSError):
                os.unlink(self._error_file)
            env["TORCHELASTIC_ERROR_FILE"] = self._error_file
            if wanted["needs_phalanx"]:
                paths = [self._told["code"], env.get("PYTHONPATH", "")]
                env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        argv = with_python(tuple(wanted["argv"]), sys.executable)
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL if self._is_replica else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._told["directory"],
            env=env,
            start_new_session=True,
        )

    async def _forward(self, source: asyncio.StreamReader | None, kind: bytes) -> None:
        """All that it prints; what nobody hears any more is dropped, so that it goes on."""
        assert source is not None
        while data := await source.read(PIECE):
            await self._tell(kind + data)

    async def _tell(self, record: bytes) -> None:
        with contextlib.suppress(OSError):
            await self._stream.send(record)

    async def _obey(self, process: asyncio.subprocess.Process) -> None:
        """Pass on what comes. The end of the connection is the end of its input, and no more: an
        agent may wait for another connection. A replica ends with it.
        """
        async for record in self._stream.records():
            kind, data = record[:1], record[1:]
            if kind == SIGNAL:
                _signal_group(process.pid, int(data))
            elif kind == IN and process.stdin is not None:
                if not data:
                    process.stdin.close()
                    continue
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(data)
                    await process.stdin.drain()
        if process.stdin is not None:
            process.stdin.close()
        if self._is_replica:
            _signal_group(process.pid, signal.SIGTERM)
            await asyncio.sleep(_GRACE)
            _signal_group(process.pid, signal.SIGKILL)

    def _reported(self) -> str:
        """What it has reported as its error, in torch's format."""
        if not self._error_file:
            return ""
        try:
            with open(self._error_file) as file:
                return file.read(1 << 14)
        except OSError:
            return ""


def _environment() -> dict[str, str]:
    """What Ray sets for its own processes is not for others, but for the token that the cluster
    wants; `python` is the cluster's.
    """
    internal, proof = ("RAY_", "__RAY_"), "RAY_AUTH_"
    env = {k: v for k, v in os.environ.items() if not k.startswith(internal) or k.startswith(proof)}
    if env.get("PYTHONBREAKPOINT", "").startswith("ray."):
        del env["PYTHONBREAKPOINT"]
    own = os.path.dirname(sys.executable)
    env["PATH"] = os.pathsep.join(filter(None, [own, env.get("PATH", "")]))
    return env


def _make_executable(paths: list[str]) -> None:
    """In the working directory, where Ray has unpacked them without their modes."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
        if number == signal.SIGTERM:
            os.killpg(leader, signal.SIGCONT)  # one that is stopped hears nothing


if __name__ == "__main__":
    main()
