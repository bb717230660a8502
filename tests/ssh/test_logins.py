"""Odd surroundings, other orders of events: what was once found to break."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx
from tests.conftest import is_alive, wait_until
from tests.process.terminal import Terminal


@pytest.fixture
def bashrc(cluster):
    """Have the second host's login shell do something first."""

    def write(text):
        cluster.hosts[1].write("/root/.bashrc", text)

    yield write
    cluster.hosts[1].enter("rm", "-f", "/root/.bashrc")
    # A shell that hangs in a file of the user's is not ours to end.
    for pid in cluster.hosts[1].pids("sleep 300"):
        cluster.hosts[1].enter("kill", "-9", str(pid))


def fresh(host):
    host.enter("sh", "-c", "rm -rf /root/.cache /tmp/phalanx-cache-0")


def test_a_host_whose_umask_lets_the_group_write(cluster, launcher, bashrc):
    """As many distributions have it: what we make there is ours alone all the same."""
    fresh(cluster.hosts[1])
    bashrc("umask 002\n")
    Path("module.py").touch()
    assert launcher().run(os.getcwd).rank(1).startswith("/root/.cache/phalanx/")
    modes = cluster.hosts[1].enter(
        "sh", "-c", "stat -c %a /root/.cache/phalanx /root/.cache/phalanx/*"
    )
    assert set(modes.split()) == {"700"}


@pytest.mark.parametrize("workers", [1, "auto"])
@pytest.mark.parametrize("text", ["sleep 300", "exec cat >/dev/null"])
def test_a_login_that_hangs_is_given_up(cluster, launcher, bashrc, text, workers):
    """After start_timeout; the ssh that waits for it does not stay."""
    bashrc(text + "\n")
    began = time.monotonic()
    with pytest.raises(phalanx.LaunchError, match="box2"):
        launcher(2, workers, start_timeout=3).run(print)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("workers", [1, "auto"])
def test_ctrl_c_ends_a_login_that_hangs(cluster, remote_script, bashrc, workers):
    """And the ssh that waits for it."""
    bashrc("sleep 300\n")
    started = remote_script.start("launcher.run(print)\n", workers_per_host=workers)
    wait_until(lambda: cluster.hosts[1].pids("sleep 300"), 20)
    found = subprocess.run(["pgrep", "-P", str(started.pid), "ssh"], capture_output=True, text=True)
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=60)
    wait_until(lambda: not any(map(is_alive, map(int, found.stdout.split()))), 10)


def test_a_slow_login_is_said_on_a_terminal(cluster, bashrc):
    """Also while the number of workers is asked for."""
    bashrc("sleep 3\n")
    Path("job.py").write_text("def f():\n    return 1\n")
    terminal = Terminal(
        *(sys.executable, "-m", "phalanx", "launch", "job.py:f", "--hostnames", "box1", "box2"),
        *("--ssh-config-file", str(cluster.ssh_config)),
    )
    terminal.wait_for("logging in to box2")
    assert terminal.finish() == 0
    assert "logging in" not in "\n".join(terminal.lines)


def test_cancelling_at_once(launcher):
    """Whatever has been reached by then."""
    for workers in (1, "auto"):
        for pause in (0.0, 0.1, 0.3):
            app = launcher(2, workers).start(time.sleep, args=(60,))
            time.sleep(pause)
            app.cancel()
            assert app.wait(20).state.value == "CANCELLED"
            with pytest.raises(phalanx.Cancelled):
                app.result()


def test_what_the_login_says_on_stdout_is_the_reason(launcher, bashrc):
    """Where it says nothing else."""
    bashrc("echo this account is locked; exit 1\n")
    with pytest.raises(phalanx.StartFailed, match="this account is locked"):
        launcher().run(print)
    bashrc("exit 0\n")
    with pytest.raises(phalanx.StartFailed, match="login shell exited at once"):
        launcher().run(print)


def test_a_program_that_is_no_python(launcher):
    """It says which was tried."""
    with pytest.raises(phalanx.StartFailed, match="/bin/true exited with code 0"):
        launcher(1, python="/bin/true").run(print)
    with pytest.raises(phalanx.StartFailed, match="/usr/share has no bin/python. Set python="):
        launcher(1, python="/usr/share").run(print)


