"""A flood of clients that speak the store's own protocol does not keep a group from forming."""

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx._core.rounds import Endpoint
from phalanx._rendezvous.tcp.connections.crowd import Standing
from phalanx._rendezvous.tcp.connections.store_gate import StoreGate
from phalanx._system import network
from phalanx._system.processes import descendants
from tests.conftest import wait_until
from tests.process import store_flood
from tests.process.strangers import ENVIRON
from tests.process.test_strangers import STATIC, listens6
from tests.process.test_torchrun import free_port, torchrun  # noqa: F401

KINDS = ("idle", "half", "valid", "waiting", "greeting", "storm")
NOBODY = 65534


@contextlib.contextmanager
def flood(address, port, *kinds, user="-", prefix=()):
    """Have strangers attack while the block runs."""
    words = (store_flood.__file__, user, address, port, *kinds)
    attacker = subprocess.Popen(
        [*prefix, sys.executable, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert attacker.stdout.readline() == "attacking\n"
        yield
        assert attacker.poll() is None
    finally:
        attacker.kill()
        attacker.communicate()


def group_forms(torchrun, master, attack):  # noqa: F811
    """Two hosts, the second of which comes when the attack is under way."""
    port = free_port()
    flags = ("--nnodes", "2", "--master-addr", master, "--master-port", port)
    nodes = [torchrun.start(STATIC, *flags, "--node-rank", "0", env=ENVIRON)]
    try:
        wait_until(lambda: listens6(port))
        with attack(port):
            nodes.append(torchrun.start(STATIC, *flags, "--node-rank", "1", env=ENVIRON))
            outs = [node.communicate(timeout=90) for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                node.terminate()
                node.communicate(timeout=60)
    assert [out for out, _ in outs] == ["the sum is 2\n"] * 2, outs
    assert [node.returncode for node in nodes] == [0, 0], outs


def test_a_flood_by_another_user_of_this_machine(torchrun):  # noqa: F811
    """Of every kind at once, before and while the group forms."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    attack = lambda port: flood("127.0.0.1", port, *KINDS, user=NOBODY)
    group_forms(torchrun, "127.0.0.1", attack)


def test_a_flood_by_processes_of_the_same_user(torchrun):  # noqa: F811
    """Not even they keep a group from forming by chance, such as a scan of ports."""
    attack = lambda port: flood("127.0.0.1", port, *KINDS)
    group_forms(torchrun, "127.0.0.1", attack)


NETWORK = "10.213.77"


@pytest.fixture
def other_host():
    """The prefix of commands in a network of its own, from where this machine can be reached."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for a network namespace")
    name = f"phx-flood-{os.getpid()}"
    ours, theirs = f"pf{os.getpid() % 100000}a", f"pf{os.getpid() % 100000}b"

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True)

    if ip("netns", "add", name).returncode != 0:
        pytest.skip("no network namespace can be made here")
    try:
        for words in (
            ("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name),
            ("addr", "add", f"{NETWORK}.1/24", "dev", ours),
            ("link", "set", ours, "up"),
            ("-n", name, "addr", "add", f"{NETWORK}.2/24", "dev", theirs),
            ("-n", name, "link", "set", theirs, "up"),
        ):
            done = ip(*words)
            if done.returncode != 0:
                pytest.skip(f"no link between networks can be made here: {done.stderr}")
        yield ("ip", "netns", "exec", name)
    finally:
        ip("netns", "del", name)
        ip("link", "del", ours)


def test_a_flood_from_another_host(torchrun, other_host):  # noqa: F811
    """One that has not joined: it gets what is left over."""
    attack = lambda port: flood(f"{NETWORK}.1", port, *KINDS, prefix=other_host)
    group_forms(torchrun, f"{NETWORK}.1", attack)


CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)"


@pytest.mark.parametrize("confined", [True, False])
def test_a_confined_port_is_reached_from_this_machine_alone(other_host, confined):
    """By its loopback address, where the gate comes from; unconfined, the way there is open."""
    with network.bind(anywhere=True) as bound:
        if confined:
            network.confine_to_loopback(bound)
        bound.listen()
        port = str(bound.getsockname()[1])

        def reaches(*prefix, address):
            command = [*prefix, sys.executable, "-c", CONNECT, address, port]
            return subprocess.run(command, capture_output=True).returncode == 0

        assert reaches(address="127.0.0.1")
        assert reaches(*other_host, address=f"{NETWORK}.1") is not confined


def test_the_store_of_hosts_that_meet_on_this_machine_is_reached_from_it_alone(
    torchrun,  # noqa: F811
    other_host,
    tmp_path,
):
    """Whatever addresses the machine has."""
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}")
    nodes = [torchrun.start(MEETS, "--nnodes", "2", *where, env=ENVIRON) for _ in range(2)]
    try:
        (port,) = {node.stdout.readline().strip() for node in nodes}
        command = [sys.executable, "-c", CONNECT]
        assert subprocess.run([*command, "127.0.0.1", port]).returncode == 0
        away = [*other_host, *command, f"{NETWORK}.1", port]
        assert subprocess.run(away, stderr=subprocess.PIPE).returncode == 1
    finally:
        (tmp_path / "end").touch()
        outs = [node.communicate(timeout=60) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outs


def store_of(nodes):
    """The process that carries the store."""
    for node in nodes:
        for pid in descendants(node.pid):
            if b"store" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


def listening_port(pid):
    """At which a process takes connections; it has one such socket."""
    sockets = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(fd))
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                return int(fields[1].rpartition(":")[2], 16)
    return None


