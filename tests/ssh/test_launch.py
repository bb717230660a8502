"""The same call on other hosts: values, ranks, groups, names."""

import os
import socket
import sys
import time
from pathlib import Path

import pytest

import phalanx


def where():
    return socket.gethostname(), int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])


def test_a_function_runs_on_every_rank_of_every_host(launcher):
    """Nothing is installed there, nothing shared."""
    result = launcher(2, 2).run(where)
    assert list(result) == [("box1", 0, 0), ("box1", 1, 1), ("box2", 2, 0), ("box2", 3, 1)]
    assert result.index("box2", 1) == ("box2", 3, 1)
    assert result.results["box1"] == [("box1", 0, 0), ("box1", 1, 1)]


def test_hosts_without_any_package_of_ours_run_the_function(launcher):
    """A bare Python of the same version is enough."""
    bare = getattr(sys, "_base_executable", sys.executable)
    run = launcher(2, python=bare)
    first = run.run(lambda: (sys.executable, "msgpack" in sys.modules, socket.gethostname()))
    assert [value[2] for value in first] == ["box1", "box2"]


def test_workers_of_two_hosts_form_a_group(launcher):
    """At an address of the first host that the second reaches, by an interface of each.

    A main for torchrun forms it itself.
    """

    def reduce():
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(total)
        return total.item(), os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"]

    def main():
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        return total.item()

    with launcher(2, 2) as run:  # torch is loaded once on each
        values = list(run.run(reduce))
        assert {value[0] for value in values} == {6.0}
        assert len({value[1] for value in values}) == 1
        assert {value[2] for value in values} == {"eth0"}
        assert list(run.run(main)) == [4.0] * 4


def test_this_machine_and_another_host_form_a_group(cluster, launcher):
    """The first rank is here: at the address that leads to the other host."""

    def reduce():
        import torch
        import torch.distributed as dist

        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item(), os.environ["MASTER_ADDR"]

    own = f"{cluster.network}.254"
    for names in (["localhost", "box1"], ["box1", "localhost"]):
        values = list(launcher(hostnames=names).run(reduce))
        assert [value[0] for value in values] == [2.0, 2.0]
        assert values[0][1] == (own if names[0] == "localhost" else cluster.hosts[0].address)


def test_the_address_can_be_named(cluster, launcher):
    """By itself, or by the interface that has it."""

    def address():
        return os.environ["MASTER_ADDR"], os.environ.get("NCCL_SOCKET_IFNAME")

    first = cluster.hosts[0]
    first.enter("ip", "addr", "add", "10.99.0.1/32", "dev", "lo")
    try:
        assert set(launcher(address="10.99.0.1").run(address)) >= {("10.99.0.1", "lo")}
        assert set(launcher(interface="eth0").run(address)) == {(first.address, "eth0")}
    finally:
        first.enter("ip", "addr", "del", "10.99.0.1/32", "dev", "lo")


def test_an_address_that_others_do_not_reach_is_an_error_in_seconds(launcher):
    """Not a group that never forms."""

    def reduce():
        import torch.distributed as dist

        dist.barrier()

    began = time.monotonic()
    with pytest.raises(phalanx.StartFailed, match=r"box2 cannot reach box1 at 10\.99\.0\.2"):
        launcher(address="10.99.0.2").run(reduce)
    assert time.monotonic() - began < 30


def test_counts_may_differ_and_hosts_may_be_listed_twice(launcher):
    """Ranks are contiguous, in the order of the list."""
    result = launcher(hostnames=["box2", "box1", "box2"], workers=[1, 2, 1]).run(where)
    assert [value[:2] for value in result] == [("box2", 0), ("box1", 1), ("box1", 2), ("box2", 3)]
    assert len(result.results["box2"]) == 2
    with pytest.raises(KeyError, match="listed 2 times"):
        result.index("box2", 0)


def test_the_number_of_workers_may_depend_on_the_host(launcher):
    """It is asked for what it has."""
    assert len(launcher(2, "auto").run(where)) == 2
    assert len(launcher(2, "cpu").run(where)) == 2 * len(os.sched_getaffinity(0))
    assert len(launcher(2, [2, "auto"]).run(where)) == 3
    with pytest.raises(phalanx.ConfigError, match="no NVIDIA GPU is visible on box1"):
        launcher(2, "gpu").run(where)


