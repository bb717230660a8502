"""Apps on the `ssh` scheduler: real hosts that share nothing, under a supervisor here."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from phalanx.runner import get_runner
from phalanx.schedulers import create_scheduler
from phalanx.specs import AppDef, AppState, RetryPolicy, Role
from phalanx.testing import SchedulerSuite
from tests.conftest import wait_until
from tests.process.terminal import phalanx as at_terminal


class TestSsh(SchedulerSuite):
    """The suite, on two hosts."""

    start_skew = 2.0

    @pytest.fixture(autouse=True)
    def hosts(self, cluster):
        self._cluster = cluster

    def create_scheduler(self, session_name):
        return create_scheduler("ssh", session_name)

    def scheduler_options(self):
        config = str(self._cluster.ssh_config)
        return {"hosts": self._cluster.names[:2], "ssh_config_file": config, "stop_grace": 2}


@pytest.fixture
def runner():
    with get_runner() as made:
        yield made
        for app in made.list("ssh"):
            made.delete(app.app_handle)


@pytest.fixture
def cfg(cluster):
    config = str(cluster.ssh_config)
    return {"hosts": cluster.names[:2], "ssh_config_file": config, "stop_grace": 2.0}


def shell(command, **fields):
    return AppDef("job", [Role("role", entrypoint="sh", args=["-c", command], **fields)])


def test_the_project_is_there_and_python_is_the_hosts_own(runner, cfg, tmp_path):
    """A script of the current directory runs on hosts that have nothing of ours."""
    (tmp_path / "hello.py").write_text(
        "import socket, sys, helper\nprint(socket.gethostname(), helper.NAME, sys.argv[1:])\n"
    )
    (tmp_path / "helper.py").write_text("NAME = 'helped'\n")
    args = ["--num_replicas", "2", "hello.py", "aptg"]
    handle = runner.run_component("utils.python", args, "ssh", cfg)
    assert handle.startswith("ssh://phalanx/")
    status = runner.wait(handle)
    assert status.state is AppState.SUCCEEDED, (status, list(runner.log_lines(handle)))
    assert list(runner.log_lines(handle, replica=0)) == ["box1 helped ['aptg']"]
    assert list(runner.log_lines(handle, replica=1)) == ["box2 helped ['aptg']"]


def test_a_script_of_a_home_directory_is_there_with_what_it_imports(
    runner, cfg, tmp_path, monkeypatch
):
    """And nothing else of it is."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    (home / "own").mkdir()
    (home / "own" / "__init__.py").write_text("NAME = 'mine'\n")
    (home / "rd.py").write_text(
        "import os\ndef main():\n    import own\n    print(own.NAME, sorted(os.listdir()))\nmain()\n"
    )
    (home / "secret").write_text("")
    handle = runner.run_component("utils.python", ["rd.py"], "ssh", cfg)
    runner.wait(handle)
    assert list(runner.log_lines(handle)) == ["mine ['own', 'rd.py']"]
    args = ["-j", "2x1", "--script", "rd.py"]
    handle = runner.run_component("dist.ddp", args, "ssh", cfg)
    runner.wait(handle)
    assert list(runner.log_lines(handle, replica=1)) == ["[0]:mine ['own', 'rd.py']"]


def test_what_the_supervisor_is_warned_of_is_told(cfg, tmp_path):
    """Patterns of `fetch` that match nothing, and files that stay on hosts; once the app is over."""
    (tmp_path / "save.py").write_text("open('left.txt', 'w').write('x')\n")
    pairs = f"hosts={cfg['hosts'][0]},ssh_config_file={cfg['ssh_config_file']},fetch=chkpt/*"
    words = ["run", "--wait", "-s", "ssh", "-cfg", pairs, "utils.python", "save.py"]
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done
    handle = done.stdout.strip()
    assert "warning: fetch: workers wrote no file that matches 'chkpt/*'" in done.stderr
    assert "workers wrote 1 file" in done.stderr
    shown = subprocess.run(
        [sys.executable, "-m", "phalanx", "status", handle], capture_output=True, text=True
    )
    assert "warning: box1: workers wrote 1 file" in shown.stdout
    with get_runner() as runner:
        status = runner.status(handle)
        assert any("chkpt/*" in text for text in status.warnings)
        runner.delete(handle)


