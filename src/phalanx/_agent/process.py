"""An agent as a process of its own, speaking over two descriptors.

The zygote is started before anything else is imported: packages load while the agent gets ready.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn

from phalanx import _wire as wire
from phalanx._agent.files import path_mapping
from phalanx._agent.zygote_handle import ZygoteHandle
from phalanx._system import processes, shortage, standard_streams
from phalanx._worker import leftovers
from phalanx.errors import WireError


def main() -> None:
    """Run an agent until it is told to leave or its channel ends."""
    processes.reset_signals()
    standard_streams.fill()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # until there are workers to pass them on to
    processes.wake_with_parent()  # of a login, on other hosts
    processes.become_subreaper()
    read, write = _take_streams()
    decoder = wire.Decoder()
    try:
        frames = _first_frames(read, decoder)
        if not frames:
            return
        prepare = frames.pop(0)
        if not isinstance(prepare, wire.Prepare):
            raise WireError(f"the first frame was {type(prepare).__name__}, not Prepare")
        prepare, tree = path_mapping.localize(prepare)
        spool = leftovers.make_spool(prepare.app)
        listener = None
        if prepare.reconnect_timeout:
            # Before the zygote: it writes where we do, and that must not break with a stream.
            from phalanx._agent.reconnect_listener import ReconnectListener

            listener = ReconnectListener(spool, prepare)
        zygote = _start_zygote(prepare, spool)
        processes.set_title(f"phalanx: {prepare.title} agent")
    except (WireError, OSError) as error:
        reason = shortage.describe(error)
        os.write(write, wire.encode(wire.AgentGone(message=f"the agent cannot start: {reason}")))
        sys.exit(1)

    import asyncio
    import threading

    # What others have left on this host; in its own time, a large directory takes a while.
    with contextlib.suppress(RuntimeError):  # a thread too many: whoever comes next does it
        threading.Thread(target=leftovers.sweep, daemon=True).start()
    streams = open(read, "rb"), open(write, "wb")  # noqa: SIM115 the channel closes them

    async def serve() -> None:
        from phalanx._agent.agent import Agent
        from phalanx._channel.channel import PipeChannel

        channel: PipeChannel
        if listener is None:
            channel = await PipeChannel.open(*streams, decoder, frames)
        else:
            channel = await listener.open(*streams, decoder, frames)
        agent = Agent(channel, zygote, prepare, spool, tree, listener)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, agent.terminate)
        for passed in {signal.SIGUSR1, signal.SIGUSR2, prepare.preempt} - {0}:
            loop.add_signal_handler(passed, agent.forward, passed)
        await agent.run()

    _run_and_exit(serve())


def _run_and_exit(agent: Coroutine[Any, Any, None]) -> NoReturn:
    import asyncio

    code = 1

    async def run() -> None:
        nonlocal code
        await agent
        code = 0

    try:
        asyncio.run(run())
    except (RuntimeError, OSError) as error:
        if not shortage.is_shortage(error):
            raise
        if code:  # otherwise only the thread is missing with which asyncio ends its own
            print(shortage.describe(error), file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)  # an interpreter's teardown has nothing left to do, and someone waits


def _start_zygote(prepare: wire.Prepare, spool: str) -> ZygoteHandle:
    try:
        leftovers.make_group(spool)
        return ZygoteHandle(prepare, spool)
    except OSError:
        leftovers.remove(spool)
        raise


def _take_streams() -> tuple[int, int]:
    """The channel's descriptors: those named in the arguments, or our own standard streams.

    The latter are moved away, so that nobody below can read or write them.
    """
    if len(sys.argv) == 3:
        read, write = int(sys.argv[1]), int(sys.argv[2])
        for number in (read, write):
            os.set_inheritable(number, False)
        return read, write
    read, write = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return read, write


def _first_frames(read: int, decoder: wire.Decoder) -> list[wire.Frame]:
    """What came first, at least one frame; none when whoever placed us is already gone."""
    while True:
        data = os.read(read, 1 << 16)
        if not data:
            return []
        frames = decoder.feed(data)
        if frames:
            return frames