def test_user_and_port_can_be_named(cluster, launcher):
    """As ssh users write them; the name is then the whole of it."""
    name = f"root@{cluster.hosts[0].address}:22"
    result = launcher(hostnames=[name, "box2"]).run(where)
    assert result.index(name, 0) == ("box1", 0, 0)


def test_hosts_need_not_know_each_others_names_nor_ours(cluster, launcher):
    """Nothing there resolves any name but localhost."""

    def resolve(names):
        found = []
        for name in names:
            try:
                found.append(socket.gethostbyname(name))
            except OSError:
                found.append(None)
        return found

    names = ["box1", "box2", "launcher"]
    assert list(launcher().run(resolve, {"names": names})) == [[None] * 3] * 2


def test_a_bastion_leads_to_hosts_that_reach_each_other(cluster, launcher, tmp_path):
    """By the user's own ProxyJump."""
    config = tmp_path / "config"
    text = cluster.ssh_config.read_text()
    config.write_text("Host box1 box2\n  ProxyJump box3\n" + text)
    # The jump is an ssh of its own, which reads the same file.
    run = phalanx.Launcher(["box1", "box2"], 1, ssh_config_file=str(config))

    def reduce():
        import torch
        import torch.distributed as dist

        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item(), os.environ["SSH_CONNECTION"].split()[0]

    values = list(run.run(reduce))
    assert values == [(2.0, cluster.hosts[2].address)] * 2


def test_an_existing_control_master_is_used(cluster, launcher, tmp_path):
    """As the user's configuration says; it stays when the launch has ended."""
    import subprocess

    config = tmp_path / "config"
    socket_path = tmp_path / "m"
    config.write_text(f"Host *\n  ControlPath {socket_path}\n" + cluster.ssh_config.read_text())
    ssh = ["ssh", "-F", str(config)]
    subprocess.run([*ssh, "-fNM", "box1"], check=True)
    try:
        run = phalanx.Launcher(["box1"], 1, ssh_config_file=str(config))
        began = time.monotonic()
        assert list(run.run(where)) == [("box1", 0, 0)]
        assert time.monotonic() - began < 10
        done = subprocess.run([*ssh, "-O", "check", "box1"], capture_output=True, text=True)
        assert "Master running" in done.stderr
    finally:
        subprocess.run([*ssh, "-O", "exit", "box1"], capture_output=True)


def test_a_launch_within_a_worker_is_on_its_own_host(launcher):
    """With the code that was sent there."""

    def outer():
        import phalanx

        return list(phalanx.launch(socket.gethostname, workers_per_host=2))

    assert list(launcher().run(outer)) == [["box1"] * 2, ["box2"] * 2]


def test_more_hosts_than_are_dialled_at_a_time(launcher):
    """The others wait for their turn."""
    names = ["box1", "box2", "box3", "box4"] * 2
    result = launcher(hostnames=names, parallel_logins=2).run(where)
    assert [value[0] for value in result] == names


def test_large_values_come_home_from_hosts(launcher):
    """Both ways, whole."""

    def double(data):
        return data * 2

    data = os.urandom(8 << 20)
    assert all(value == data * 2 for value in launcher().run(double, {"data": data}))


def test_classes_and_functions_of_a_script_are_carried(remote_script):
    """Of __main__, which no file on the hosts has."""
    done = remote_script("""
class Point:
    def __init__(self, x):
        self.x = x

def make():
    return Point(int(os.environ["RANK"]))

print([point.x for point in launcher.run(make)], type(launcher.run(make).rank(0)) is Point)
""")
    assert done.stdout.strip() == "[0, 1] True", done.stderr


def test_the_command_line_launches_on_hosts(cluster, tmp_path):
    """The same fields."""
    import subprocess

    Path("program.py").write_text(
        "import socket\n\ndef name(times: int):\n    return socket.gethostname() * times\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "phalanx",
            "launch",
            "program.py:name",
            "--hostnames",
            "box1",
            "box2",
        ]
        + [
            "--workers-per-host",
            "1",
            "--ssh-config-file",
            str(cluster.ssh_config),
            "--",
            "--times",
            "2",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == ["rank 0: 'box1box1'", "rank 1: 'box2box2'"], done.stderr
