"""A stranger at the rendezvous port: no frame of its has an effect, and it costs itself alone."""

import asyncio
import contextlib
import ctypes
import os
import re
import socket
import subprocess
import sys

import pytest

from phalanx._channel import trust
from phalanx import _wire as wire
from phalanx._channel.channel import SocketChannel
from phalanx._core.rounds import Endpoint
from phalanx._wire import rendezvous_frames
from phalanx._system.processes import descendants
from tests.conftest import wait_until
from tests.process import strangers
from tests.process.commands import phalanx
from tests.process.strangers import ENVIRON, TOKEN, join_request, prove_and_say, say
from tests.process.test_torchrun import free_port, torchrun  # noqa: F401

RUNS = """
import os, sys, time
print("runs", os.environ["RANK"], os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""


def listens(port):
    """Somebody takes connections there."""
    with open("/proc/net/tcp") as file:
        return any(f":{port:04X} " in line and " 0A " in line for line in file)


class Pair:
    """Two hosts of a rendezvous on this machine; `go` lets them end."""

    def __init__(self, torchrun, tmp_path, *flags, env=ENVIRON):
        self.port = free_port()
        self._torchrun, self._path, self._env = torchrun, tmp_path, env
        where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{self.port}")
        self._flags = ("--nnodes", "2", *where, "--rdzv-id", "run", *flags)
        self.leader = self._start()
        wait_until(lambda: listens(self.port))

    def _start(self):
        return self._torchrun.start(RUNS, *self._flags, env=self._env)

    def join(self):
        self.follower = self._start()
        return [host.stdout.readline() for host in (self.leader, self.follower)]

    def end(self):
        """Both end well, and each has printed once: nobody was restarted, ended or replaced."""
        (self._path / "go").touch()
        outs = [host.communicate(timeout=60) for host in (self.leader, self.follower)]
        assert [host.returncode for host in (self.leader, self.follower)] == [0, 0], outs
        assert [out for out, _ in outs] == ["", ""], outs
        return [errors for _, errors in outs]


@pytest.fixture
def pair(torchrun, tmp_path):  # noqa: F811
    return lambda *flags, **options: Pair(torchrun, tmp_path, *flags, **options)


BAD = [
    join_request(),
    join_request(bounds=()),
    join_request(hostname="9" * 5000),
    join_request(hostname="9" * 200),
    join_request(workers=5),
    join_request(workers=-1),
    join_request(agent=-5),
    join_request(run_id="another"),
    rendezvous_frames.LeaderMoved(app="run", contact=Endpoint("127.0.0.1", 1)),
    rendezvous_frames.LeaderMoved(contact=Endpoint("127.0.0.1", 1)),
    rendezvous_frames.AppEnded(reason="succeeded", missing=(), note="", hosts=()),
    wire.HaltRound(round=1, grace=0.0),
    wire.ShutDown(),
    wire.Ping(sent=0.0),
]


def test_strangers_get_nothing_before_and_after_the_group_has_formed(pair):
    """Frames without a proof, with a proof of another token, of none, and bytes of any kind."""
    two = pair()

    def attack():
        answers = [say(two.port, wire.encode(frame), 0.3) for frame in BAD[:3]]
        answers += [say(two.port, b"GET / HTTP/1.1\r\n\r\n"), say(two.port, bytes(100))]
        answers += [say(two.port, b"PHXR\x01" + bytes(32) + bytes(32) + b"x" * 10_000)]
        assert all(b"run" not in answer and len(answer) <= 32 for answer in answers), answers
        for frame in BAD:
            assert prove_and_say(two.port, "the token of a stranger", frame) is None
            assert prove_and_say(two.port, "", frame) is None

    attack()
    assert sorted(two.join()) == ["runs 0 2\n", "runs 1 2\n"]
    attack()
    two.end()


def test_frames_of_one_that_has_the_token_are_checked_too(pair):
    """A lie costs the connection that it came over."""
    two = pair()
    for frame in (*BAD[1:3], *BAD[5:7], *BAD[9:]):
        prove_and_say(two.port, TOKEN, frame, patience=0.5)
    broken = wire.encode(join_request())
    for data in (
        b"",
        b"nonsense",
        broken[:-3],
        broken[:20] + b"\xff" * 20,
        b"PHX\x02" + broken[4:],
    ):
        assert prove_and_say(two.port, TOKEN, data, patience=0.2) == []
    assert sorted(two.join()) == ["runs 0 2\n", "runs 1 2\n"]
    refused = prove_and_say(two.port, TOKEN, join_request(run_id="another"))
    assert isinstance(refused[0], rendezvous_frames.JoinRefused)
    assert "'run'" not in refused[0].reason
    two.end()


def test_nobody_comes_in_the_name_of_a_member(pair):
    """Though the ids of members are told to all that wait."""
    two = pair()
    assert sorted(two.join()) == ["runs 0 2\n", "runs 1 2\n"]
    told = prove_and_say(two.port, TOKEN, join_request(agent=1), patience=1.0)
    (assemble,) = [frame for frame in told if isinstance(frame, rendezvous_frames.RoundFormed)]
    for agent in assemble.agents:
        answer = prove_and_say(two.port, TOKEN, join_request(agent=agent))
        assert isinstance(answer[0], rendezvous_frames.JoinRefused), answer
        assert "the identity of another host" in answer[0].reason
    two.end()


def test_idle_connections_use_up_neither_descriptors_nor_memory(pair):
    """1,500 that say nothing, and some that announce a long record and send what they can of it: a
    host can still join, also while 3,000 more come again whenever they are turned away.
    """
    two = pair()
    pid = two.leader.pid
    most = lambda: strangers.most_memory(pid)
    began = most()
    before = len(os.listdir(f"/proc/{pid}/fd"))
    idle = []
    with strangers.room_for_descriptors(4500):
        try:
            for _ in range(1500):
                idle.append(socket.create_connection(("127.0.0.1", two.port), timeout=5))
            head = b"PHXR\x01" + bytes(32) + (32 << 20).to_bytes(4, "big")
            for connection in idle[::10]:
                with contextlib.suppress(OSError):
                    connection.sendall(head)
                    connection.setblocking(False)
                    while connection.send(bytes(4 << 20)):  # as much as it takes
                        pass
            wait_until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= before + 300)
            with strangers.idle_connections(two.port, 3000) as held:
                wait_until(lambda: len(held) == 3000)
                assert sorted(two.join()) == ["runs 0 2\n", "runs 1 2\n"]
                assert len(os.listdir(f"/proc/{pid}/fd")) <= before + 300
            assert most() - began < 64 << 20
        finally:
            for connection in idle:
                connection.close()
    two.end()


def test_what_is_replayed_or_changed_on_the_way_has_no_effect(pair):
    """Somebody between two hosts can cut their connection, and nothing else."""
    two = pair()
    spare = ("--nnodes", "2", "--rdzv-id", "run", "--rdzv-conf", "join_timeout=4,is_host=0")

    async def listen_in(change=lambda data, way: data):
        async with strangers.Between([two.port], change) as between:
            flags = (
                *spare,
                "--rdzv-backend",
                "c10d",
                "--rdzv-endpoint",
                f"localhost:{between.port}",
            )
            third = two._torchrun.start(RUNS, *flags, env=ENVIRON)
            if change is not None:
                await asyncio.to_thread(third.wait, 60)
            return between.heard, third.communicate()[1]

    def change(data, way):
        # Past the proof: the last byte of the first record.
        return data[:-1] + bytes([data[-1] ^ 1]) if len(data) > 100 else data

    heard, said = asyncio.run(listen_in(change))
    assert "join_timeout" in said
    replayed = b"".join(heard["there"])
    assert len(replayed) > 200
    answer = say(two.port, replayed)
    assert len(answer) == 32  # a random number, and no proof
    assert sorted(two.join()) == ["runs 0 2\n", "runs 1 2\n"]
    two.end()


def test_a_host_with_another_token_says_so_and_is_kept_out(pair, torchrun, tmp_path):  # noqa: F811
    """At once; it may still be set right on the other side, so it tries again."""
    two = pair()
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{two.port}")
    flags = ("--nnodes", "2", *where, "--rdzv-id", "run", "--rdzv-conf", "join_timeout=2,is_host=0")
    other = torchrun(RUNS, *flags, env={"PHALANX_RDZV_TOKEN": "quite another token"})
    assert other.returncode == 1
    assert "Do all hosts have the same token?" in other.stderr
    assert "quite another" not in other.stderr
    two.join()
    said = two.end()[0]
    assert re.search(r"refused a connection from [\d.:a-f]+ with a wrong token, or none", said)
    assert said.count("refused a") == 1  # and nothing of torch's launcher, which it is not


@pytest.mark.parametrize("place", ["home", "token_file"])
def test_hosts_that_share_a_file_with_a_token_meet(pair, torchrun, tmp_path, place):  # noqa: F811
    """In the home, or named; one that does not have it is kept out."""
    file = tmp_path / "phalanx" / "rendezvous.token"
    file.parent.mkdir()
    file.write_text("the token of a file")
    file.chmod(0o600)
    without = {"XDG_CONFIG_HOME": str(tmp_path / "other")}
    if place == "home":
        two = pair(env={"XDG_CONFIG_HOME": str(tmp_path)})
    else:
        two = pair("--rdzv-conf", f"token_file={file}", env=without)
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{two.port}")
    flags = ("--nnodes", "2", *where, "--rdzv-id", "run", "--rdzv-conf", "join_timeout=1,is_host=0")
    other = torchrun(RUNS, *flags, env=without)
    assert (other.returncode, other.stdout) == (1, "")
    assert "Do all hosts have the same token?" in other.stderr
    assert prove_and_say(two.port, "the token of a file", join_request(run_id="another"))
    assert sorted(two.join()) == ["runs 0 2\n", "runs 1 2\n"]
    two.end()


@pytest.mark.parametrize("busy", ["listens", "is bound"])
def test_hosts_that_found_their_port_taken_meet_when_it_is_left(torchrun, tmp_path, busy):  # noqa: F811
    """Both had it that the other leads."""
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        port = squatter.getsockname()[1]
        if busy == "listens":
            squatter.listen()
        where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
        flags = ("--nnodes", "2", *where, "--rdzv-id", "run", "--rdzv-conf", "join_timeout=120")
        hosts = [torchrun.start(RUNS, *flags, env=ENVIRON) for _ in range(2)]
        for host in hosts:
            assert f"waiting for the rendezvous at localhost:{port}" in host.stderr.readline()
    (tmp_path / "go").touch()
    outs = [host.communicate(timeout=60) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outs


def test_one_at_the_endpoint_who_passes_bytes_on_to_the_hosts_own_ports_gains_nothing(
    torchrun,  # noqa: F811
    tmp_path,
):
    """Hosts that followed each other through him would wait for each other, for good."""

    async def relay(squatter, hosts, seen):
        targets = [wait_until(lambda h=host: listening_at(h))[0][1] for host in hosts]
        async with strangers.Between(targets, listener=squatter) as between:
            while len(between.heard["back"]) < 8:
                await asyncio.sleep(0.01)
            seen.extend(between.heard["there"] + between.heard["back"])

    squatter, seen = socket.create_server(("127.0.0.1", 0)), []
    port = squatter.getsockname()[1]
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
    flags = ("--nnodes", "2", *where, "--rdzv-id", "secret-run", "--rdzv-conf", "join_timeout=120")
    hosts = [torchrun.start(RUNS, *flags, env=ENVIRON) for _ in range(2)]
    asyncio.run(relay(squatter, hosts, seen))
    assert b"secret-run" not in b"".join(seen)
    (tmp_path / "go").touch()
    outs = [host.communicate(timeout=60) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outs
    assert all("Do all hosts have the same token?" in errors for _, errors in outs), outs


@pytest.mark.parametrize(
    "first", [wire.Preempted(), rendezvous_frames.JoinAccepted(leader=1)], ids=repr
)
def test_one_that_does_not_begin_with_who_it_is_is_refused(pair, first):
    """And told why; it is said on the host that decides, too."""
    two = pair()
    (answer,) = prove_and_say(two.port, TOKEN, first)
    kind = type(first).__name__
    assert answer == rendezvous_frames.JoinRefused(
        reason=f"it sent {kind} instead of a request to join"
    )
    assert f"refused a host: it sent {kind} instead of a request to join" in said_by(two.leader)
    two.join()
    two.end()


def said_by(host):
    """What a host prints next that is about one that was refused."""
    return next(line for line in host.stderr if "refused" in line)


def test_an_answer_that_is_none_is_not_obeyed_and_said_at_once(torchrun):  # noqa: F811
    """Not when patience is at its end, and not as if it decided."""

    async def answer(reader, writer):
        connection = socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))
        writer.transport.pause_reading()
        connection.setblocking(False)
        session = await trust.admit(connection, trust.key_of(TOKEN, "rendezvous"))
        channel = await SocketChannel.over(connection, session)
        await channel.send(
            rendezvous_frames.AppEnded(reason="succeeded", missing=(), note="", hosts=())
        )
        await channel.flush()
        channel.close()
        writer.close()

    async def run():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            where = ("--rdzv-endpoint", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            conf = ("--rdzv-conf", "join_timeout=1,is_host=0")
            flags = ("--nnodes", "2", "--rdzv-backend", "c10d", *where, *conf)
            return await asyncio.to_thread(torchrun, RUNS, *flags, env=ENVIRON)

    done = asyncio.run(run())
    assert (done.returncode, done.stdout) == (1, "")
    assert "up to 1 s (join_timeout): it answered the request to join with AppEnded" in done.stderr


def test_hosts_of_one_user_on_one_machine_need_no_token(pair):
    """They share a file that nobody else can read."""
    two = pair(env={})
    assert prove_and_say(two.port, "", join_request()) is None
    assert sorted(two.join()) == ["runs 0 2\n", "runs 1 2\n"]
    two.end()


def test_a_rendezvous_without_a_token_beyond_loopback_says_so_once(torchrun, tmp_path):  # noqa: F811
    """It works as torchrun's does; whoever has the run id can take part, and nonsense still ends alone."""
    port = free_port()
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}
    own = socket.gethostname()
    where = (
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"{own}:{port}",
        "--local-addr",
        "127.0.0.1",
    )
    flags = (
        "--nnodes",
        "1:2",
        *where,
        "--rdzv-id",
        "run",
        "--rdzv-conf",
        "is_host=1,last_call_timeout=1",
    )
    host = torchrun.start(RUNS, *flags, env=home)
    wait_until(lambda: listens6(port))
    for frame in (*BAD[1:3], *BAD[5:8]):
        prove_and_say(port, "", frame, patience=0.3)
    host.stdout.readline()
    (tmp_path / "go").touch()
    _, errors = host.communicate(timeout=60)
    assert host.returncode == 0, errors
    said = [line for line in errors.splitlines() if "can join the rendezvous" in line]
    assert len(said) == 1, errors
    assert said[0].endswith("Set PHALANX_RDZV_TOKEN to the same secret on all hosts.")