def test_a_changed_host_key_comes_with_no_advice_to_accept_it(cluster, tmp_path):
    """It may be somebody in between."""
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    known = tmp_path / "known"
    known.write_text(f"{cluster.hosts[0].address} {Path(f'{other}.pub').read_text()}")
    config = tmp_path / "config"
    config.write_text(f"Host *\n  UserKnownHostsFile {known}\n" + cluster.ssh_config.read_text())
    with pytest.raises(phalanx.StartFailed, match="IDENTIFICATION HAS CHANGED") as caught:
        phalanx.launch(print, hostnames=["box1"], workers_per_host=1, ssh_config_file=str(config))
    assert "Accept the host's key" not in str(caught.value)


def test_an_interface_that_is_not_there(launcher):
    """It says which are."""
    with pytest.raises(
        phalanx.StartFailed, match=r"no network interface 'ib0'; choose one of .*eth0"
    ):
        launcher(interface="ib0").run(print)


def test_an_env_file_that_never_ends_leaves_nothing(cluster, launcher):
    """Nor does one that starts something in the background hold up the start."""
    Path("env.sh").write_text("sleep 301\n")
    with pytest.raises(phalanx.LaunchError):
        launcher(1, env_file="env.sh", start_timeout=3).run(print)
    wait_until(lambda: not cluster.hosts[0].pids("sleep 301"), 10)
    assert not cluster.hosts[0].enter("sh", "-c", "ls /tmp/phalanx-env-* 2>/dev/null", check=False)
    Path("env.sh").write_text("sleep 5 &\nexport A=1\n")
    began = time.monotonic()
    assert launcher(1, env_file="env.sh").run(os.getenv, args=("A",)).rank(0) == "1"
    assert time.monotonic() - began < 5
    wait_until(lambda: not cluster.hosts[0].processes(), 10)


def test_an_agent_that_is_stopped_is_ended(cluster, launcher):
    """It does not answer; what it has is swept up."""
    app = launcher(host_timeout=2).start(time.sleep, args=(120,))
    wait_until(lambda: cluster.hosts[1].pids("rank 1"))
    (agent,) = cluster.hosts[1].pids(" agent")
    cluster.hosts[1].enter("kill", "-STOP", str(agent))
    with pytest.raises(phalanx.AgentLost, match="lost the agent on box2: no heartbeat"):
        app.result(20)
    wait_until(lambda: not cluster.hosts[1].processes(), 10)


def test_agents_that_rest_do_not_outlive_a_launcher_they_are_cut_off_from(cluster, remote_script):
    """Nobody says anything to them; nobody could."""
    started = remote_script.start(
        "with launcher:\n    launcher.run(os.getpid)\n    print('up', flush=True)\n    time.sleep(600)\n",
        orphan_timeout=3,
        host_timeout=3,
    )
    started.stdout.readline()
    cluster.hosts[1].cut()
    started.kill()
    started.communicate()
    wait_until(lambda: not cluster.hosts[1].processes(), 20)


def test_two_launches_over_control_masters_do_not_end_each_other(cluster, tmp_path):
    """A master that is there is used; none is made that would end with its launch."""
    config = tmp_path / "config"
    config.write_text(
        f"Host *\n  ControlMaster auto\n  ControlPath {tmp_path}/%h\n"
        + cluster.ssh_config.read_text()
    )
    run = phalanx.Launcher(["box1"], 1, ssh_config_file=str(config))
    first = run.start(time.sleep, args=(1.5,))
    time.sleep(0.8)
    second = run.start(time.sleep, args=(3,))
    first.result(20)
    second.result(20)


def test_a_project_that_grows_while_it_is_sent(cluster, launcher):
    """Another job writes its log there."""
    Path("other.log").write_text("x")
    writer = subprocess.Popen(
        ["sh", "-c", "while sleep 0.01; do echo line >>other.log; done"], start_new_session=True
    )
    try:
        for _ in range(4):
            assert launcher(1).run(os.path.getsize, args=("other.log",)).rank(0) > 0
    finally:
        os.killpg(writer.pid, signal.SIGKILL)
        writer.wait()