def test_the_store_behind_a_shared_port_is_reached_by_way_of_it_alone(
    torchrun,  # noqa: F811
    other_host,
    tmp_path,
):
    """Its own port is closed to other hosts; and its descriptors are as many as there can be."""
    where = ("--master-addr", f"{NETWORK}.1", "--master-port", free_port())
    limits = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 4096))}
    nodes = [
        torchrun.start(MEETS, "--nnodes", "2", *where, "--node-rank", rank, env=ENVIRON, **limits)
        for rank in range(2)
    ]
    try:
        assert len({node.stdout.readline() for node in nodes}) == 1
        store = store_of(nodes)
        port = str(listening_port(store))
        command = [sys.executable, "-c", CONNECT]
        assert subprocess.run([*command, "127.0.0.1", port]).returncode == 0
        away = [*other_host, *command, f"{NETWORK}.1", port]
        assert subprocess.run(away, stderr=subprocess.PIPE).returncode == 1
        assert resource.prlimit(store, resource.RLIMIT_NOFILE) == (4096, 4096)
    finally:
        (tmp_path / "end").touch()
        outs = [node.communicate(timeout=60) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outs


MEETS = """
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
print(os.environ["MASTER_PORT"], flush=True)
while not os.path.exists("end"):
    time.sleep(0.01)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("descriptors", "most"), [(4096, 64), (288, 4)])
def test_strangers_take_few_descriptors_on_their_way_to_the_store(monkeypatch, descriptors, most):
    """However many come, from however many places; those that are known come past them."""
    # What the gate is told, not what is so: the other ends of all connections are here as well.
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    asyncio.run(crowd(most))


async def crowd(most):
    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    gate, tasks, ends = StoreGate(), [], []
    gate.store = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
    loop = asyncio.get_running_loop()

    async def come(origin, standing):
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        tasks.append(asyncio.create_task(gate.pass_on(theirs, origin, standing)))
        tasks[-1].add_done_callback(lambda _: theirs.close())
        ends.append(ours)
        await asyncio.sleep(0)
        return ours

    async def is_answered(end):
        await loop.sock_sendall(end, b"word")
        async with asyncio.timeout(30):
            return await loop.sock_recv(end, 4) == b"word"

    for number in range(400):
        await come(number % 50, Standing.STRANGER)
    async with asyncio.timeout(30):
        while sum(not task.done() for task in tasks) > most:
            await asyncio.sleep(0.01)
    for origin, standing in (("a host", Standing.PROVEN), (os.geteuid(), Standing.OWN)):
        for _ in range(4):
            assert await is_answered(await come(origin, standing))
    for end in ends:
        end.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    server.close()
    await server.wait_closed()