def listens6(port):
    """Somebody takes connections there, at any address."""
    with open("/proc/net/tcp6") as file:
        return listens(port) or any(f":{port:04X} " in line and " 0A " in line for line in file)


def test_strangers_at_a_shared_port_do_not_keep_workers_from_their_store(torchrun, tmp_path):  # noqa: F811
    """With one port for hosts and store, as torch's static rendezvous has it."""
    port = free_port()
    flags = ("--nnodes", "2", "--master-port", port)
    idle, nodes = [], [torchrun.start(STATIC, *flags, "--node-rank", "0", env=ENVIRON)]
    try:
        wait_until(lambda: listens6(port))
        for number in range(600):
            idle.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            if number % 3 == 0:
                idle[-1].sendall(b"PHX" if number % 2 else b"GET / HTTP/1.1\r\n\r\n")
        nodes.append(torchrun.start(STATIC, *flags, "--node-rank", "1", env=ENVIRON))
        outs = [node.communicate(timeout=90) for node in nodes]
    finally:
        for connection in idle:
            connection.close()
    assert [out for out, _ in outs] == ["the sum is 2\n"] * 2, outs


STATIC = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.barrier()
print("the sum is", int(total))
dist.destroy_process_group()
"""


ALONE = """
import os, time
def f():
    open("PLACE/up-" + os.environ["RANK"], "w").close()
    while not os.path.exists("PLACE/go"):
        time.sleep(0.01)