def test_a_link_out_of_the_project_is_not_written_through(cluster, launcher):
    """The host's own files behind it stay as they are."""
    Path("data").mkdir()
    Path("data/x.txt").write_text("ours")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "data"], check=True)
    os.rename("data", "moved")
    Path("data").symlink_to("/opt/data")
    cluster.hosts[0].write("/opt/data/x.txt", "theirs")
    assert launcher(1).run(lambda: Path("data/x.txt").read_text()).rank(0) == "theirs"


def test_modules_that_arrive_after_packages_were_loaded_are_found(remote_script):
    """Their directory was not there when the zygote looked."""
    Path("src").mkdir()
    Path("src/late.py").write_text("VALUE = 9\n")
    Path("large.bin").write_bytes(os.urandom(20 << 20))
    done = remote_script(
        """
def f():
    import json.tool, numpy, late
    return late.VALUE

print(list(launcher.run(f)))
""",
        env={"PYTHONPATH": os.path.abspath("src")},
    )
    assert done.stdout.strip() == "[9, 9]", done.stderr


def test_the_command_line_launches_a_file_from_a_home_directory(cluster, tmp_path):
    """The file itself is what is needed."""
    Path("job.py").write_text("def f():\n    return 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "launch", "job.py:f", "--hostnames", "box1"]
        + ["--ssh-config-file", str(cluster.ssh_config)],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path)},
        timeout=60,
    )
    assert done.stdout.strip() == "rank 0: 1", done.stderr


def test_the_command_line_shows_no_frames_of_ours_for_a_host_that_cannot_be_used(cluster):
    """With a number of workers or without."""
    Path("job.py").write_text("def f():\n    return 1\n")
    for more in ([], ["--workers-per-host", "1"]):
        done = subprocess.run(
            [sys.executable, "-m", "phalanx", "launch", "job.py:f", "--hostnames", "nosuch", *more]
            + ["--ssh-config-file", str(cluster.ssh_config)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1
        assert "Could not resolve hostname" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_hosts_own_path_with_the_hosts_own_interpreter(cluster, launcher):
    """The launcher's leads to the launcher's."""
    base = getattr(sys, "_base_executable", sys.executable)
    path = "/opt/of/the/launcher:" + os.environ["PATH"]
    os.environ["PATH"] = path
    try:
        same = launcher(1).run(os.getenv, args=("PATH",)).rank(0)
        other = launcher(1, python=base).run(os.getenv, args=("PATH",)).rank(0)
    finally:
        os.environ["PATH"] = path.partition(":")[2]
    assert same.startswith("/opt/of/the/launcher:")
    assert "/opt/of/the/launcher" not in other


def test_an_agent_that_is_killed_leaves_nothing_of_the_project(cluster, launcher):
    """But what workers have written."""
    Path("module.py").write_text("")

    def work():
        Path("result.txt").write_text("kept")
        print("written", flush=True)
        time.sleep(120)

    app = launcher(1).start(work)
    wait_until(lambda: any("written" in line.text for line in app.logs()))
    (agent,) = cluster.hosts[0].pids(" agent")
    cluster.hosts[0].enter("kill", "-9", str(agent))
    with pytest.raises(phalanx.AgentLost):
        app.result(20)
    find = ["sh", "-c", f"find /root/.cache/phalanx/trees/{app.id}-* -type f"]
    left = lambda: [Path(path).name for path in cluster.hosts[0].enter(*find).split()]
    wait_until(lambda: left() == ["result.txt"], 20, f"what is left: {left()}")
    cluster.hosts[0].enter("sh", "-c", "rm -r /root/.cache/phalanx/trees/*")


def test_several_hosts_by_one_string_is_a_mistake_with_the_right_advice():
    """Not an ssh that does not understand it."""
    with pytest.raises(phalanx.ConfigError, match=r"Write hostnames=\['a', 'b'\]"):
        phalanx.launch(print, hostnames="a,b")
    with pytest.raises(phalanx.ConfigError, match=r"Name each host by itself: \['a', 'b'\]"):
        phalanx.launch(print, hostnames=["a,b"])
    assert socket.gethostname()
