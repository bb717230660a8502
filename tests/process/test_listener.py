"""Where hosts of a rendezvous connect: who is taken first."""

import asyncio
import contextlib
import socket

import pytest

from phalanx._channel import trust
from phalanx._rendezvous.tcp.connections.listener import Listener
from tests.conftest import wait_until

IDLE = 200
KEY = bytes(32)


def waiting(port):
    """How many the kernel has ready for whoever listens at a port of loopback."""
    with open("/proc/net/tcp") as file:
        (row,) = [line for line in file if f":{port:04X} " in line and " 0A " in line]
    return int(row.split()[4].partition(":")[2], 16)


def test_who_speaks_is_before_those_that_are_idle():
    """A peer speaks first: it does not wait behind thousands that say nothing."""
    with open("/proc/sys/net/ipv4/tcp_syncookies") as file:
        if file.read().strip() == "0":
            pytest.skip("without SYN cookies idle connections must not stay with the kernel")
    listener = Listener(0, bytes(32), anywhere=False, is_endpoint=True)
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        connect = lambda: stack.enter_context(
            socket.create_connection(("127.0.0.1", listener.port), timeout=5)
        )
        for _ in range(IDLE):
            connect()
        peer = connect()
        peer.sendall(trust.GREETING)
        wait_until(lambda: waiting(listener.port) >= 1)
        assert waiting(listener.port) < IDLE


def listening(then):
    """Run `then(listener, links)` beside a listener that gathers those who have proved themselves."""

    async def run():
        listener, links, tasks = Listener(0, KEY, anywhere=False, is_endpoint=True), [], set()

        async def take(link):
            links.append(link)

        def do(coroutine):
            tasks.add(task := asyncio.ensure_future(coroutine))
            task.add_done_callback(tasks.discard)
            return task

        listener.serve(take, do)
        try:
            await then(listener, links)
        finally:
            listener.close()
            for link in links:
                link.abort()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "first",
    [trust.GREETING[:1], trust.GREETING, trust.GREETING + bytes(32)],
    ids=["a byte", "a part", "all"],
)
def test_those_that_begin_to_prove_themselves_cost_no_task_each(first):
    """A thousand of a flood are in the way of a host that joins: each must cost little."""

    async def then(listener, links):
        strangers = []
        for _ in range(100):
            connection = socket.socket()
            connection.setblocking(False)
            strangers.append(connection)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", listener.port))
            connection.sendall(first)
        await until(lambda: len(listener._crowd) == len(strangers))
        assert len(asyncio.all_tasks()) == 2  # this one, and that which takes connections
        seal = await connect(listener.port)
        await until(lambda: len(links) == 1)
        assert seal is not None
        for connection in strangers:
            connection.close()
        await until(lambda: len(listener._crowd) == 1)  # the peer, which does not take part yet

    listening(then)


async def connect(port):
    connection = socket.socket()
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    with contextlib.closing(connection):
        return await trust.prove(connection, KEY)


def test_a_peer_whose_words_come_in_pieces_is_taken():
    """As a network may have it."""

    async def then(listener, links):
        loop = asyncio.get_running_loop()
        connection = socket.socket()
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", listener.port))
        near, far = socket.socketpair()
        for end in (near, far):
            end.setblocking(False)

        async def forward():
            while data := await loop.sock_recv(far, 1):
                await asyncio.sleep(0.002)
                await loop.sock_sendall(connection, data)

        async def back():
            while data := await loop.sock_recv(connection, 100):
                await loop.sock_sendall(far, data)

        ways = [asyncio.ensure_future(forward()), asyncio.ensure_future(back())]
        try:
            await trust.prove(near, KEY)
            await until(lambda: len(links) == 1)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (near, far, connection):
                end.close()

    listening(then)