if __name__ == "__main__":
    f()
"""


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--standalone", "--nproc-per-node", "2", "alone.py"],
        ["launch", "alone.py:f", "--workers-per-host", "2"],
        ["run", "--wait", "dist.ddp", "-j", "1x2", "--script", "alone.py"],
    ],
    ids=["torchrun", "launch", "dist.ddp"],
)
def test_a_single_host_takes_no_connections(tmp_path, command):
    """Nobody can come, so nobody listens: no process of it has a listening socket."""
    (tmp_path / "alone.py").write_text(ALONE.replace("PLACE", str(tmp_path)))
    host = subprocess.Popen(
        [sys.executable, "-m", "phalanx", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: host.poll() is not None or len([*tmp_path.glob("up-*")]) == 2)
        listening = [] if host.poll() is not None else listening_at(host)
    finally:
        (tmp_path / "go").touch()
        _, errors = host.communicate(timeout=60)
    assert host.returncode == 0, errors
    assert listening == []


def listening_at(host):
    """Where processes of a host take connections: addresses as the kernel writes them, or the
    device that they are confined to; ports.
    """
    found = {}
    for pid in (host.pid, *descendants(host.pid)):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found[os.readlink(f"/proc/{pid}/fd/{number}")] = pid, int(number)
    addresses = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as file:
            rows = [line.split() for line in file][1:]
        for row in rows:
            if row[3] == "0A" and (held := found.get(f"socket:[{row[9]}]")) is not None:
                address, port = row[1].split(":")
                addresses.append((device_of(*held) or address, int(port, 16)))
    return addresses


def device_of(pid, number):
    """The one that a socket of another process is bound to, or nothing."""
    there = os.pidfd_open(pid)
    with socket.socket(fileno=ctypes.CDLL(None).syscall(438, there, number, 0)) as copy:  # getfd
        os.close(there)
        return copy.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0").decode()


def test_hosts_that_meet_on_this_machine_take_connections_at_loopback_alone(pair):
    """Each at one port, for the rendezvous; nobody else has to find out whether it reaches them."""
    two = pair()
    two.join()
    for host in (two.leader, two.follower):
        assert [address for address, _ in listening_at(host)] == ["0100007F"]
    two.end()


def test_replicas_of_an_app_share_a_token_that_only_the_user_can_read(tmp_path, monkeypatch):
    """It is in no argument of theirs and in no file; each app has its own."""
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    code = "import os; print(os.environ['PHALANX_RDZV_TOKEN'])"
    (tmp_path / "train.py").write_text(code)
    tokens = []
    for _ in range(2):
        ddp = ("dist.ddp", "-j", "2x1", "--rdzv_port", free_port(), "--script", "train.py")
        done = phalanx("run", "--wait", *ddp, timeout=100)
        assert done.returncode == 0, done.stderr
        log = phalanx("log", done.stdout.strip()).stdout
        (token,) = {line.split()[-1] for line in log.splitlines()}
        tokens.append(token)
    assert len(set(tokens)) == 2
    files = [path for path in state.rglob("*") if path.is_file()]
    texts = {path: path.read_text(errors="replace") for path in files}
    found = [path for path, text in texts.items() if any(token in text for token in tokens)]
    assert all(path.parent.name == "logs" or "stdout" in path.name for path in found), found
    assert not [path for path in found if path.suffix == ".json"]


def test_a_long_frame_is_not_gathered_from_many_records(pair):
    """One that has the token cannot have the host that decides keep 32 MB for it."""
    two = pair()
    head = wire.codec._HEADER.pack(b"PHX", wire.VERSION, 30 << 20, 0)
    assert prove_and_say(two.port, TOKEN, head + bytes(60_000), patience=5.0) == []
    assert sorted(two.join()) == ["runs 0 2\n", "runs 1 2\n"]
    two.end()


def test_what_a_host_claims_of_its_past_is_plausible_or_refused(pair):
    """Otherwise one could spend all restarts, or the numbers of rounds."""
    two = pair()
    (refused,) = prove_and_say(two.port, TOKEN, join_request(restarts=1 << 30))
    assert isinstance(refused, rendezvous_frames.JoinRefused)
    assert prove_and_say(two.port, TOKEN, join_request(last_round=1 << 61)) == []
    assert sorted(two.join()) == ["runs 0 2\n", "runs 1 2\n"]
    two.end()


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_static_port_that_is_taken_is_an_error_at_once(torchrun, hosts, listens):  # noqa: F811
    """It names the port, and the process that listens there."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        if listens:
            other.listen()
        else:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        done = torchrun(RUNS, "--nnodes", hosts, "--node-rank", "0", "--master-port", port)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot listen at 127.0.0.1:{port}: " in done.stderr
    who = f"port {port} is in use by process {os.getpid()} (" if listens else "in use"
    assert who in done.stderr
    assert "Choose another port." in done.stderr
