"""A host of torch's own launcher and one of ours at one endpoint: both hear of it."""

import asyncio
import socket
import struct
import subprocess
import sys

import pytest

from phalanx._core.rounds import Endpoint
from phalanx._rendezvous.tcp.connections import torch_store
from tests.conftest import wait_until
from tests.process.test_torchrun import _listens, free_port, torchrun  # noqa: F401 a fixture

STORE = """
from torch.distributed import TCPStore
store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
import sys; sys.stdin.read()
"""


def test_a_store_of_torchs_at_the_endpoint_is_told_at_once(torchrun):  # noqa: F811
    """A host of ours does not wait for what can never come."""
    with subprocess.Popen(
        [sys.executable, "-c", STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as store:
        port = store.stdout.readline().strip()
        where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
        done = torchrun("print(1)", "--nnodes", "2", *where, "--rdzv-conf", "is_host=0")
    assert done.returncode == 1
    assert "torch's own launcher waits at localhost" in done.stderr
    assert "Start all hosts of a job with the same command" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_client_of_torchs_store_is_told_of_at_once(torchrun, is_ours):  # noqa: F811
    """The host that waits says who came; the client is turned away.

    A host of ours that got no answer asks as such a client does, and is not taken for one.
    """
    port = free_port()
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
    host = torchrun.start("print(1)", "--nnodes", "2", *where, "--rdzv-conf", "join_timeout=20")
    wait_until(lambda: _listens(host.pid, port))
    if is_ours:
        assert not asyncio.run(torch_store.listens_at(Endpoint("localhost", port)))
    else:
        with socket.create_connection(("localhost", port), timeout=20) as client:
            client.sendall(struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 7))
            assert client.recv(4) == b""
    host.terminate()
    _, errors = host.communicate(timeout=60)
    said = "refused a host that was started with torch's own launcher" in errors
    assert said is not is_ours, errors


STAYS = """
import os, time, torch.distributed as dist
dist.init_process_group("gloo")
print("formed", flush=True)
while not os.path.exists("end"):
    time.sleep(0.05)
"""


def test_a_store_of_ours_at_the_endpoint_is_not_taken_for_torchs(torchrun, tmp_path):  # noqa: F811
    """Another run has the static port, and its store answers there."""
    port = free_port()
    where = ("--rdzv-backend", "static", "--master-addr", "127.0.0.1", "--master-port", str(port))
    other = torchrun.start(STAYS, "--nnodes", "1", *where)
    assert other.stdout.readline() == "formed\n"
    late = torchrun(
        STAYS, "--nnodes", "2", "--node-rank", "1", *where, "--rdzv-conf", "join_timeout=4"
    )
    (tmp_path / "end").touch()
    other.communicate(timeout=60)
    assert late.returncode == 1
    assert "no answer within" in late.stderr
    assert "torch's own launcher" not in late.stderr
