"""Hosts by their names, commands that lead there, allocations, addresses: all without any host."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx._system import network
from phalanx import _wire as wire
from phalanx._agent.files import path_mapping
from phalanx._agent.files.project_tree import ProjectFile, pack, unpack
from phalanx.errors import ConfigError
from phalanx._launcher.transport import slurm, targets
from phalanx._launcher.transport.login import LoginEnded
from phalanx._remote.bootstrap import NO_BIN_PYTHON, NO_PYTHON
from phalanx._launcher.host_check import HostReport, warnings
from phalanx._launcher.agents.store_address import choose


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gpu-1", (None, "gpu-1", None)),
        ("me@gpu-1", ("me", "gpu-1", None)),
        ("gpu-1:2222", (None, "gpu-1", "2222")),
        ("me@gpu-1:2222", ("me", "gpu-1", "2222")),
        ("me@10.0.0.1:22", ("me", "10.0.0.1", "22")),
        ("fe80::1", (None, "fe80::1", None)),
        ("[fe80::1]:22", (None, "fe80::1", "22")),
        ("me@[::1]", ("me", "::1", None)),
        ("domain\\me@host", ("domain\\me", "host", None)),
    ],
)
def test_names_of_hosts(name, parts):
    """As ssh users write them."""
    assert targets.parse(name) == parts


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "a b", "", "me@", "@host", "a\nb", "me@-x"])
def test_what_is_no_name_of_a_host(name):
    """Above all, no option of ssh."""
    with pytest.raises(ConfigError, match="is not a valid host"):
        targets.parse(name)


def test_hosts_in_one_word_are_shown_as_several():
    """As a list, and as one types them."""
    with pytest.raises(ConfigError, match=r"by itself: \['a', 'me@b'\]; in a shell: a me@b$"):
        targets.parse("a, me@b,")


@pytest.mark.parametrize(
    ("name", "config", "typed"),
    [
        ("gpu-1", None, "gpu-1"),
        ("me@gpu-1:2222", None, "-p 2222 me@gpu-1"),
        ("me@gpu-1", "/c", "-F /c me@gpu-1"),
    ],
)
def test_advice_names_the_host_as_the_user_does(name, config, typed):
    """The command to try logs in as Phalanx did."""
    target = targets.ssh_target(name, ["python3"], config_file=config, host_timeout=30)
    *options, host = typed.split()
    tried = " ".join(["ssh", *options, "-o", "BatchMode=yes", host, "true"])
    assert LoginEnded("Permission denied", target).describe().endswith(f"then try: {tried}")
    # To accept a key, ssh has to ask.
    accepts = " ".join(["ssh", *options, host, "true"])
    unknown = LoginEnded("Host key verification failed.", target).describe()
    assert unknown.endswith(f"if it is the right one: {accepts}")


@pytest.mark.parametrize(
    ("pythons", "hint"),
    [
        (["/home/me/venvs/train"], "If you wrote ~/venvs/train, your shell replaced ~ with"),
        (["/opt/venv"], ""),
        (["~/venvs/train"], ""),
        (["/home/me/.venv/bin/python", "python3"], ""),
    ],
)
def test_a_python_below_our_own_home_may_have_been_meant_for_the_host_s(monkeypatch, pythons, hint):
    """A shell expands `~` before we see it; our own interpreter is nobody's choice."""
    monkeypatch.setenv("HOME", "/home/me")
    target = targets.ssh_target("gpu-1", pythons, config_file=None, host_timeout=30)
    said = LoginEnded("", target, code=NO_PYTHON, begun=True).describe()
    assert f"no {' or '.join(pythons)} found. Set python=... to the path of a" in said
    assert ("your shell" in said, hint in said) == (bool(hint), True)


def test_a_directory_without_an_interpreter_is_said_to_be_one():
    """Not that it is not found."""
    target = targets.ssh_target("gpu-1", ["/usr/share"], config_file=None, host_timeout=30)
    said = LoginEnded("", target, code=NO_BIN_PYTHON, begun=True).describe()
    assert said.startswith("/usr/share has no bin/python. Set python=... to the path")


def command(**options):
    return targets.ssh_target("me@h:7", ["/a b/python", "python3"], **options).command("mark", "go")


