"""A launch on two hosts in this process: an honest one, and one whose frames are changed.

The launcher's side is real, from the channel on; the agents are played over socket pairs. A launch
takes some milliseconds.
"""

import asyncio
import contextlib
import os
import pickle
import platform
import socket
import time
from concurrent.futures import Future

from phalanx import __version__, _wire as wire
from phalanx._channel.channel import PipeChannel
from phalanx.errors import LaunchError
from phalanx._launcher.launcher import Launcher
from phalanx._launcher.session.decider import decide_locally
from phalanx._launcher.session.session import Session
from phalanx._launcher.planning.imports import Needs
from phalanx._launcher.payload import Function
from phalanx._launcher.placement import NotPlaced
from phalanx._launcher.planning.plan import make_plan
from phalanx._logs.records import pack_message
from phalanx._logs.writer import LogWriter
from phalanx._rendezvous.protocol import Reason
from phalanx._core.rounds import Ended, Outcome

PATIENCE = 2.0


class Played:
    """An agent of this process, in the place of a `PlacedAgent`."""

    is_remote = False
    rest = None
    host = "played"

    def __init__(self, index, channel, end):
        self.index, self.channel, self.playing = index, channel, end

    def on_errors(self, take):
        pass

    def greet(self, hello):
        pass

    async def describe_end(self):
        return "it ended"

    async def end(self, patience):
        self.channel.abort()
        self.playing.cancel()
        return True

    async def destroy(self, patience, hello):
        await self.end(patience)
        return True

    async def sweep(self, hello):
        return True

    def wake(self):
        pass


class Players:
    """In the place of a `Placement`."""

    given_up = ()

    def __init__(self, plan, mutator):
        self.plan, self.mutator = plan, mutator

    async def place(self):
        for index in range(2):
            ours, theirs = socket.socketpair()
            change = self.mutator.change if index else (lambda frame: [wire.encode(frame)])
            playing = asyncio.create_task(play(theirs, self.plan.app, change))
            read, write = (open(os.dup(ours.fileno()), mode, 0) for mode in ("rb", "wb"))
            ours.close()
            yield Played(index, await PipeChannel.open(read, write), playing)

    async def again(self, index):
        return NotPlaced(index, "it is not there")

    def abandon(self):
        pass


async def play(connection, app, change):
    """An agent with one worker, which returns at once."""
    reader, writer = await asyncio.open_connection(sock=connection)

    async def send(frame):
        for data in change(frame):
            writer.write(data)
        await writer.drain()

    try:
        await converse(reader, send, app)
    except OSError:
        pass
    finally:
        writer.close()


async def converse(reader, send, app):
    decoder = wire.Decoder()
    hello = {"hostname": "played", "pid": os.getpid(), "port": 1, "spool": "/tmp/phalanx-played"}
    await send(wire.Hello(app=app, version=__version__, python=platform.python_version(), **hello))
    await send(wire.LogData(app=app, stream="records", data=pack_message("an agent", 20)))
    await send(wire.Ready(app=app, torch=False, spawn=False, failed=("nothing",)))
    while data := await reader.read(1 << 16):
        for frame in decoder.feed(data):
            match frame:
                case wire.Ping():
                    await send(wire.Pong(app=app, sent=frame.sent, clock=time.monotonic()))
                case wire.BeginRound():
                    await work(send, app, frame)
                case wire.HaltRound():
                    await send(wire.RoundCleared(app=app, round=frame.round, port=1))
                case wire.ShutDown():
                    await send(wire.UserNote(app=app, message="it was nice"))
                    return


async def work(send, app, begin):
    (rank,) = begin.membership.member(begin.agent).ranks
    common = {"app": app, "round": begin.round}
    mine = {**common, "rank": rank}
    value = pickle.dumps(f"value {rank}")
    await send(wire.WantContent(app=app, digests=(begin.function,)))
    await send(wire.WorkersStarted(pids={rank: os.getpid()}, **common))
    await send(wire.WorkerEntered(clock=time.monotonic(), **mine))
    for stream in ("stdout", "stderr"):
        await send(wire.LogData(stream=stream, data=b"a line\n", **mine))
    await send(wire.LogData(stream="records", data=pack_message("a record", 30), **mine))
    half = len(value) // 2
    for offset, data in ((0, value[:half]), (half, value[half:])):
        piece = {"key": "payload", "offset": offset, "total": len(value), "data": data}
        await send(wire.Piece(**piece, **mine))
    outcome = Outcome(rank, Ended.RETURNED, time.monotonic(), os.getpid(), seconds=0.1)
    await send(wire.WorkerEnded(outcome=outcome, **mine))
    await send(wire.RoundCleared(port=1, **common))


def launch(mutator):
    """The honest host's value is here, or the app has failed in order; whatever the other said.

    One that goes on saying that it works, or that does not say that it has ended, is cancelled.
    """
    options = {"host_timeout": 0.5, "start_timeout": 1.0, "stop_grace": 0.2, "backend": None}
    bounds = {"min_hosts": 1, "max_hosts": 2}
    launcher = Launcher(hostnames=["localhost"] * 2, workers_per_host=1, **options, **bounds)
    plan = make_plan(launcher, Needs((), torch=False), "played")
    call = Future()
    call.set_result(Function(b"function", "0" * 64, uses_torch=False, names_torch=False))
    asyncio.run(_launch(plan, call, mutator))


async def _launch(plan, call, mutator):
    logs = LogWriter({})
    drive = Session(
        plan,
        Players(plan, mutator),
        call,
        logs,
        lambda _: None,
        decide_locally,
        began=time.monotonic(),
    )
    running = asyncio.ensure_future(drive.run())
    try:
        await asyncio.wait({running}, timeout=PATIENCE)
        if not running.done():
            drive.cancel(0.1)
        with contextlib.suppress(LaunchError):
            verdict = await asyncio.wait_for(running, 15.0)
            honest = drive.inboxes.get(0)
            if verdict.reason is Reason.SUCCEEDED:
                assert honest.load() == "value 0"
        assert len(drive.notes) < 100
        assert set(drive.inboxes) <= {0, 1}
    finally:
        drive.inboxes.forget(None)
        await asyncio.to_thread(logs.close)
