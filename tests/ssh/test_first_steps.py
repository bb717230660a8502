"""The first steps over several hosts, as a new user takes them: hosts that share nothing.

Nothing is said of interfaces, addresses or ports; commands are those of the README.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from phalanx._system import network
from tests.conftest import wait_until
from tests.ssh.cluster import PATH

ROOT = Path(__file__).parents[2]

SUM = """
import os, socket, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.barrier()
dist.destroy_process_group()
print("sum", int(total), os.environ["GLOO_SOCKET_IFNAME"], socket.gethostname(), flush=True)
"""


@pytest.fixture
def typed(cluster, tmp_path, monkeypatch):
    """Type a command in an empty directory; the user's ssh knows the hosts as gpu-1, gpu-2, …"""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    config = re.sub(r"Host box(\d)", r"Host gpu-\1", cluster.ssh_config.read_text())
    place = tmp_path / "home"
    place.mkdir()
    (place / "ssh_config").write_text(config)
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(SUM)
    (work / ".phalanxconfig").write_text(
        f'[scheduler.ssh]\nssh_config_file = "{place / "ssh_config"}"\nstop_grace = 2\n'
    )
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def start(command):
        return subprocess.Popen(
            ["bash", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=work,
            env=environ,
        )

    def run(command, timeout=120):
        process = start(command)
        out, err = process.communicate(timeout=timeout)
        assert process.returncode == 0, (command, out, err)
        return out + err

    run.start, run.directory, run.ssh_config = start, work, place / "ssh_config"
    return run


def sums(text):
    return sorted(re.findall(r"sum (\d+) (\S+) (\S+)", text))


def test_the_readme_s_command_trains_on_two_hosts(typed, cluster):
    """Its script and its command, as they are written there; nothing is left on the hosts."""
    text = (ROOT / "README.md").read_text()
    command = re.search(r"^phalanx run .*dist\.ddp .*--script ddp\.py$", text, re.M)[0]
    (script,) = re.findall(r"Save as `ddp\.py`:\n\n```py\n(.*?)```", text, re.S)
    (typed.directory / "ddp.py").write_text(script)
    shown = typed(command)
    assert "hosts=gpu-1,gpu-2" in command
    assert shown.count("the sum is 8") == 1
    for host in cluster.hosts[:2]:
        assert not host.enter("find", "/tmp", "-name", "phalanx_logs_*")


def test_two_hosts_use_the_interface_that_leads_to_each_other(typed):
    """Not loopback."""
    command = "phalanx run --wait --log -s ssh -cfg hosts=gpu-1,gpu-2 dist.ddp -j 2x1 train.py"
    assert sums(typed(command)) == [("2", "eth0", "box1"), ("2", "eth0", "box2")]


@pytest.mark.parametrize("component", ["dist.ddp", "dist.spmd"])
def test_three_hosts_with_two_workers_each(typed, component):
    """Both components."""
    shown = typed(
        f"phalanx run --wait --log -s ssh -cfg hosts=gpu-1,gpu-2,gpu-3 {component} -j 3x2 "
        "--script train.py"
    )
    assert [n for n, *_ in sums(shown)] == ["6"] * 6
    assert {i for _, i, _ in sums(shown)} == {"eth0"}
    assert {host for *_, host in sums(shown)} == {"box1", "box2", "box3"}


def test_two_apps_at_once_on_the_same_hosts(typed):
    """Nobody has to choose ports."""
    command = "phalanx run --wait --log -s ssh -cfg hosts=gpu-1,gpu-2 dist.ddp -j 2x1 train.py"
    (typed.directory / "train.py").write_text(SUM + "import time; time.sleep(3)\n")
    both = [typed.start(command) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, (out, err)
        assert [n for n, *_ in sums(out + err)] == ["2", "2"]


def test_this_machine_beside_another(typed):
    """`localhost` is met at the address that leads to the other."""
    shown = typed(
        "phalanx run --wait --log -s ssh -cfg hosts=localhost,gpu-2 dist.ddp -j 2x1 train.py"
    )
    found = sums(shown)
    assert [n for n, *_ in found] == ["2", "2"]
    assert {name for _, name, _ in found} == {"eth0", _here(typed)}


def _here(typed):
    """The interface of this machine that leads to the hosts."""
    config = (typed.directory.parent / "home" / "ssh_config").read_text()
    return network.interface_towards(re.search(r"HostName (\S+)", config)[1])


@pytest.fixture
def torchrun(cluster, tmp_path):
    """Type `phalanx torchrun` on each of the first so many hosts, and wait for all of them."""

    def run(count, how):
        pack = subprocess.run(
            [
                "tar",
                "-cC",
                Path(phalanx.__file__).parent.parent,
                "--exclude=__pycache__",
                "phalanx",
            ],
            capture_output=True,
            check=True,
        ).stdout
        running = []
        for rank, host in enumerate(cluster.hosts[:count]):
            enter = ["nsenter", "-t", str(host.pid), "-a", "--", "env", "-i", "HOME=/root"]
            enter += [f"PATH={PATH}", "PYTHONPATH=/root/src"]
            unpack = [*enter, "sh", "-c", "mkdir -p /root/src; tar -xC /root/src"]
            subprocess.run(unpack, input=pack, check=True)
            host.write("/root/train.py", SUM)
            flags = f"--nnodes {count} --nproc-per-node 1 {how(rank)}"
            command = f"-m phalanx torchrun {flags} /root/train.py"
            with open(tmp_path / f"{rank}.log", "wb") as log:
                process = subprocess.Popen(
                    [*enter, sys.executable, *command.split()], stdout=log, stderr=subprocess.STDOUT
                )
            running.append(process)
        codes = [process.wait(120) for process in running]
        shown = "".join((tmp_path / f"{rank}.log").read_text() for rank in range(count))
        assert codes == [0] * count, shown
        return sums(shown)

    return run


def test_torchrun_is_typed_on_each_of_two_hosts(cluster, torchrun):
    """With the first one's address."""
    first = cluster.hosts[0].address
    found = torchrun(2, lambda r: f"--node-rank {r} --master-addr {first} --master-port 29533")
    assert found == [("2", "eth0", "box1"), ("2", "eth0", "box2")]


def test_torchrun_is_typed_on_each_of_three_hosts(cluster, torchrun):
    """Without an order of hosts."""
    endpoint = f"{cluster.hosts[0].address}:29534"
    found = torchrun(3, lambda _: f"--rdzv-backend c10d --rdzv-id a --rdzv-endpoint {endpoint}")
    assert found == [("3", "eth0", f"box{i}") for i in (1, 2, 3)]


@pytest.fixture
def second_network(cluster):
    """Another interface on two hosts, called otherwise on each, with addresses of version 6."""
    links = []
    for number, host in enumerate(cluster.hosts[:2], 1):
        name = f"fast{number}"
        link = f"s{host.link}"[:15]
        for command in (
            f"ip link add {link} type veth peer name {name} netns {host.space}",
            f"ip link set {link} master {cluster.bridge} up",
            f"ip -n {host.space} addr add fd77::{number}/64 dev {name} nodad",
            f"ip -n {host.space} link set {name} up",
        ):
            subprocess.run(command.split(), check=True)
        links.append(link)
    yield ["fd77::1", "fd77::2"]
    for link in links:
        subprocess.run(["ip", "link", "del", link], check=True)


def test_each_host_uses_its_own_interface_on_the_network_where_they_meet(torchrun, second_network):
    """Of several, by the way to the endpoint; names may differ, addresses may be of version 6."""
    endpoint = f"[{second_network[0]}]:29535"
    found = torchrun(2, lambda _: f"--rdzv-backend c10d --rdzv-id b --rdzv-endpoint {endpoint}")
    assert found == [("2", "fast1", "box1"), ("2", "fast2", "box2")]


def test_a_host_s_own_address_names_its_interface(cluster, torchrun, second_network):
    """`--local-addr`: hosts meet at one address, and the workers use another network."""
    endpoint = f"{cluster.hosts[0].address}:29536"
    own = second_network
    found = torchrun(
        2,
        lambda r: (
            f"--rdzv-backend c10d --rdzv-id c --rdzv-endpoint {endpoint} --local-addr {own[r]}"
        ),
    )
    assert found == [("2", "fast1", "box1"), ("2", "fast2", "box2")]


PRINT = "import json, os; print(json.dumps(dict(os.environ)), flush=True)\n"


def test_a_replica_sees_nothing_of_the_launch_that_it_is_carried_by(typed, monkeypatch):
    """The same variables as a replica on this machine, and what the user has set."""
    (typed.directory / "show.py").write_text(PRINT)
    seen = {}
    for scheduler in ("local_cwd", "ssh -cfg hosts=gpu-1,gpu-2"):
        out = typed(f"phalanx run --wait -s {scheduler} utils.python --num_replicas 2 show.py")
        handle = out.split()[0]
        line = typed(f"phalanx log {handle.rpartition('/')[2]}/python/0").partition("{")[2]
        seen[scheduler] = json.loads("{" + line.splitlines()[0])
    local, remote = seen.values()
    ours = ("PHALANX_", "TORCHELASTIC_", "MASTER_", "GLOO_", "NCCL_", "JAX_", "OMP_", "TORCH_")
    ranks = ("RANK", "WORLD_SIZE")
    names = lambda environ: (
        {k for k in environ if k.startswith(ours) or k.endswith(ranks)}
        - {"PHALANX_TESTS", "PHALANX_ADDRESS"}
    )
    assert names(remote) - {"PHALANX_HOST"} <= names(local)  # what the user calls it
    assert {"PHALANX_REPLICA_ID", "PHALANX_RANK0_HOST", "PHALANX_RANK0_PORT"} <= names(remote)


def test_what_the_user_set_is_kept(typed):
    """In the command's environment and in the role's."""
    (typed.directory / "show.py").write_text(
        "import os; print('IF', os.environ.get('GLOO_SOCKET_IFNAME'), "
        "os.environ.get('NCCL_SOCKET_IFNAME'), flush=True)\n"
    )
    command = "-s ssh -cfg hosts=gpu-1,gpu-2 dist.ddp -j 2x1 --env NCCL_SOCKET_IFNAME=ib7 show.py"
    shown = typed(f"GLOO_SOCKET_IFNAME=eth+ phalanx run --wait --log {command}")
    assert shown.count("IF eth+ ib7") == 2


def test_torch_s_own_torchrun_in_a_replica(typed):
    """It is not told by us which interface to use."""
    (typed.directory / "show.py").write_text(
        "import os; print('IF', os.environ.get('GLOO_SOCKET_IFNAME'), flush=True)\n"
    )
    # Without an address it would look for a name that these hosts do not have.
    torchrun = "torch.distributed.run -- --standalone --local-addr 127.0.0.1 show.py"
    shown = typed(f"phalanx run --wait --log -s ssh -cfg hosts=gpu-1 utils.python -m {torchrun}")
    assert "IF None" in shown


def test_a_launch_inside_a_worker_to_other_hosts(remote_script):
    """Workers of this machine alone use loopback; what they launch elsewhere does not."""
    code = """
def inner():
    import torch, torch.distributed as dist
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total), os.environ["GLOO_SOCKET_IFNAME"]

def outer():
    return os.environ["GLOO_SOCKET_IFNAME"], list(launcher.run(inner))

if __name__ == "__main__":
    print(phalanx.launch(outer, workers_per_host=2).rank(0))
"""
    done = remote_script(code, timeout=120)
    assert "('lo', [(2, 'eth0'), (2, 'eth0')])" in done.stdout, done.stderr


@pytest.fixture
def bare(cluster):
    """A virtual environment on two hosts with nothing in it; its interpreter."""
    for host in cluster.hosts[:2]:
        host.enter(sys.executable, "-m", "venv", "--without-pip", "/root/bare")
    return "/root/bare/bin/python"


USES_TORCH = """
import torch

def f():
    return float(torch.ones(1))
"""

USES_TORCH_LATER = """
def f():
    import torch
    return float(torch.ones(1))
"""


def failed(typed, command):
    """What a command says that fails."""
    process = typed.start(command)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, (command, out, err)
    return out + err


@pytest.mark.parametrize("code", [USES_TORCH, USES_TORCH_LATER], ids=["file", "function"])
def test_a_host_without_torch_is_named_with_its_interpreter(typed, bare, code):
    """No traceback of it: there is nothing to look for in the code."""
    (typed.directory / "job.py").write_text(code)
    flags = f"--python /root/bare --ssh-config-file {typed.ssh_config}"
    shown = failed(typed, f"phalanx launch job.py:f --hostnames gpu-1 gpu-2 {flags}")
    assert re.search(
        rf"^ModuleNotFoundError: No module named 'torch' on gpu-[12] \({bare}\)\. .*--python",
        shown,
        re.M,
    ), shown
    assert "Traceback" not in shown
    assert "phalanx/torch" not in shown


def test_another_package_that_a_host_does_not_have(typed, bare):
    """The same sentence, and the line that wants it."""
    (typed.directory / "job.py").write_text("def f():\n    import numpy\n")
    flags = f"--python /root/bare --ssh-config-file {typed.ssh_config}"
    shown = failed(typed, f"phalanx launch job.py:f --hostnames gpu-1 {flags}")
    assert f"No module named 'numpy' on gpu-1 ({bare})" in shown
    assert f'File "{typed.directory}/job.py", line 2, in f' in shown


@pytest.mark.parametrize("component", ["dist.ddp -j 2x1", "utils.python --num_replicas 2"])
def test_a_replica_s_host_without_torch_is_named_with_its_interpreter(typed, bare, component):
    """Where the command says how it ended."""
    cfg = "-cfg hosts=gpu-1,gpu-2,python=/root/bare"
    shown = failed(typed, f"phalanx run --wait -s ssh {cfg} {component} --script train.py")
    assert re.search(
        r"(train|python)/[01] exited with code 1: ModuleNotFoundError: No module named 'torch' on "
        rf"gpu-[12] \({bare}\)\. .* -cfg python=",
        shown,
    ), shown
    assert "Traceback" not in shown


def test_the_check_warns_of_hosts_without_torch(typed, bare):
    """They are fit for what does without: it is no failure."""
    check = f"phalanx hosts check gpu-1 gpu-2 --ssh-config-file {typed.ssh_config}"
    shown = typed(f"{check} --python /root/bare")
    for name in ("gpu-1", "gpu-2"):
        assert f"warning: {name} has no torch for {bare}" in shown
    assert "no torch" not in typed(check)


def test_a_wrong_host_name_leaves_no_log_to_be_sent_to(typed):
    """What there is to know is said by the command, and by whoever looks for a log."""
    for hosts, j in (("gpu-1,gpu-9", "2x1"), ("gpu-9", "1x1")):
        command = f"phalanx run --wait -s ssh -cfg hosts={hosts} dist.ddp -j {j} train.py"
        shown = failed(typed, command)
        assert "Could not resolve hostname gpu-9" in shown
        assert "phalanx status" in shown
        assert "phalanx log" not in shown
        assert "Could not resolve hostname gpu-9" in typed("phalanx log")


def test_replicas_that_are_not_as_many_as_the_hosts(typed):
    """Said before it begins: it may be meant, and may be a slip."""
    run = "phalanx run --wait -s ssh -cfg hosts=gpu-1,gpu-2"
    shown = typed(f"{run} utils.echo --msg hi --num_replicas 3")
    assert "3 replicas on 2 hosts: gpu-1 runs 2" in shown
    assert "gpu-2 is not used: 1 replica for 2 hosts" in typed(f"{run} utils.echo --msg hi")
    shown = typed(f"{run} utils.echo --msg hi --num_replicas 2")
    assert "replicas on" not in shown
    assert "not used" not in shown
    with open(typed.directory / ".phalanxconfig", "a") as file:
        file.write('hosts = ["gpu-1", "gpu-2"]\n')
    assert "not used" not in typed("phalanx run --wait -s ssh utils.echo --msg hi")


def test_tracebacks_name_the_user_s_own_files(typed):
    """Not the copies that the hosts have; what the program prints of paths is its own affair."""
    (typed.directory / "package").mkdir()
    (typed.directory / "package" / "__init__.py").write_text("def f():\n    raise ValueError(1)\n")
    (typed.directory / "fails.py").write_text(
        "import os, package\nprint('in', os.getcwd(), flush=True)\npackage.f()\n"
    )
    for component in ("utils.python", "dist.ddp -j 1x1"):
        command = f"phalanx run --wait --log -s ssh -cfg hosts=gpu-1 {component} fails.py"
        shown = failed(typed, command)
        assert f'File "{typed.directory}/fails.py", line 3' in shown, shown
        assert f'File "{typed.directory}/package/__init__.py", line 2' in shown
        assert not re.search(r'File "[^"]*/trees/', shown)
        assert re.search(r"in /\S*/trees/", shown)
    assert f'File "{typed.directory}/fails.py", line 3' in typed("phalanx log")


TRAINING = """
import os, time

def train():
    open("/tmp/up", "w").close()
    for step in range(40):
        print("step", step, flush=True)
        time.sleep(0.1)

if __name__ == "__main__":
    train()
"""


@pytest.mark.parametrize("kind", ["launch", "run"])
def test_the_page_s_commands_survive_a_broken_connection(typed, cluster, kind):
    """As docs/hosts.md has them; all logins of the first host end while they run."""
    text = (ROOT / "docs" / "hosts.md").read_text()
    command = re.search(rf"^phalanx {kind} .*reconnect.timeout.*$", text, re.M)[0]
    (typed.directory / "train.py").write_text(TRAINING)
    if kind == "run":
        command = command.replace("phalanx run ", "phalanx run --wait --log ")
    else:
        command += f" --ssh-config-file {typed.ssh_config} --workers-per-host 1"
    process = typed.start(command)
    host = cluster.hosts[0]
    wait_until(lambda: host.enter("sh", "-c", "ls /tmp/up 2>/dev/null", check=False), 60)
    lines = host.enter("ps", "-eo", "pid=,args=", "-ww").splitlines()
    host.enter("kill", "-KILL", *(line.split()[0] for line in lines if "sshd: root@" in line))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, (out, err)
    assert "step 39" in out + err
    for host in cluster.hosts[:2]:
        host.enter("rm", "-f", "/tmp/up")
