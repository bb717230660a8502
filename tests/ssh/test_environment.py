"""What workers on other hosts find around them."""

import os
import stat
from pathlib import Path

import pytest

import phalanx
from tests.conftest import wait_until


def variables(*names):
    return {name: os.environ.get(name) for name in names}


def test_variables_are_copied_by_pattern_and_given_by_value(launcher, monkeypatch):
    """All hosts, and single ones; quotes, newlines and unicode survive."""
    odd = "a 'b' \"c\"\nd $HOME \\ é ☃"
    monkeypatch.setenv("NCCL_MINE", "copied")
    monkeypatch.setenv("MY_THING", "copied too")
    monkeypatch.setenv("OTHER_THING", "not copied")
    run = launcher(
        env_vars=("NCCL*", "MY_*"),
        extra_env_vars={"ODD": odd, "WHO": "all"},
        host_env_vars={"box2": {"WHO": "second"}},
    )
    names = ("NCCL_MINE", "MY_THING", "OTHER_THING", "ODD", "WHO")
    first, second = run.run(variables, args=names)
    assert first == {
        "NCCL_MINE": "copied",
        "MY_THING": "copied too",
        "OTHER_THING": None,
        "ODD": odd,
        "WHO": "all",
    }
    assert second == {**first, "WHO": "second"}


def test_no_value_shows_in_ps(launcher, cluster, monkeypatch):
    """Neither here nor there, in arguments or in what a process was started with."""
    monkeypatch.setenv("WANDB_API_KEY", "s3cret-copied")
    run = launcher(extra_env_vars={"TOKEN": "s3cret-given"})

    def wait():
        assert os.environ["TOKEN"] == "s3cret-given"
        assert os.environ["WANDB_API_KEY"] == "s3cret-copied"
        while not Path("/root/go").exists():
            pass

    app = run.start(wait)
    wait_until(lambda: cluster.hosts[0].pids("rank 0"))
    seen = cluster.hosts[0].enter(
        "sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'"
    )
    here = b"".join(p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists())
    for host in cluster.hosts[:2]:
        host.write("/root/go", "")
    app.result(30)
    assert "s3cret" not in seen
    assert b"s3cret" not in here
    for host in cluster.hosts[:2]:
        host.enter("rm", "/root/go")


def test_env_file_is_sourced_on_each_host(launcher, monkeypatch):
    """In bash, where it need not be; it wins over what is copied, and values given over it."""
    monkeypatch.setenv("HF_HOME", "launchers")
    Path("env.sh").write_text(
        'source <(echo "export A=$(hostname)")\nexport HF_HOME=hosts\nexport B=file\necho noise\n'
    )
    run = launcher(env_file="env.sh", extra_env_vars={"B": "given"})
    assert list(run.run(variables, args=("A", "B", "HF_HOME"))) == [
        {"A": "box1", "B": "given", "HF_HOME": "hosts"},
        {"A": "box2", "B": "given", "HF_HOME": "hosts"},
    ]


def test_an_env_file_that_fails_is_an_error_with_its_stderr(launcher):
    """Of the host where it failed."""
    Path("env.sh").write_text('[ "$(hostname)" = box1 ] || { echo "no module x" >&2; exit 3; }\n')
    with pytest.raises(phalanx.StartFailed, match=r"(?s)agent on box2: .*no module x") as caught:
        launcher(env_file="env.sh").run(print)
    assert caught.value.hostname == "box2"


def test_hosts_whose_shells_print_or_are_csh(cluster, launcher):
    """What .bashrc says is in the agent's log, and disturbs nothing."""
    noisy, odd = cluster.hosts[:2]
    noisy.write(
        "/root/.bashrc", 'echo "welcome to box1"; echo "to stderr" >&2\nprintf "\\377\\0PHX"\n'
    )
    odd.enter("usermod", "-s", "/bin/csh", "root")
    odd.write("/root/.cshrc", 'echo "csh here"\nset prompt="x"\n')
    try:
        result = launcher().run(lambda: os.environ["SHELL"])
        assert list(result) == ["/bin/bash", "/bin/csh"]
        (log,) = Path("logs").glob("*-box1.log")
        assert b"welcome to box1" in log.read_bytes()
        assert b"to stderr" in log.read_bytes()
    finally:
        noisy.enter("rm", "/root/.bashrc")
        odd.enter("usermod", "-s", "/bin/bash", "root")


def test_a_host_without_a_home(cluster, launcher):
    """The cache is elsewhere then."""
    host = cluster.hosts[0]
    host.enter("sh", "-c", "rm -rf /root/.cache; touch /root/.cache")
    try:
        assert launcher(1).run(os.getcwd).rank(0).startswith("/tmp/phalanx-cache-0/")
    finally:
        host.enter("sh", "-c", "rm -rf /root/.cache /tmp/phalanx-cache-0")


def test_a_directory_of_others_is_not_used_for_the_cache(cluster, launcher):
    """Whoever may write there could have us run anything."""
    host = cluster.hosts[0]
    host.enter("sh", "-c", "rm -rf /root/.cache; mkdir -p -m 777 /root/.cache/phalanx")
    try:
        assert launcher(1).run(os.getcwd).rank(0).startswith("/tmp/phalanx-cache-0/")
        mode = host.enter("stat", "-c", "%a", "/tmp/phalanx-cache-0").strip()
        assert not int(mode, 8) & (stat.S_IWGRP | stat.S_IWOTH)
    finally:
        host.enter("sh", "-c", "rm -rf /root/.cache /tmp/phalanx-cache-0")


def test_a_venv_of_the_hosts_can_be_named(cluster, launcher):
    """By its directory, with ~, one for each host."""
    import sys

    host = cluster.hosts[1]
    host.enter(sys.executable, "-m", "venv", "--without-pip", "/root/my env")
    run = launcher(python={"box2": "~/my env"})
    assert list(run.run(lambda: sys.prefix)) == [sys.prefix, "/root/my env"]


def test_packages_that_only_hosts_have_are_loaded_once(cluster, launcher):
    """The launcher need not have them."""
    import sys

    cluster.hosts[0].write("/opt/more/onlythere.py", "import os\nPID = os.getpid()\n")
    cluster.hosts[0].write("/root/.bashrc", "export PYTHONPATH=/opt/more\n")

    def f():
        import onlythere

        return onlythere.PID == os.getpid()

    try:
        assert list(launcher(1, 2).run(f)) == [False, False]
    finally:
        cluster.hosts[0].enter("rm", "/root/.bashrc")
        assert "onlythere" not in sys.modules


def test_all_hosts_logs_are_here(launcher):
    """A file for each rank and each agent, with the host's name."""

    def talk():
        print("line of", os.environ["RANK"])

    launcher(2, 2).run(talk)
    for host, local, rank in (("box1", 0, 0), ("box1", 1, 1), ("box2", 0, 2), ("box2", 1, 3)):
        (log,) = Path("logs").glob(f"*-{host}[[]{local}].log")
        assert log.read_text() == f"line of {rank}\n"
    for host in ("box1", "box2"):
        (log,) = Path("logs").glob(f"*-{host}.log")
        assert "workers started" in log.read_text()
