"""What goes wrong on other hosts is told at once, with the host's name and the reason."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

import phalanx
from tests.conftest import wait_until


def sleep():
    time.sleep(120)


class Odd(Exception):
    """With a constructor that pickle cannot call."""

    def __init__(self, left, right):
        super().__init__(f"{left} {right}")
        self.left = left


def test_an_exception_comes_home_with_host_and_traceback(launcher):
    """Its own type; the other hosts are stopped though they speak to nobody."""

    def fail():
        if socket.gethostname() == "box2":
            raise Odd(1, "two")
        sleep()

    with pytest.raises(Odd) as caught:
        launcher().run(fail)
    assert caught.value.left == 1
    note = caught.value.__notes__[0]
    assert "raised by rank 1 on box2" in note
    assert 'raise Odd(1, "two")' in note


@pytest.mark.parametrize("first", ["box1", "box2"])
def test_the_earlier_of_two_failures_on_two_hosts_is_the_cause(launcher, first):
    """By one clock, though theirs differ; the other is listed if it came before all were stopped."""

    def fail(at):
        os.nice(-10)
        if time.time() > at:
            raise RuntimeError("started too late")
        time.sleep(max(0.0, at + 0.05 * (socket.gethostname() != first) - time.time()))
        raise ValueError(socket.gethostname())

    other = "box2" if first == "box1" else "box1"
    for patience in range(2, 12, 2):  # a busy machine takes its time to start, or to report
        try:
            launcher().run(fail, {"at": time.time() + patience})
        except RuntimeError:
            continue
        except ValueError as error:
            assert str(error) == first
            if any("Also failed later" in note and other in note for note in error.__notes__):
                return
    pytest.fail("the other failure was never listed")


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (lambda: os._exit(0), "exited with code 0 before its function returned"),
        (lambda: os._exit(3), "exited with code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "was killed by SIGSEGV"),
    ],
)
def test_the_end_of_a_worker_names_its_host(launcher, end, message):
    """Code or signal, rank, host and pid."""

    def f():
        if os.environ["RANK"] == "1":
            end()
        sleep()

    with pytest.raises(phalanx.WorkerFailed, match=rf"rank 1 on box2 \(pid \d+\) {message}"):
        launcher().run(f)


def test_a_killed_agent_is_reported_within_a_second_and_its_workers_die(launcher, cluster):
    """The other hosts are stopped."""
    app = launcher().start(sleep)
    agent = wait_until(lambda: cluster.hosts[1].pids("rank 1") and cluster.hosts[1].pids(" agent"))
    cluster.hosts[1].enter("kill", "-9", str(agent[0]))
    began = time.monotonic()
    with pytest.raises(phalanx.AgentLost, match=r"lost the agent on box2: .*The other agent was"):
        app.result(30)
    assert time.monotonic() - began < 6  # a second, and the time that this machine may be busy


def test_a_killed_zygote_is_reported(launcher, cluster):
    """With how it ended."""
    app = launcher().start(sleep)
    found = wait_until(lambda: cluster.hosts[1].pids("rank 1") and cluster.hosts[1].pids("zygote"))
    cluster.hosts[1].enter("kill", "-9", str(found[0]))
    with pytest.raises(phalanx.AgentLost, match="box2: the zygote died .killed by SIGKILL"):
        app.result(30)


def test_a_host_that_goes_down_is_reported_within_a_second(launcher, cluster):
    """Its processes all die at once; peers are told so by its kernel."""
    app = launcher().start(sleep)
    wait_until(lambda: cluster.hosts[1].pids("rank 1"))
    cluster.hosts[1].kill()
    began = time.monotonic()
    with pytest.raises(phalanx.AgentLost, match="lost the agent on box2"):
        app.result(30)
    assert time.monotonic() - began < 6


def test_a_silent_host_is_given_up_after_host_timeout(launcher, cluster):
    """No packet comes through any more; its own agent ends after orphan_timeout."""
    app = launcher(host_timeout=2, orphan_timeout=4).start(sleep)
    wait_until(lambda: cluster.hosts[1].pids("rank 1"))
    time.sleep(0.5)  # let heartbeats pass
    cluster.hosts[1].cut()
    began = time.monotonic()
    with pytest.raises(phalanx.AgentLost, match="lost the agent on box2"):
        app.result(30)
    assert time.monotonic() - began < 10
    assert not cluster.hosts[0].processes()
    wait_until(lambda: not cluster.hosts[1].processes(), timeout=20)


def test_a_short_cut_of_the_network_ends_nothing(launcher, cluster):
    """Shorter than host_timeout."""

    def work():
        time.sleep(3)
        return socket.gethostname()

    app = launcher(host_timeout=10).start(work)
    wait_until(lambda: cluster.hosts[1].pids("rank 1"))
    cluster.hosts[1].cut()
    time.sleep(1)
    cluster.hosts[1].mend()
    assert list(app.result(40)) == ["box1", "box2"]


def test_hosts_that_cannot_be_used_are_all_named(launcher, cluster, tmp_path):
    """Each with its reason, in one error, within ten seconds."""
    wrong = tmp_path / "wrong"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", wrong], check=True)
    config = tmp_path / "config"
    unreachable = f"{cluster.network}.77"
    config.write_text(
        f"Host refused\n  HostName {cluster.hosts[0].address}\n  Port 2\n"
        f"Host wrongkey\n  HostName {cluster.hosts[0].address}\n  IdentityFile {wrong}\n"
        "  IdentitiesOnly yes\n  User root\n"
        f"  UserKnownHostsFile {cluster.directory / 'known_hosts'}\n"
        f"Host unknownkey\n  HostName {cluster.hosts[0].address}\n"
        f"  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n"
        f"Host gone\n  HostName {unreachable}\n"
        + cluster.ssh_config.read_text().replace("Host *", "Host * !wrongkey")
    )
    names = ["box1", "refused", "wrongkey", "unknownkey", "gone", "nosuchname"]
    for workers in (1, "auto"):
        began = time.monotonic()
        with pytest.raises(phalanx.StartFailed) as caught:
            phalanx.launch(
                sleep, hostnames=names, workers_per_host=workers, ssh_config_file=str(config)
            )
        assert time.monotonic() - began < 14  # ten seconds, on a machine with other things to do
        text = str(caught.value)
        assert "refused: ssh: connect to host" in text
        assert "Connection refused" in text
        assert "wrongkey: " in text
        assert "Permission denied" in text
        assert "never asks for passwords" in text
        assert "unknownkey: " in text
        assert "Host key verification failed" in text
        assert "No route to host" in text
        assert "nosuchname: ssh: Could not resolve hostname" in text
        assert "box1:" not in text


def test_a_host_that_answers_nothing_is_an_error_within_ten_seconds(launcher, cluster):
    """Packets are dropped: ssh says so."""
    cluster.hosts[1].cut()
    began = time.monotonic()
    with pytest.raises(phalanx.StartFailed, match=r"agent on box2: .*(timed out|No route to host)"):
        launcher().run(print)
    assert time.monotonic() - began < 14


def test_a_host_without_python_is_an_error(launcher):
    """It says what to do."""
    with pytest.raises(phalanx.StartFailed, match=r"box1: no /no/such/python found\. Set"):
        launcher(1, python="/no/such/python").run(print)


def _other_python():
    candidates = [shutil.which("pypy3"), *(shutil.which(f"python3.{n}") for n in range(6, 16))]
    for path in filter(None, candidates):
        asked = subprocess.run(
            [path, "-c", "import sys; print(sys.version_info[:2] != %r)" % (sys.version_info[:2],)],
            capture_output=True,
            text=True,
        )
        # The host has its own /root: what is installed below it is not there.
        if asked.stdout.strip() == "True" and os.path.realpath(path).startswith("/usr"):
            return path
    return None


def test_another_version_of_python_is_an_error_that_names_both(launcher):
    """Code cannot be carried between them."""
    other = _other_python()
    if other is None:
        pytest.skip("no other Python in /usr; 'make test SYSTEM=1' installs pypy3")
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(
        phalanx.StartFailed, match=rf"its Python is 3\.\d+\.\d+ \(.*launcher's is {ours}"
    ):
        launcher(1, python=other).run(print)


def test_a_full_disk_is_an_error_with_the_reason(launcher, cluster):
    """Wherever it was noticed."""
    host = cluster.hosts[0]
    host.enter("sh", "-c", "rm -rf /root/.cache /tmp/phalanx*")
    host.enter("mkdir", "-p", "/root/.cache")
    for place in ("/root/.cache", "/tmp"):
        host.enter("mount", "-t", "tmpfs", "-o", "size=64k", "full", place)
    try:
        with pytest.raises(phalanx.StartFailed, match="No space left on device"):
            launcher(1).run(print)
    finally:
        for place in ("/root/.cache", "/tmp"):
            host.enter("umount", place)


def test_a_full_disk_is_noticed_while_the_project_is_written(launcher, cluster):
    """Not a worker that finds half of it."""
    host = cluster.hosts[0]
    assert launcher(1).run(os.getpid)
    with open("large.bin", "wb") as file:
        file.write(os.urandom(40 << 20))
    size = "32m"
    host.enter("sh", "-c", "cp -r /root/.cache /root/keep")
    host.enter("mount", "-t", "tmpfs", "-o", f"size={size}", "full", "/root/.cache")
    try:
        host.enter("sh", "-c", "cp -r /root/keep/. /root/.cache/")
        with pytest.raises(phalanx.LaunchError, match="No space left on device"):
            launcher(1).run(print)
    finally:
        host.enter("umount", "/root/.cache")
        host.enter("rm", "-r", "/root/keep")


def test_a_slow_link_is_waited_for(launcher, cluster):
    """Bytes are a sign of life, however few."""
    cluster.hosts[1].slow_down("2mbit")
    with open("data.bin", "wb") as file:
        file.write(os.urandom(600_000))
    result = launcher(host_timeout=4).run(os.path.getsize, args=("data.bin",))
    assert list(result) == [600_000] * 2


def test_an_sshd_that_is_just_starting_is_tried_again(launcher, cluster):
    """A refusal that passes is none."""
    host = cluster.hosts[1]
    block = [
        "iptables",
        "INPUT",
        "-p",
        "tcp",
        "--dport",
        "22",
        "-j",
        "REJECT",
        "--reject-with",
        "tcp-reset",
    ]
    host.enter(block[0], "-I", *block[1:])
    app = launcher().start(socket.gethostname)
    time.sleep(1)
    host.enter(block[0], "-D", *block[1:])
    assert list(app.result(30)) == ["box1", "box2"]


def test_logins_that_sshd_turns_away_when_there_are_many_are_tried_again(cluster, launcher):
    """MaxStartups drops connections at random."""
    cluster.hosts[3].reboot("MaxStartups 2:50:10\n")
    names = ["box4"] * 12
    assert len(launcher(hostnames=names).run(os.getpid)) == 12
    cluster.hosts[3].reboot()


def test_communication_errors_yield_to_the_host_that_caused_them(launcher, cluster):
    """All others see their connections break when a host is lost."""

    def train():
        import torch
        import torch.distributed as dist

        while True:
            dist.all_reduce(torch.ones(1000))
            time.sleep(0.01)

    app = launcher(3).start(train)
    wait_until(lambda: "group formed" in app.status().phases or cluster.hosts[1].pids("rank 1"), 30)
    time.sleep(2.0)
    cluster.hosts[1].kill()
    with pytest.raises(phalanx.AgentLost, match="lost the agent on box2"):
        app.result(60)


def test_torch_that_is_missing_on_a_host_is_the_workers_error(launcher):
    """As the import says it."""
    bare = getattr(sys, "_base_executable", sys.executable)

    def f():
        import torch

        return torch.__version__

    with pytest.raises(ModuleNotFoundError, match="No module named 'torch'"):
        launcher(2, python=bare).run(f)