def test_the_first_host_is_found_by_the_others(runner, cfg, tmp_path):
    """Under the address at which they reach it."""
    (tmp_path / "meet.py").write_text(
        textwrap.dedent("""
        import os, socket, time
        first = os.environ["PHALANX_RANK0_HOST"]
        if os.environ["PHALANX_REPLICA_ID"] == "0":
            server = socket.create_server(("", 29511))
            print(server.accept()[0].recv(9).decode())
        else:
            for _ in range(100):
                try:
                    socket.create_connection((first, 29511)).sendall(b"found you")
                    break
                except OSError:
                    time.sleep(0.1)
        """)
    )
    args = ["--num_replicas", "2", "meet.py"]
    handle = runner.run_component("utils.python", args, "ssh", cfg)
    assert runner.wait(handle).state is AppState.SUCCEEDED
    assert list(runner.log_lines(handle, replica=0)) == ["found you"]


def test_ddp_on_two_hosts(runner, cfg, tmp_path):
    """torchrun's agents meet at the first host."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.barrier()
        dist.destroy_process_group()
        print("sum", total.item())
        """)
    )
    args = ["-j", "2x1", "--script", "train.py"]
    handle = runner.run_component("dist.ddp", args, "ssh", cfg)
    status = runner.wait(handle)
    lines = [line for i in (0, 1) for line in runner.log_lines(handle, replica=i)]
    assert status.state is AppState.SUCCEEDED, "\n".join(lines)
    assert sum("sum 2.0" in line for line in lines) == 2


@pytest.mark.parametrize("what", ["DROP", "REJECT --reject-with icmp-host-prohibited"])
def test_hosts_that_do_not_reach_the_first_are_told_of_before_they_wait(
    runner, cfg, cluster, tmp_path, what
):
    """A firewall is named with the next command, and nobody waits for a rendezvous."""
    (tmp_path / "train.py").write_text("")
    rule = ["INPUT", "-s", cluster.hosts[1].address, "-j", *what.split()]
    cluster.hosts[0].enter("iptables", "-I", *rule)
    try:
        handle = runner.run_component("dist.ddp", ["-j", "2x1", "--script", "train.py"], "ssh", cfg)
        status = runner.wait(handle)
    finally:
        cluster.hosts[0].enter("iptables", "-D", *rule)
    assert status.state is AppState.FAILED
    assert f"box2 cannot reach box1 at {cluster.hosts[0].address}: " in status.message
    assert "phalanx hosts check box1 box2" in status.message


@pytest.mark.parametrize("hosts", ["2:3", "3"])
def test_a_lost_host_is_done_without_if_enough_are_left(runner, cfg, cluster, tmp_path, hosts):
    """The first one, where the others meet; without MIN the app has failed."""
    (tmp_path / "train.py").write_text(
        "import os, time\nprint('world', os.environ['WORLD_SIZE'], flush=True)\n"
        "time.sleep(600 if os.environ['WORLD_SIZE'] == '3' else 0)\n"
    )
    cfg["hosts"] = cluster.names[:3]
    args = ["-j", f"{hosts}x1", "--script", "train.py"]
    handle = runner.run_component("dist.ddp", args, "ssh", cfg)

    def lines():
        return list(runner.log_lines(handle, replica=1))

    wait_until(lambda: any("world 3" in line for line in lines()))
    cluster.hosts[0].kill()
    status = runner.wait(handle)
    lost, *left = status.roles[0].replicas
    assert lost.state is AppState.FAILED
    assert cluster.names[0] in lost.error
    if hosts == "2:3":
        assert status.state is AppState.SUCCEEDED, lines()
        assert [replica.state for replica in left] == [AppState.SUCCEEDED] * 2
        assert any("world 2" in line for line in lines())
    else:
        assert status.state is AppState.FAILED


def test_a_failure_names_host_and_error_and_ends_the_others(runner, cfg, cluster):
    """At once, everywhere."""
    command = (
        'if [ ${replica_id} = 1 ]; then python3 -c "raise KeyError(7)"; else exec sleep 600; fi'
    )
    handle = runner.run(shell(command, num_replicas=2), "ssh", cfg)
    status = runner.wait(handle)
    assert status.state is AppState.FAILED
    first, second = status.roles[0].replicas
    assert first.state is AppState.CANCELLED
    assert (second.hostname, second.exit_code, second.error) == ("box2", 1, "KeyError: 7")
    assert "role/1 exited with code 1: KeyError: 7" in status.message


