"""Whether hosts reach the first one, before `dist.*` over SSH starts: strangers come there, too."""

import contextlib
import os
import resource
import socket
import threading
import time

import pytest

from phalanx._system.network import listen
from phalanx._worker.program import greeting_of, hear_greetings, why_unreached

SECRET = "the secret of this app"


@pytest.fixture
def ports():
    """Of four, on the first host; one of them is another program's."""
    bound = [listen(0) for _ in range(4)]
    yield bound
    for each in bound:
        each.close()


def first_host(listening, count, limit):
    """Listens; gives those that have not come."""
    missing = {greeting_of(SECRET, rank) for rank in range(1, count)}
    thread = threading.Thread(target=hear_greetings, args=(listening, missing, limit))
    thread.start()
    return thread, missing


@pytest.mark.parametrize("apart", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("count", [2, 3, 6])
def test_each_host_counts_once_however_often_it_comes(ports, count, apart):
    """All come to all ports; the first host goes on when all have come, and not before."""
    numbers = [each.getsockname()[1] for each in ports]
    thread, missing = first_host(ports[1:], count, time.monotonic() + 60)
    problems = {}

    def come(rank):
        time.sleep(apart * (rank - 1))
        greeting = greeting_of(SECRET, rank)
        problems[rank] = why_unreached("127.0.0.1", numbers, greeting, time.monotonic() + 5)

    hosts = [threading.Thread(target=come, args=(rank,)) for rank in range(1, count)]
    for host in hosts:
        host.start()
    for each in (*hosts, thread):
        each.join(30)
        assert not each.is_alive()
    assert (missing, problems) == (set(), dict.fromkeys(range(1, count), ""))


def test_strangers_are_neither_counted_nor_waited_for(ports):
    """Those that say something else, or nothing, or half of it, and a thousand that stay."""
    numbers = [each.getsockname()[1] for each in ports]
    thread, missing = first_host(ports, 2, time.monotonic() + 60)
    held = []
    for i in range(600):
        held.append(socket.create_connection(("127.0.0.1", numbers[i % 4])))
        if i < 20:
            held[-1].sendall(
                [b"\n", b"x" * 1000, greeting_of("another", 1), SECRET.encode()][i % 4]
            )
    assert missing
    greeting = greeting_of(SECRET, 1)
    assert why_unreached("127.0.0.1", numbers, greeting, time.monotonic() + 30) == ""
    thread.join(30)
    for each in held:
        each.close()
    assert not thread.is_alive() and not missing


@pytest.mark.parametrize("trouble", ["too many", "no descriptors"])
def test_strangers_that_have_to_go_do_not_end_it(ports, monkeypatch, trouble):
    """Also those that say something at the very moment; a low limit of descriptors neither."""
    with contextlib.ExitStack() as stack:
        for i in range(100):
            address = ports[i % 4].getsockname()
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", address[1])))
            connection.sendall(b"x")
        number = ports[0].getsockname()[1]
        peer = stack.enter_context(socket.create_connection(("127.0.0.1", number)))
        peer.sendall(greeting_of(SECRET, 1))
        if trouble == "too many":
            monkeypatch.setattr("phalanx._worker.program._STRANGERS", 3)
        else:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
            os.close(lowest := os.dup(peer.fileno()))
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 10, hard))
        missing = {greeting_of(SECRET, 1)}
        hear_greetings(ports, missing, time.monotonic() + 60)
    assert not missing


def test_who_does_not_come_is_waited_for_until_the_time_is_over(ports):
    """Then the ports are free again."""
    thread, missing = first_host(ports, 3, time.monotonic() + 0.5)
    thread.join(30)
    assert not thread.is_alive() and len(missing) == 2
    assert all(each.fileno() < 0 for each in ports)
