"""The agent as its peers see it: odd first words, other versions, noise in the middle."""

import os
import subprocess
import sys
import threading

import pytest

from phalanx._system import machine
from phalanx import _wire as wire
from phalanx._core.rounds import Endpoint, Member, Round
from phalanx._launcher.launcher import Launcher
from phalanx._launcher.planning.imports import Needs
from phalanx._launcher.planning.plan import make_plan


def first_frame():
    return make_plan(Launcher(workers_per_host=1), Needs((), torch=False), "f").hosts[0].prepare


def talk(*parts, timeout=30):
    """Say these bytes to an agent, close, and give its frames, exit code and stderr."""
    done = subprocess.run(
        machine.agent_command(), input=b"".join(parts), capture_output=True, timeout=timeout
    )
    return wire.Decoder().feed(done.stdout), done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", b"PHX\x63" + b"\0" * 40, os.urandom(500)]
)
def test_garbage_as_first_words_is_refused(noise):
    """The agent says why, and ends without a traceback."""
    frames, code, errors = talk(noise)
    assert code == 1
    assert "Traceback" not in errors
    (broken,) = frames
    assert isinstance(broken, wire.AgentGone)
    assert "cannot start" in broken.message


def test_another_version_is_refused_by_name():
    """Both versions are in the message."""
    raw = bytearray(wire.encode(first_frame()))
    raw[3] = 42
    frames, _, _ = talk(bytes(raw))
    assert "version 42" in frames[0].message


def test_a_first_frame_of_the_wrong_kind_is_refused():
    """Prepare comes first."""
    frames, _, _ = talk(wire.encode(wire.ShutDown()))
    assert "the first frame was ShutDown" in frames[0].message


def test_garbage_in_the_middle_ends_the_agent_in_order():
    """It says what it was sent; nothing stays."""
    process = subprocess.Popen(
        machine.agent_command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    process.stdin.write(wire.encode(first_frame()))
    decoder = wire.Decoder()
    hello, *_ = decoder.feed(process.stdout.read(1 << 16))
    assert isinstance(hello, wire.Hello)
    out, errors = process.communicate(b"noise from a .bashrc\n", timeout=30)
    frames = decoder.feed(out)
    assert any(
        isinstance(f, wire.AgentGone) and "noise from a .bashrc" in f.message for f in frames
    )
    assert process.returncode == 0, errors


def test_frames_out_of_place_are_ignored():
    """A stop before the round, pieces of unknown functions, frames meant for others."""
    strange = [
        wire.HaltRound(round=7, grace=0.0),
        wire.LogsTaken(size=1),
        wire.SignalWorkers(number=10),
        wire.Piece(key="abc", offset=0, total=1, data=b"x"),
        wire.Hello(version="", python="", hostname="", pid=1, port=1, spool=""),
    ]
    frames, code, errors = talk(
        wire.encode(first_frame()), *map(wire.encode, strange), wire.encode(wire.ShutDown())
    )
    assert isinstance(frames[0], wire.Hello)
    assert code == 0, errors


def test_a_round_that_begins_before_the_last_is_clear_ends_that_one_first():
    """Nobody sends it twice: if it were dropped, its workers would never start."""
    app = first_frame().app

    def begin(number):
        round_ = Round(number, (Member(0, "here", 0, 1),), Endpoint("127.0.0.1", 1))
        common = {"app": app, "round": number, "membership": round_, "function": f"{number:064x}"}
        rest = {"agent": 0, "backend": None, "uses_torch": False, "process_group_timeout": 1.0}
        return wire.encode(wire.BeginRound(**common, **rest))

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(machine.agent_command(), bufsize=0, **pipes) as process:
        process.stdin.write(wire.encode(first_frame()) + begin(1) + begin(2) + begin(1))
        decoder, frames = wire.Decoder(), []
        digests = lambda: [f.digests for f in frames if isinstance(f, wire.WantContent)]
        while len(digests()) < 2 and (data := process.stdout.read(1 << 16)):
            frames += decoder.feed(data)
        process.stdin.write(wire.encode(wire.ShutDown()))
        process.communicate(timeout=30)
    assert digests() == [(f"{1:064x}",), (f"{2:064x}",)]
    assert [f.round for f in frames if isinstance(f, wire.RoundCleared)] == [1]
    assert process.returncode == 0


def test_an_agent_that_hears_nothing_at_all_just_ends():
    """Whoever placed it is gone."""
    assert talk() == ([], 0, "")


def test_a_peer_that_never_reads_does_not_keep_an_agent():
    """Its end of file is enough."""
    process = subprocess.Popen(
        machine.agent_command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdin.write(wire.encode(first_frame()) + wire.encode(wire.Ping(sent=0.0)) * 20_000)
    process.stdin.close()
    timer = threading.Timer(20, process.kill)
    timer.start()
    try:
        assert process.wait() == 0
    finally:
        timer.cancel()
        timer.join()
        process.stdout.close()
        process.stderr.close()


def test_what_was_sent_is_waited_for_before_a_channel_is_let_go():
    """A process that ends takes along what its peer has not read."""
    import asyncio

    from phalanx._channel.channel import PipeChannel

    got = bytearray()

    def read(descriptor):
        while data := os.read(descriptor, 1 << 16):
            got.extend(data)

    async def send():
        incoming, their_write = os.pipe()
        their_read, outgoing = os.pipe()
        channel = await PipeChannel.open(open(incoming, "rb", 0), open(outgoing, "wb", 0))
        for _ in range(3):
            await channel.send(wire.LogData(stream="stdout", data=b"x" * (256 << 10)))
        assert not channel.is_written
        reader = threading.Thread(target=read, args=(their_read,))
        reader.start()
        await channel.flush()
        channel.abort()
        await asyncio.sleep(0)
        reader.join()
        os.close(their_read)
        os.close(their_write)

    asyncio.run(send())
    assert len(wire.Decoder().feed(got)) == 3
