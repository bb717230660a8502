"""Real frames, mutated, at a real port, from one that has the token: the host that decides goes on."""

import asyncio
import os
import random
import socket

import pytest

from phalanx._channel import trust
from phalanx import _wire as wire
from phalanx._channel.channel import SocketChannel
from phalanx._rendezvous import protocol as p
from phalanx._rendezvous.settings import Settings
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.tcp_decider import TcpDecider
from phalanx._core.rounds import Ended, Endpoint, ExceptionInfo, EqualHosts, Outcome
from phalanx._wire import rendezvous_frames
from tests.process.strangers import join_request

KEY = trust.key_of("the token of these tests", "rendezvous")
COUNT = int(os.environ.get("FUZZ", "300"))
OUTCOME = Outcome(1, Ended.RAISED, 1.0, 7, exception=ExceptionInfo("E", "m", "t"), stderr="x")
FRAMES = [
    wire.WorkersStarted(round=1, pids={1: 7}),
    wire.WorkerEnded(round=1, rank=1, outcome=OUTCOME),
    wire.RoundCleared(round=1, port=9),
    wire.AgentGone(message="x"),
    wire.Preempted(),
    wire.Ping(sent=1.0),
    wire.Pong(sent=1.0, clock=2.0),
    wire.WorkerEntered(round=1, rank=0, clock=1.0),
    wire.LogData(round=1, rank=0, stream="stdout", data=b"x"),
    wire.Piece(round=1, rank=0, key="payload", offset=0, total=1, data=b"x"),
    rendezvous_frames.JoinAccepted(leader=3),
    rendezvous_frames.JoinRefused(reason="x"),
    rendezvous_frames.AppEnded(
        reason="succeeded", missing=("a",), note="", hosts=(EqualHosts(1, 1),)
    ),
    rendezvous_frames.FailureTold(
        agent=1, hostname="a", outcome=OUTCOME, consequence=False, kind="cause"
    ),
]


def mutate(data, chance):
    """Some bytes are others, twice there, or not there; the lengths in the header are put right."""
    head = bytearray(data[12:])
    for _ in range(chance.randint(0, 4)):
        at = chance.randrange(len(head))
        match chance.randrange(4):
            case 0:
                head[at] = chance.randrange(256)
            case 1:
                head[at:at] = head[at : at + chance.randint(1, 9)]
            case 2:
                del head[at : at + chance.randint(1, 9)]
                head = head or bytearray(b"\xc0")
            case 3:
                head[at] = chance.choice((0xCF, 0xCB, 0xDB, 0xDD, 0xDF, 0xC1, 0x00, 0xFF))
    return wire.codec._HEADER.pack(b"PHX", wire.VERSION, len(head), 0) + bytes(head)


async def connect(port):
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setblocking(False)
    await loop.sock_connect(connection, ("127.0.0.1", port))
    session = await trust.prove(connection, KEY)
    session.limit = 8 << 20
    return await SocketChannel.over(connection, session)


async def play(seed):
    """A host that decides, liars that come and go, and in the end one that is honest."""
    chance = random.Random(seed)
    failures, begun = [], []
    coordinator_settings = p.CoordinatorSettings(
        hosts=(), start_timeout=600.0, stop_grace=1.0, min_hosts=2, max_hosts=2, open=True,
        quorum=True, max_restarts=10**6, backoff=0.0,
    )  # fmt: skip
    settings = Settings(is_host=True)
    host = TcpHost(
        1, "here", 1, "run", Endpoint("localhost", 0), coordinator_settings, settings, KEY
    )
    decider = TcpDecider(host)

    def act(action):
        match action:
            case p.BeginRoundAction(round_):
                begun.append(round_)
                decider.tell(p.WorkersStartedEvent(1, round_.number))
            case p.HaltRoundAction(number, _):
                decider.tell(p.RoundClearedEvent(1, number, Endpoint("", 1)))

    await decider.start(act, failures.append)
    decider.tell(p.JoinedEvent(1, Endpoint("", 1)))
    port = decider._listener.port
    for number in range(COUNT):
        channel = await connect(port)
        first = wire.encode(join_request(agent=100 + number))
        await channel.send_encoded(first if chance.random() < 0.7 else mutate(first, chance))
        try:
            for _ in range(chance.randint(0, 5)):
                await channel.send_encoded(mutate(wire.encode(chance.choice(FRAMES)), chance))
        except ConnectionError:
            pass
        decider.tell(p.TickEvent())
        await asyncio.sleep(0)
        if chance.random() < 0.5:
            await channel.flush()
        channel.close()
        assert not failures, (number, failures)
    done = len(begun)
    honest = await connect(port)
    await honest.send(join_request(agent=7, hostname="honest", workers=1))
    async with asyncio.timeout(20):
        async for frame in honest.frames():
            if isinstance(frame, rendezvous_frames.RoundFormed) and 7 in frame.agents:
                break
            if isinstance(frame, wire.HaltRound):
                await honest.send(wire.RoundCleared(round=frame.round, port=5))
            if isinstance(frame, wire.Ping):
                await honest.send(wire.Pong(sent=frame.sent, clock=1.0))
            decider.tell(p.TickEvent())
    assert not failures
    assert not decider.is_over
    honest.close()
    await decider.close()
    await asyncio.sleep(0.05)
    return done


@pytest.mark.parametrize("seed", range(3))
def test_mutated_frames_end_their_own_connection_alone(seed):
    """Thousands by hand: FUZZ=10000."""
    asyncio.run(play(seed))
