"""What somebody who reaches a rendezvous port can do: raw bytes, forged frames, many connections."""

import asyncio
import contextlib
import itertools
import os
import resource
import select
import socket
import threading

from phalanx._channel import trust
from phalanx import _wire as wire
from phalanx._channel.channel import SocketChannel
from phalanx._rendezvous.tcp import tokens
from phalanx._core.rounds import Endpoint
from phalanx._wire import rendezvous_frames

TOKEN = "the token of these tests"
ENVIRON = {tokens.VARIABLE: TOKEN}


def join_request(**fields):
    """A host's first word, as good as a stranger can make it up."""
    defaults = {
        "version": "0.1.0",
        "run_id": "run",
        "agent": 4711,
        "key": "k",
        "hostname": "stranger",
        "workers": 5,
        "node_rank": None,
        "contact": Endpoint("127.0.0.1", 1),
        "port": 1,
        "torch": False,
        "bounds": (2, 2),
    }
    return rendezvous_frames.JoinRequest(**{**defaults, **fields})


def most_memory(pid):
    """The bytes of memory that a process has had at most."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))


@contextlib.contextmanager
def room_for_descriptors(count):
    """Let this process open so many more; a user's shell often allows 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, len(os.listdir("/proc/self/fd")) + count + 64)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def idle_connections(port, count):
    """Hold so many that say nothing, and come again whenever one is closed."""
    poll, held, is_over = select.epoll(), {}, threading.Event()

    def connect():
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", port))
        held[connection.fileno()] = connection
        poll.register(connection, select.EPOLLIN)

    def flood():
        while not is_over.is_set():
            for _ in range(min(200, count - len(held))):
                connect()
            for number, _ in poll.poll(0.05):
                poll.unregister(number)
                held.pop(number).close()

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        yield held
    finally:
        is_over.set()
        thread.join()
        poll.close()
        for connection in held.values():
            connection.close()


def say(port, data, patience=5.0):
    """Send bytes and give all that comes back, until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
        answer = b""
        with contextlib.suppress(OSError):
            while more := connection.recv(1 << 16):
                answer += more
        return answer


def prove_and_say(port, token, *sent, patience=10.0, wait=True):
    """Prove a token, send frames (or raw records), and give the frames that come back."""

    async def run():
        loop = asyncio.get_running_loop()
        connection = socket.socket()
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        try:
            session = await trust.prove(connection, trust.key_of(token, "rendezvous"))
        except trust.NotTrusted:
            connection.close()
            return None
        channel = await SocketChannel.over(connection, session)
        session.limit = 8 << 20
        for item in sent:
            data = item if isinstance(item, bytes) else wire.encode(item)
            await channel.send_encoded(data)
        found = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                async for frame in channel.frames():
                    found.append(frame)
                    if not wait:
                        break
        channel.close()
        await asyncio.sleep(0)
        return found

    return asyncio.run(run())


class Between:
    """Somebody on the way from one host to another: hears everything, may change it."""

    def __init__(self, targets, change=lambda data, way: data, listener=None):
        """Passes each connection, to any port or to the listener, on to the next of `targets`."""
        self.heard = {"there": [], "back": []}
        self._targets, self._change = itertools.cycle(targets), change
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self._server = None

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._take, sock=self._listener)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _take(self, reader, writer):
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", next(self._targets))
        await asyncio.gather(
            self._pump(reader, other_writer, "there"), self._pump(other_reader, writer, "back")
        )

    async def _pump(self, reader, writer, way):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.heard[way].append(data)
                writer.write(self._change(data, way))
                await writer.drain()
        writer.close()