@pytest.mark.parametrize(
    ("by_itself", "state"), [(True, AppState.FAILED), (False, AppState.CANCELLED)]
)
def test_what_ends_as_it_is_stopped_is_what_it_was(runner, cfg, cluster, by_itself, state):
    """Of a signal that comes while a program ends it knows nothing: its code is its own."""
    deafly = (
        "import signal, sys, time; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); "
        "print('up', flush=True)\nwhile not signal.sigpending(): time.sleep(0.01)\nsys.exit(9)"
    )
    other = (
        f'exec python3 -c "{deafly}"'
        if by_itself
        else ("trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done")
    )
    wait = "while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 3"
    command = f"if [ ${{replica_id}} = 0 ]; then {wait}; fi\n{other}"
    handle = runner.run(shell(command, num_replicas=2), "ssh", cfg)
    wait_until(lambda: list(runner.log_lines(handle, replica=1)) == ["up"])
    cluster.hosts[0].write("/tmp/go", "")
    status = runner.wait(handle)
    first, second = status.roles[0].replicas
    assert (first.state, first.exit_code) == (AppState.FAILED, 3)
    assert (second.state, second.exit_code, second.signal) == (state, 9, None)
    assert status.message.startswith("role/0 exited with code 3")
    cluster.hosts[0].enter("rm", "/tmp/go")


def test_hosts_that_cannot_be_used_are_all_named_before_anything_starts(runner, cfg):
    """And nothing was run on the others."""
    cfg["hosts"] = [*cfg["hosts"], "nosuchbox", "norsuchbox"]
    handle = runner.run(shell("echo started", num_replicas=4), "ssh", cfg)
    status = runner.wait(handle)
    assert status.state is AppState.FAILED
    assert "nosuchbox" in status.message
    assert "norsuchbox" in status.message
    assert list(runner.log_lines(handle)) == []


def test_a_killed_replica_is_started_again_where_it_was(runner, cfg, cluster):
    """If it may be."""
    command = "echo up; test -e /tmp/again && exit 0; sleep 600"
    role = {"max_retries": 1, "retry_policy": RetryPolicy.REPLICA}
    cfg["hosts"] = cluster.names[:1]
    handle = runner.run(shell(command, **role), "ssh", cfg)
    wait_until(lambda: list(runner.log_lines(handle)) == ["up"])
    host = cluster.hosts[0]
    host.write("/tmp/again", "")
    host.enter("pkill", "-9", "-f", "sleep 600")
    status = runner.wait(handle)
    assert status.state is AppState.SUCCEEDED, status
    assert status.num_restarts == 1
    assert list(runner.log_lines(handle)) == ["up", "up"]
    host.enter("rm", "/tmp/again")


def test_cancelling_reaches_the_program_with_its_grace(runner, cfg, cluster):
    """SIGTERM first, and what it does about it is heard."""
    command = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    handle = runner.run(shell(command, num_replicas=2), "ssh", cfg)
    wait_until(lambda: all(list(runner.log_lines(handle, replica=i)) == ["up"] for i in (0, 1)))
    runner.cancel(handle)
    assert runner.status(handle).state is AppState.CANCELLED
    assert list(runner.log_lines(handle, replica=1, streams="stdout")) == ["up", "bye"]


def test_the_command_may_be_killed_and_the_app_goes_on(runner, cfg, cluster):
    """Found, followed and ended from another process."""
    options = f"hosts={cluster.names[0]},ssh_config_file={cluster.ssh_config}"
    command = [sys.executable, "-m", "phalanx", "run", "-s", "ssh", "-cfg", options, "--log"]
    process = subprocess.Popen(
        [*command, "utils.sh", "echo up; sleep 600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    handle = process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: list(runner.log_lines(handle)) == ["up"])
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "cancel", handle], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "CANCELLED" in done.stdout


def test_a_killed_supervisor_leaves_nothing_on_the_hosts(runner, cfg, cluster):
    """The app is FAILED, and says why."""
    handle = runner.run(shell("echo up; sleep 600", num_replicas=2), "ssh", cfg)
    wait_until(lambda: list(runner.log_lines(handle, replica=1)) == ["up"])
    from phalanx._registry import recorded_app

    pid = recorded_app.get(handle.rpartition("/")[2]).facts["owner"]["pid"]
    os.kill(pid, signal.SIGKILL)
    status = runner.wait(handle)
    assert status.state is AppState.FAILED
    for host in cluster.hosts[:2]:
        wait_until(lambda host=host: not host.pids("sleep 600"))


def test_a_progress_bar_on_another_host_is_followed(runner, cfg, cluster):
    """On a terminal, before its line has ended."""
    enough = f"/root/enough-{os.getpid()}"
    wait = f"until [ -e {enough} ]; do sleep 0.1; done; rm {enough}"
    command = f"{{ printf '\\r5%%'; {wait}; printf '\\r99%%\\n'; }} >&2"
    handle = runner.run(shell(command), "ssh", cfg)
    terminal = at_terminal("log", "--follow", handle)
    terminal.wait_for("role/0 5%", timeout=60)
    cluster.hosts[0].enter("touch", enough)
    assert terminal.finish() == 0
    assert terminal.lines == ["role/0 99%"]