def test_the_command_is_the_users_own_ssh():
    """In batch mode, and never without checking host keys."""
    words = command(config_file="/c", host_timeout=30)
    assert words[:3] == ["ssh", "-F", "/c"]
    assert words[-3:-1] == ["--", "h"]
    assert "BatchMode=yes" in words
    assert not any("StrictHostKeyChecking" in word for word in words)
    assert "-F" not in command(config_file=None, host_timeout=30)


def test_the_interpreter_for_a_host():
    """One for all, one for some, or one like this."""
    assert targets.pythons(None, "a") == (sys.executable, "python3")
    assert targets.pythons("~/venv", "a") == ("~/venv",)
    assert targets.pythons({"a": "/p"}, "a") == ("/p",)
    assert targets.pythons({"a": "/p"}, "b") == (sys.executable, "python3")


# ── Slurm ─────────────────────────────────────────────────────────────────────


def test_slurms_counts():
    """Repeated ones are written once."""
    assert slurm.counts("2(x3),1") == (2, 2, 2, 1)
    assert slurm.counts("4") == (4,)
    assert slurm.counts("nonsense") == ()


@pytest.mark.parametrize(
    ("environ", "within"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "1"}, True),
        ({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, False),
        ({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "4294967290"}, True),
        ({"SLURM_JOB_ID": "1", "PHALANX_DEPTH": "1"}, False),
    ],
)
def test_where_a_launch_means_the_allocation(environ, within):
    """In salloc and sbatch; not in a task, nor in a worker."""
    assert slurm.is_within(environ) is within


def test_an_allocation_by_its_environment():
    """Tasks count where the job has said how many."""
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a,b", "SLURM_TASKS_PER_NODE": "2,1"}
    assert slurm.allocation(environ) == slurm.Allocation(("a", "b"), None)
    given_ = slurm.allocation({**environ, "SLURM_NTASKS": "3"})
    assert given_ == slurm.Allocation(("a", "b"), (2, 1))


# ── addresses ─────────────────────────────────────────────────────────────────


def hello(space, address):
    return wire.Hello(
        version="", python="", hostname="", pid=1, port=1, spool="", space=space, address=address
    )


def test_where_workers_meet():
    """Loopback where all share it, else an address of the first host."""
    same = {0: hello("s", "10.0.0.1"), 1: hello("s", "10.0.0.1")}
    apart = {0: hello("s", "10.0.0.1"), 1: hello("t", "10.0.0.2")}
    assert choose(same, 0, [], None) == "127.0.0.1"
    assert choose(apart, 0, [], None) == "10.0.0.1"
    assert choose(same, 0, [], "eth0") == "10.0.0.1"
    assert choose({0: hello("s", ""), 1: hello("t", "10.0.0.2")}, 0, [], None) == ""


def test_addresses_of_this_host():
    """The loopback interface is everywhere."""
    assert ("lo", "127.0.0.1") in network.interfaces()
    assert network.address_of("lo") == "127.0.0.1"
    assert network.interface_of("127.0.0.1") == "lo"
    assert network.address_towards("127.0.0.1") == "127.0.0.1"
    assert network.address_towards("not an address") is None
    assert network.is_loopback("::1")
    assert not network.is_loopback("10.0.0.1")
    assert network.interface_of("no address") is None


# ── the project ───────────────────────────────────────────────────────────────


@given(st.lists(st.text(st.characters(exclude_characters="\0/"), min_size=1, max_size=8)))
def test_lists_of_files_survive_the_way(names):
    """Whatever they are called."""
    entries = [ProjectFile(f"root/{name}", 0o644, 1, "d") for name in names if name != ".."]
    assert unpack(pack(entries)) == entries


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x"])
def test_paths_that_lead_out_of_the_tree_are_refused(path):
    """Whoever sent them."""
    with pytest.raises(ValueError, match="not a path within"):
        unpack(pack([ProjectFile(path, 0o644, 1, "d")]))


def prepare(**fields):
    plain = {
        "preload": (), "late": (), "python_path": (), "environment": {}, "passing": False,
        "argv": (), "cwd": None, "main_file": None, "title": "t", "spawn": False, "workers": 1,
        "heartbeat": 1.0, "orphan_timeout": 1.0, "stop_grace": 1.0,
    }  # fmt: skip
    return wire.Prepare(app="a", **{**plain, **fields})


