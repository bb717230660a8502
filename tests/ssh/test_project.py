"""The user's code on hosts that do not have it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from tests.ssh.cluster import Cluster


@pytest.fixture(autouse=True)
def in_path(monkeypatch, own_directory):
    """Modules of the test's directory can be imported, as those beside a script can."""
    monkeypatch.syspath_prepend(str(own_directory))


def project(**files):
    """Write modules; a dot in a name is a directory."""
    for name, text in files.items():
        path = Path(name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def traffic(cluster):
    """How many bytes the first host has received."""
    text = cluster.hosts[0].enter("cat", "/sys/class/net/eth0/statistics/rx_bytes")
    return int(text)


def test_modules_beside_the_script_are_there(remote_script, tmp_path):
    """With packages, data and a module that reads its rank when it is imported."""
    project(
        helper="import os\nRANK = os.environ['RANK']\n",
        **{"pack.__init__": "from .inner import VALUE\n", "pack.inner": "VALUE = 7\n"},
    )
    Path("data").mkdir()
    Path("data/numbers.txt").write_text("1 2 3")
    done = remote_script("""
def f():
    import helper, pack
    return helper.RANK, pack.VALUE, open("data/numbers.txt").read()

print(list(launcher.run(f)))
""")
    assert done.stdout.strip() == "[('0', 7, '1 2 3'), ('1', 7, '1 2 3')]", done.stderr


def test_an_unchanged_project_is_not_sent_again_and_a_change_sends_one_file(launcher, cluster):
    """Only the list of files travels."""
    for i in range(50):
        Path(f"m{i}.bin").write_bytes(os.urandom(40_000))
    run = launcher(1)
    sizes = {}
    for name in ("first", "second", "third"):
        if name == "third":
            Path("m7.bin").write_bytes(os.urandom(300_000))
        before = traffic(cluster)
        assert run.run(os.path.getsize, args=("m7.bin",)).rank(0) in (40_000, 300_000)
        sizes[name] = traffic(cluster) - before
    assert (
        sizes["first"] > 2_000_000 > 400_000 > sizes["third"] > 300_000 > 100_000 > sizes["second"]
    )


def test_what_git_ignores_is_not_sent(launcher):
    """What is tracked, and what is neither tracked nor ignored, is."""
    project(tracked="", untracked="", ignored="")
    Path(".gitignore").write_text("ignored.py\n")
    Path("sub").mkdir()
    Path("sub/deep.txt").write_text("x")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "tracked.py", "sub"], check=True)
    os.chdir("sub")

    def look():
        return sorted(os.listdir()), sorted(os.listdir(".."))

    assert launcher(1).run(look).rank(0) == (
        ["deep.txt"],
        [".gitignore", "sub", "tracked.py", "untracked.py"],
    )


def test_phalanxignore_takes_files_out(launcher):
    """In the syntax of gitignore."""
    project(a="", b="", **{"keep.c": "", "drop.d": ""})
    Path(".phalanxignore").write_text("# no\nb.py\ndrop/\n")
    Path("logs").mkdir()
    Path("logs/old.log").write_text("x")
    found = (
        launcher(1).run(lambda: sorted(str(p) for p in Path().rglob("*") if p.is_file())).rank(0)
    )
    assert found == [".phalanxignore", "a.py", "keep/c.py"]


def test_links_and_modes_survive(launcher):
    """As they are here."""
    Path("run.sh").write_text("#!/bin/sh\necho ran\n")
    Path("run.sh").chmod(0o755)
    Path("link").symlink_to("run.sh")
    Path("empty").touch()

    def look():
        return subprocess.check_output(["./link"]), os.readlink("link"), os.path.getsize("empty")

    assert launcher(1).run(look).rank(0) == (b"ran\n", "run.sh", 0)


def test_a_project_that_is_too_large_is_refused_with_its_largest_files(launcher):
    """And what to do about it."""
    with open("large.bin", "wb") as file:
        file.truncate(300 << 20)
    Path("small.py").touch()
    with pytest.raises(phalanx.LaunchError, match=r"(?s)300\.0 MiB  .*large\.bin.*\.phalanxignore"):
        launcher(1).run(print)
    assert launcher(1, workspace=None).run(os.getpid).rank(0)


def test_a_workspace_can_be_named_or_left_out(launcher, tmp_path):
    """A directory; or nothing, and then workers are in the same directory if it is there."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    Path("here").touch()
    assert launcher(1, workspace="other").run(os.listdir).rank(0) == ["file"]
    assert launcher(1, workspace=None).run(os.getcwd).rank(0) == "/root"
    os.chdir("/usr")
    assert launcher(1, workspace=None).run(os.getcwd).rank(0) == "/usr"
    with pytest.raises(phalanx.ConfigError, match="not a directory"):
        launcher(1, workspace="/no/such").run(print)


def test_a_home_directory_is_not_sent(remote_script, tmp_path):
    """But what the function needs of it is."""
    project(needed="VALUE = 3\n", other="")
    Path("secret.key").write_text("x")
    done = remote_script(
        """
