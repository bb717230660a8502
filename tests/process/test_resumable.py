"""A channel goes on over other streams, whatever was on its way when one broke."""

import asyncio
import json
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from phalanx import _wire as wire
from phalanx._channel.resumable import ChannelState, ResumableChannel
from phalanx._launcher.transport.dial import ReattachRefused, reattach
from phalanx._launcher.transport.targets import Target
from phalanx._remote.bootstrap import RECONNECT
from tests.ways_to_hosts import start

COUNT = 3000


class Line:
    """Two channels, and a stream between them that loses what is in it when it is cut."""

    def __init__(self, rng):
        self._rng = rng
        self._pumps = []

    async def streams(self):
        """Both ends of a new stream, carried by tasks here in pieces of any size."""
        ends = [os.pipe() for _ in range(4)]
        self._pumps = [
            asyncio.create_task(self._pump(ends[0][0], ends[1][1])),
            asyncio.create_task(self._pump(ends[2][0], ends[3][1])),
        ]
        here = open(ends[3][0], "rb", 0), open(ends[0][1], "wb", 0)
        there = open(ends[1][0], "rb", 0), open(ends[2][1], "wb", 0)
        return here, there

    async def _pump(self, read, write):
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        try:
            while True:
                try:
                    data = os.read(read, self._rng.choice([10, 1000, 50_000]))
                except BlockingIOError:
                    await asyncio.sleep(0.001)
                    continue
                if not data:
                    return
                while data:
                    try:
                        data = data[os.write(write, data) :]
                    except BlockingIOError:
                        await asyncio.sleep(0.001)
                    except BrokenPipeError:
                        return
        finally:
            os.close(read)
            os.close(write)

    def cut(self):
        for pump in self._pumps:
            pump.cancel()


@pytest.mark.parametrize("seed", range(5))
def test_every_frame_comes_once_and_in_order(seed):
    """Both ways, with a dozen streams."""
    asyncio.run(_exchange(random.Random(seed)))


async def _exchange(rng):
    line = Line(rng)
    broken = asyncio.Event()
    here, there = await line.streams()
    ends = [
        await ResumableChannel.over(*here, ChannelState(), lambda _: broken.set()),
        await ResumableChannel.over(*there, ChannelState(), lambda _: None),
    ]

    async def say(channel):
        for number in range(COUNT):
            data = bytes(rng.choice([0, 100, 20_000]))
            await channel.send(wire.Piece(key=str(number), offset=0, total=1, data=data))

    async def hear(channel):
        heard = []
        async for frame in channel.frames():
            heard.append(int(frame.key))
            if len(heard) == COUNT:
                break
        return heard

    async def cut():
        for _ in range(12):
            await asyncio.sleep(rng.random() * 0.1)
            line.cut()
            await broken.wait()
            broken.clear()
            here, there = await line.streams()
            counts = [channel.detach() for channel in ends]
            await asyncio.gather(
                ends[0].resume(*here, counts[1]), ends[1].resume(*there, counts[0])
            )

    cutting = asyncio.create_task(cut())
    *_, heard, answered = await asyncio.gather(*map(say, ends), *map(hear, ends))
    cutting.cancel()
    line.cut()
    for channel in ends:
        channel.close()
    assert heard == answered == list(range(COUNT))


def test_who_was_told_that_nothing_follows_waits_for_nobody():
    """And a stream that breaks then is not missed."""

    async def part():
        line, broken = Line(random.Random(0)), []
        ends = [
            await ResumableChannel.over(*stream, ChannelState(), broken.append)
            for stream in await line.streams()
        ]
        ends[0].part()
        await ends[1].wait_until(lambda: False, 30)
        await ends[1].finish()
        await ends[0].wait_until(lambda: False, 30)
        assert all(channel.has_ended for channel in ends)
        line.cut()
        for channel in ends:
            channel.close()
        return broken

    assert asyncio.run(part()) == []


def test_who_does_not_prove_that_it_is_the_agent_is_not_believed(tmp_path):
    """Whoever may listen where the agent did."""
    run = ("sh", "-c", 'exec "$@"', "here")
    target = Target("here", (sys.executable,), run, through_shell=False, reconnect_timeout=30.0)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / RECONNECT))
    listener.listen()

    def pretend():
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as questions:
            for answer in (
                {"number": "0" * 64},
                {"state": "attached", "received": 0, "proof": "0" * 64},
            ):
                questions.readline()
                connection.sendall(json.dumps(answer).encode() + b"\n")
            questions.read()

    stranger = threading.Thread(target=pretend)
    stranger.start()
    with pytest.raises(ReattachRefused, match="could not prove that it is the agent"):
        reattach(target, str(tmp_path), "key", 0, 30.0)
    stranger.join()
    listener.close()


def test_a_stranger_at_an_agents_socket_is_refused(tmp_path):
    """Without the app's key, and whatever it sends; the app goes on."""
    run = ("sh", "-c", 'cat | setsid "$@" | cat', "pipe")
    target = Target("here", (sys.executable,), run, through_shell=False, reconnect_timeout=30.0)
    go = tmp_path / "go"

    def work():
        print("here", flush=True)
        while not go.exists():
            time.sleep(0.05)
        return 7

    app = start(target, work, reconnect_timeout=30.0)
    assert next(app.logs(follow=True)).text == "here"
    (path,) = Path(os.environ.get("TMPDIR", "/tmp")).glob("phalanx-*/reconnect")
    greeting = {"number": "0" * 64, "received": 0}
    for lines in (
        [greeting, {"proof": "0" * 64}],
        [{**greeting, "received": -1}, {}],
        [{"number": 3}],
        [[]],
        [greeting],
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(path))
            for line in lines:
                connection.sendall(json.dumps(line).encode() + b"\n")
            if lines != [greeting]:  # which leaves in the middle
                said = connection.makefile("rb").read()
                assert b'"state": "refused"' in said
                assert b'"attached"' not in said
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(b"x" * 1000)
    go.touch()
    assert list(app.result(60)) == [7]
