"""The command that leads to a lent host on Ray: our streams are those of a command there.

`python -m … ACCESS HOST WORD…`: ACCESS is a file that the launcher's process keeps, with the token
and the way to the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable
from typing import Any, NoReturn

from phalanx._channel.trust import NotTrusted
from phalanx._schedulers.ray import command_stream
from phalanx._schedulers.ray.command_stream import EXIT, IN, OUT, PIECE, RecordStream

GONE = 86
"""The exit code that says that there is no such host any more."""
_FAILED = 87
_KILLED = 128


def main() -> None:
    """Run the command that the arguments name; exits as it does."""
    path, host, *command = sys.argv[1:]
    try:
        with open(path) as file:
            access = json.load(file)
    except (OSError, ValueError):
        sys.exit(f"ray: the launcher that borrowed {host} has ended")
    asyncio.run(_exit_as(_run(access, host, command)))


def exec_command(path: str, host: str) -> tuple[str, ...]:
    """What runs another command on a lent host."""
    from phalanx._system.machine import python_command

    return (*python_command("phalanx._schedulers.ray.hosts.exec_stream"), path, host)


async def _exit_as(running: Awaitable[int]) -> NoReturn:
    """End this process here: asyncio would wait for the thread on which stdin is read."""
    code = await running
    sys.stdout.flush()
    os._exit(code)


async def _run(access: dict[str, Any], host: str, command: list[str]) -> int:
    target = access["hosts"].get(host)
    if target is None:
        print(f"ray: {host} is gone", file=sys.stderr)
        return GONE
    try:
        stream = await command_stream.connect(
            target["address"], target["port"], access["token"], target["through"]
        )
    except NotTrusted:
        # The relay closes a connection to a host that it does not have.
        print(f"ray: {host} does not answer", file=sys.stderr)
        return GONE if target["through"] else _FAILED
    except (OSError, TimeoutError) as error:
        print(
            f"ray: cannot reach {host} at {target['address']}:{target['port']}: {error}",
            file=sys.stderr,
        )
        return _FAILED
    with contextlib.closing(stream):
        await stream.send(json.dumps({"argv": command}).encode())
        sending = asyncio.create_task(_send(stream))
        try:
            return await _receive(stream, host)
        finally:
            sending.cancel()


async def _send(stream: RecordStream) -> None:
    loop = asyncio.get_running_loop()
    data = b"-"
    with contextlib.suppress(OSError):
        while data:
            data = await loop.run_in_executor(None, os.read, 0, PIECE)
            await stream.send(IN + data)


async def _receive(stream: RecordStream, host: str) -> int:
    loop = asyncio.get_running_loop()
    async for record in stream.records():
        kind, data = record[:1], record[1:]
        if kind == EXIT:
            code = int(json.loads(data)["code"])
            return code if code >= 0 else _KILLED - code
        await loop.run_in_executor(None, _write, 1 if kind == OUT else 2, data)
    print(f"ray: lost the connection to {host}", file=sys.stderr)
    return _FAILED


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    main()