import needed

def f():
    return needed.VALUE, sorted(set(os.listdir()) - {"__pycache__"})

print(launcher.run(f).rank(0))
""",
        env={"HOME": str(tmp_path)},
    )
    assert done.stdout.strip() == "(3, ['needed.py', 'script.py'])", done.stderr


def test_modules_from_elsewhere_are_sent_as_well(launcher, tmp_path, monkeypatch):
    """Such as an editable install: the packages that the function was seen to import."""
    lib = tmp_path / "lib"
    (lib / "mine").mkdir(parents=True)
    (lib / "mine" / "__init__.py").write_text("from mine.deep import X\n")
    (lib / "mine" / "deep.py").write_text("X = 5\n")
    (lib / "unrelated.py").write_text("")
    (tmp_path / "work").mkdir()
    monkeypatch.syspath_prepend(str(lib))
    monkeypatch.chdir(tmp_path / "work")

    def f():
        import mine

        return mine.X, sorted(os.listdir(os.path.dirname(os.path.dirname(mine.__file__))))

    assert launcher(1).run(f).rank(0)[0] == 5
    sys.modules.pop("mine", None)


def test_what_workers_write_is_not_brought_home_and_that_is_said(launcher, cluster, caplog):
    """It stays there for a while; what was sent does not."""
    project(module="")

    def write():
        import module

        Path("out").mkdir()
        Path("out/result.txt").write_text("kept")
        return os.getcwd(), module.__name__

    (tree, _) = launcher(1).run(write).rank(0)
    assert not Path("out").exists()
    assert any("wrote 1 file (4 bytes)" in message for message in caplog.messages)
    left = cluster.hosts[0].enter("find", tree, "-type", "f").split()
    assert left == [f"{tree}/out/result.txt"]
    cluster.hosts[0].enter("rm", "-r", os.path.dirname(tree))


def test_each_app_has_a_tree_of_its_own_and_nothing_reaches_the_cache(launcher, cluster):
    """What one app changes, the next does not see."""
    project(module="VALUE = 1\n")

    def change():
        text = Path("module.py").read_text()
        Path("module.py").write_text("VALUE = 2\n")
        return text

    assert launcher(1).run(change).rank(0) == "VALUE = 1\n"
    assert launcher(1).run(change).rank(0) == "VALUE = 1\n"
    cluster.hosts[0].enter("sh", "-c", "rm -r /root/.cache/phalanx/trees/*")


def test_damaged_files_of_the_cache_are_sent_again(launcher, cluster):
    """The agent's own code among them: everything is checked before it is used."""
    project(module="VALUE = 1\n")
    run = launcher(1)
    read = lambda: Path("module.py").read_text()
    assert run.run(read).rank(0) == "VALUE = 1\n"
    cache = "/root/.cache/phalanx"
    cluster.hosts[0].enter("sh", "-c", f"for f in {cache}/files/*/*; do echo damaged >$f; done")
    cluster.hosts[0].enter("sh", "-c", f"echo 1/0 | tee -a {cache}/code/*/phalanx/errors.py")
    assert run.run(read).rank(0) == "VALUE = 1\n"


def test_several_launches_at_once_on_a_host_that_has_nothing(cluster, launcher):
    """They race for the cache, and all succeed."""
    cluster.hosts[0].enter("rm", "-rf", "/root/.cache/phalanx")
    project(module="VALUE = 1\n")
    read = lambda: Path("module.py").read_text()
    apps = [launcher(1).start(read) for _ in range(4)]
    assert [app.result(60).rank(0) for app in apps] == ["VALUE = 1\n"] * 4


def test_tracebacks_name_the_files_here(launcher):
    """Not the copies that were made there."""
    project(broken="def fail():\n    raise ValueError('no')\n")

    def f():
        import broken

        broken.fail()

    with pytest.raises(ValueError, match="no") as caught:
        launcher(1).run(f)
    assert f'File "{os.getcwd()}/broken.py", line 2, in fail' in caught.value.__notes__[0]
    assert "raise ValueError('no')" in caught.value.__notes__[0]


def test_a_directory_that_hosts_share_is_used_as_it_is(tmp_path, monkeypatch):
    """Nothing is sent; what workers write is here."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.syspath_prepend(str(shared))
    monkeypatch.chdir(shared)
    cluster = Cluster(2, shared=str(shared))
    try:
        Path("module.py").write_text("VALUE = 4\n")

        def f():
            import module

            Path(os.environ["RANK"]).touch()
            return os.getcwd(), module.VALUE

        run = phalanx.Launcher(cluster.names, 1, ssh_config_file=str(cluster.ssh_config))
        assert list(run.run(f)) == [(str(shared), 4)] * 2
        assert (
            {"0", "1", "module.py"}
            <= set(os.listdir())
            <= {"0", "1", "module.py", "logs", "__pycache__"}
        )
        trees = cluster.hosts[0].enter("sh", "-c", "ls /root/.cache/phalanx/trees", check=False)
        assert not trees
    finally:
        cluster.close()