def test_paths_of_the_project_are_moved_to_the_tree(tmp_path, monkeypatch):
    """Those outside of it stay as they are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    roots = (wire.ProjectRoot("/no/proj", "proj", "t"), wire.ProjectRoot("/no/lib", "lib", "u"))
    frame = prepare(
        remote=wire.RemoteContext(roots),
        python_path=("/no/proj/src", "/opt/x", "/no/lib"),
        cwd="/no/proj/sub",
        main_file="/no/proj/train.py",
        environment={"PYTHONPATH": "/no/lib:/opt/x", "A": "/no/proj"},
    )
    settled, tree = path_mapping.localize(frame)
    assert tree.names == {"proj", "lib"}
    assert settled.cwd == f"{tree.path}/proj/sub"
    assert os.path.isdir(settled.cwd)
    assert settled.main_file == f"{tree.path}/proj/train.py"
    assert settled.environment == {"PYTHONPATH": f"{tree.path}/lib:/opt/x", "A": "/no/proj"}
    users = [p for p in settled.python_path if p in ("/opt/x",) or p.startswith(tree.path)]
    assert users == [f"{tree.path}/proj/src", "/opt/x", f"{tree.path}/lib"]
    assert set(filter(None, sys.path)) <= set(settled.python_path)


def test_a_directory_that_is_shared_is_not_moved(tmp_path, monkeypatch):
    """Its token is there, with its name in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / ".phalanx-1").write_text(".phalanx-1")
    root = wire.ProjectRoot(str(tmp_path), "x", ".phalanx-1")
    settled, tree = path_mapping.localize(
        prepare(remote=wire.RemoteContext((root,)), cwd=str(tmp_path))
    )
    assert (settled.cwd, tree) == (str(tmp_path), path_mapping.TreeLocation())
    (tmp_path / ".phalanx-1").write_text("another file of that name")
    _, tree = path_mapping.localize(prepare(remote=wire.RemoteContext((root,))))
    assert tree.names == {"x"}


def test_a_tree_in_use_is_not_taken_for_an_old_one(tmp_path):
    """However long its app has run: its agent says so now and then."""
    import asyncio

    from phalanx._agent.files.project_tree import KEPT_DAYS, ProjectTree
    from phalanx._remote.bootstrap import remove_unused

    used, forgotten = tmp_path / "trees" / "used", tmp_path / "trees" / "forgotten"
    for tree in (used, forgotten):
        tree.mkdir(parents=True)
        os.utime(tree, (0, 0))

    async def run():
        project = ProjectTree(path_mapping.TreeLocation(str(used), frozenset({"x"})), "app", None)
        project._touched -= 2 * 3600
        project.touch()

    asyncio.run(run())
    remove_unused(str(tmp_path / "trees"), KEPT_DAYS * 86400)
    assert os.listdir(tmp_path / "trees") == ["used"]


# ── checking ──────────────────────────────────────────────────────────────────


def test_warnings_tell_how_hosts_differ():
    """Who is unlike most."""
    usual = {"python": "3.11.7", "torch": "2.13.0", "disk_free": 1 << 40, "memlock": -1}
    reports = [
        HostReport("a", **usual, gpus=("H200",) * 8),
        HostReport("b", **usual, gpus=("H200",) * 8),
        HostReport("c", **{**usual, "torch": "2.12.0", "python": "3.12.1"}, gpus=("H200",) * 4),
        HostReport("d", **{**usual, "disk_free": 5 << 20}, gpus=("H200",) * 8, clock_offset=-7.0),
        HostReport("e", problem="no route"),
    ]
    text = "\n".join(warnings(reports, "3.11.2"))
    assert "c has Python 3.12.1, the launcher has 3.11.2" in text
    assert "torch differ: most have 2.13.0; c: 2.12.0" in text
    assert "GPUs differ: most have 8 × H200; c: 4 × H200" in text
    assert "d has only 5 MiB of disk space left" in text
    assert "the clock of d is 7.0 s behind" in text
    assert "e" not in text.split()
    assert warnings(reports[:2], "3.11.2") == []
