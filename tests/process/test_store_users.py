"""The store of an app is closed to other users of the machine, and open to one's own."""

import contextlib
import os
import subprocess
import sys

import pytest

from tests.process import store_intruder
from tests.process.test_store_flood import KINDS, NOBODY, flood
from tests.process.test_torchrun import free_port, torchrun  # noqa: F401

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")

MEETS = """
import encodings.idna, os, sys, time
import torch.distributed as dist

user = int(sys.argv[1])
if user:
    os.setresuid(user, user, user)
if os.environ["RANK"] == "0":
    print(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], flush=True)

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

if os.environ["RANK"] == "1":
    wait_for("join")
dist.init_process_group("gloo")
dist.barrier()
print("formed", flush=True)
wait_for("end")
dist.barrier()
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
print(store.check(["phalanx"]), store.check(["intruder"]), flush=True)
dist.destroy_process_group()
"""


@contextlib.contextmanager
def intruder(address, port, user=NOBODY):
    """One that tries everything each time it is called, and gives what was answered."""
    words = [sys.executable, store_intruder.__file__, str(user), address, str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, **pipes)

    def attack():
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline()

    try:
        yield attack
    finally:
        process.communicate("")


def flags_of(kind):
    where = {
        "standalone": ("--standalone",),
        "static": ("--master-port", free_port()),
        "c10d": ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}"),
    }
    return (*where[kind], "--nproc-per-node", "2")


@pytest.fixture
def two_workers(torchrun):  # noqa: F811
    """Starts two workers, of which the second joins when there is a file of that name."""
    started = []

    def start(kind, user=0):
        started.append(torchrun.start(MEETS, *flags_of(kind), args=(str(user),)))
        return started[-1]

    yield start
    for host in started:
        if host.poll() is None:
            host.terminate()
            host.communicate(timeout=60)


def has_formed(host):
    return [host.stdout.readline() for _ in range(2)] == ["formed\n"] * 2


def ends_well(host, tmp_path):
    (tmp_path / "end").touch()
    out, errors = host.communicate(timeout=60)
    assert (host.returncode, out) == (0, "True False\n" * 2), errors


@pytest.mark.parametrize("kind", ["standalone", "static", "c10d"])
def test_another_user_gets_no_answer_before_and_after_the_group_has_formed(
    two_workers, tmp_path, kind
):
    """To whatever it asks, nor has what it leaves behind an effect; the group forms."""
    host = two_workers(kind)
    address, port = host.stdout.readline().split()
    with intruder(address, port) as attack:
        assert attack() == "{}\n"
        (tmp_path / "join").touch()
        assert has_formed(host)
        assert attack() == "{}\n"
    ends_well(host, tmp_path)


@pytest.mark.parametrize("kind", ["standalone", "static"])
def test_a_program_that_has_become_another_user_gets_in(two_workers, tmp_path, kind):
    """As programs of root do in containers; others of that user come in with it."""
    tmp_path.chmod(0o755)  # where it looks for files
    (tmp_path / "join").touch()
    host = two_workers(kind, NOBODY)
    host.stdout.readline()
    assert has_formed(host)
    ends_well(host, tmp_path)


def test_a_flood_by_another_user_does_not_keep_a_group_from_forming(two_workers, tmp_path):
    """Of every kind at once, at the store itself."""
    host = two_workers("standalone")
    address, port = host.stdout.readline().split()
    with flood(address, port, *KINDS, user=NOBODY):
        (tmp_path / "join").touch()
        assert has_formed(host)
    ends_well(host, tmp_path)
