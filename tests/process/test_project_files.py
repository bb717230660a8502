"""Which files of the user's are sent."""

import json
import os
import subprocess
import zlib
from pathlib import Path

import pytest

from phalanx._launcher.project import project_files
from phalanx._launcher.project.shared_directories import SharedDirectories
from phalanx._schedulers.slurm.workspace_copy import copy_workspaces
from phalanx.errors import ConfigError, LaunchError
from phalanx.runner import get_runner


def sent(found):
    rows = json.loads(zlib.decompress(found.manifest().data))
    return sorted(row[0] for row in rows)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def write(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)


def test_without_git_everything_but_what_nobody_wants(home):
    """Environments, caches and the like."""
    write("a.py", "sub/b.txt", "__pycache__/a.pyc", "venv/pyvenv.cfg", "venv/x.py", ".git2/x")
    write("node_modules/x.js", ".mypy_cache/x", ".phalanx-0123")
    name = Path.cwd().name
    found = project_files.find("auto", os.getcwd(), ())
    assert sent(found) == [f"{name}/.git2/x", f"{name}/a.py", f"{name}/sub/b.txt"]


def test_in_a_repository_the_whole_of_it_from_anywhere_within(home):
    """Submodules as well, and names of any kind."""
    odd = "naïve file\nwith a newline"
    write("top.py", "sub/deep.py", "ignored.log", odd)
    Path(".gitignore").write_text("*.log\n")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x", "-c", "protocol.file.allow=always"]
    subprocess.run([*git, "init", "-q"], check=True)
    write("../other/inner.py")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, "-C", "../other", *command], check=True)
    subprocess.run([*git, "submodule", "--quiet", "add", "../other", "mod"], check=True)
    name = Path.cwd().name
    found = project_files.find("auto", os.path.abspath("sub"), ())
    assert sent(found) == sorted(
        f"{name}/{path}"
        for path in (".gitignore", ".gitmodules", "mod/inner.py", odd, "sub/deep.py", "top.py")
    )


def test_files_that_are_needed_from_elsewhere_come_with_their_packages(home):
    """The top package whole, nothing beside it."""
    write(
        "work/main.py", "lib/mine/__init__.py", "lib/mine/data.txt", "lib/other.py", "one/alone.py"
    )
    files = [os.path.abspath(p) for p in ("lib/mine/__init__.py", "one/alone.py", "work/main.py")]
    found = project_files.find("auto", os.path.abspath("work"), files)
    assert sent(found) == [
        "lib/mine/__init__.py",
        "lib/mine/data.txt",
        "one/alone.py",
        "work/main.py",
    ]


def test_two_directories_of_one_name_have_two(home):
    """Within the project."""
    write("a/src/x.py", "b/src/y.py")
    found = project_files.find("auto", os.path.abspath("a/src"), [os.path.abspath("b/src/y.py")])
    assert sent(found) == ["src/x.py", "src_/y.py"]


def test_of_a_home_directory_only_what_is_needed(home, monkeypatch):
    """It is nobody's project."""
    write("home/train.py", "home/.ssh/id", "home/big.bin")
    place = os.path.abspath("home")
    found = project_files.find("auto", place, [f"{place}/train.py"])
    assert sent(found) == ["home/train.py"]
    assert sent(project_files.find("auto", place, ())) == []


def test_packages_of_a_home_directory_are_sent_whole(home):
    """With their data, and whatever is above the module that was seen."""
    write("home/pkg/__init__.py", "home/pkg/sub/__init__.py", "home/pkg/sub/a.py", "home/pkg/b.txt")
    write("home/plain/c.py", "home/plain/d.py")
    place = os.path.abspath("home")
    found = project_files.find("auto", place, [f"{place}/pkg/sub/a.py", f"{place}/plain/c.py"])
    assert sent(found) == [
        "home/pkg/__init__.py",
        "home/pkg/b.txt",
        "home/pkg/sub/__init__.py",
        "home/pkg/sub/a.py",
        "home/plain/c.py",
    ]


def test_what_is_not_a_file_is_left_out(home):
    """Links are kept as links, wherever they lead."""
    write("a")
    Path("dangling").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    Path("dir").mkdir()
    Path("to_dir").symlink_to("dir")
    os.mkfifo("pipe")
    name = Path.cwd().name
    found = project_files.find("auto", os.getcwd(), ())
    assert sent(found) == [f"{name}/{n}" for n in ("a", "dangling", "loop", "to_dir")]


def test_what_is_behind_a_link_is_not_the_projects(home):
    """But for modules that the function needs: they are where it looks for them."""
    write("proj/data/x.txt", "proj/a.py", "lib/mod.py", "lib/other.py")
    git = ["git", "-C", "proj", "-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    os.rename("proj/data", "elsewhere")
    Path("proj/data").symlink_to("../elsewhere")
    Path("proj/lib").symlink_to("../lib")
    needed = [os.path.abspath("proj/lib/mod.py")]
    found = project_files.find("auto", os.path.abspath("proj"), needed)
    assert sent(found) == ["proj/a.py", "proj/data", "proj/lib/mod.py"]


def test_in_a_repository_too_nobody_wants_environments_and_caches(home):
    """Unless they are tracked."""
    write("a.py", "env/pyvenv.cfg", "env/lib/x.py", "__pycache__/a.pyc", "node_modules/kept.js")
    write("logs/2026-01-31T12-00-00.000-localhost[0].log", "sub/.mypy_cache/x")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "node_modules"], check=True)
    name = Path.cwd().name
    assert sent(project_files.find("auto", os.getcwd(), ())) == [
        f"{name}/a.py",
        f"{name}/node_modules/kept.js",
    ]


def test_files_that_git_ignores_are_sent_where_they_are_needed(home):
    """A generated module; or all of a directory that is ignored as a whole."""
    write("a.py", "_version.py", "build/b.py", "build/c.txt")
    Path(".gitignore").write_text("_version.py\nbuild/\n")
    subprocess.run(["git", "init", "-q"], check=True)
    name = Path.cwd().name
    found = project_files.find("auto", os.getcwd(), [os.path.abspath("_version.py")])
    assert sent(found) == [f"{name}/{n}" for n in (".gitignore", "_version.py", "a.py")]
    assert sent(project_files.find("build", os.getcwd(), ())) == ["build/b.py", "build/c.txt"]


def test_a_long_list_of_files_goes_in_pieces(home):
    """No frame takes more."""
    for i in range(60):
        write(f"f{i}")
    manifest = project_files.find("auto", os.getcwd(), ()).manifest()
    large = project_files.Manifest("d", os.urandom(3 << 20), {}, {})
    pieces = list(large.pieces("d"))
    assert [len(p.data) for p in pieces] == [1 << 20] * 3
    assert b"".join(p.data for p in pieces) == large.data
    assert len(manifest.sources) == 60


def test_a_file_that_is_being_written_is_sent_as_it_was_read(home):
    """Such as the log of another job."""
    write("growing.log")
    manifest = project_files.find("auto", os.getcwd(), ()).manifest()
    with open("growing.log", "a") as file:
        file.write("more")
    (digest,) = manifest.sources
    assert b"".join(p.data for p in manifest.pieces(digest)) == b"growing.log"


def test_an_ignore_file_that_makes_no_sense_is_named(home):
    """Not a traceback of the library that reads it."""
    write("a")
    Path(".phalanxignore").write_bytes(b"!\n")
    with pytest.raises(LaunchError, match=r"\.phalanxignore"):
        project_files.find("auto", os.getcwd(), ()).manifest()
    Path(".phalanxignore").write_bytes(b"\xff\xfe\n")
    assert project_files.find("auto", os.getcwd(), ()).manifest()


def test_a_file_that_changes_on_its_way_is_an_error(home):
    """Not half of each."""
    write("a")
    os.utime("a", (0, 0))
    manifest = project_files.find("auto", os.getcwd(), ()).manifest()
    (digest,) = manifest.sources
    assert b"".join(p.data for p in manifest.pieces(digest)) == b"a"
    Path("a").write_text("b")
    with pytest.raises(LaunchError, match="changed while it was being sent"):
        list(manifest.pieces(digest))


def test_the_logs_of_the_launch_are_left_out(home):
    """They are written while it is sent."""
    write("a.py", "logs/x.log", "logs.py")
    found = project_files.find("auto", os.getcwd(), ())
    found = project_files.Project(found.roots, without=os.path.abspath("logs"))
    name = Path.cwd().name
    assert sent(found) == [f"{name}/a.py", f"{name}/logs.py"]


def test_nothing_and_what_is_no_directory():
    """None, and a mistake."""
    assert project_files.find(None, "/", ()) is None
    with pytest.raises(ConfigError, match="is not a directory"):
        project_files.find("/no/such/place", "/", ())


def test_tokens_are_there_for_a_moment(tmp_path):
    """With their own names in them; a place that cannot be written does no harm."""
    tokens = SharedDirectories({"a": str(tmp_path), "b": "/proc"})
    tokens.create()
    (file,) = tmp_path.iterdir()
    assert file.read_text() == file.name == tokens.roots[0].token
    tokens.remove()
    tokens.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("component", [["dist.ddp", "-j", "1x1"], ["utils.python"]])
@pytest.mark.parametrize("words", [["--script", "train.py"], ["-m", "train"]])
def test_programs_of_a_home_directory_are_sent_with_their_modules(home, caplog, component, words):
    """Wherever a project is sent; and it is said, as it is that nothing is."""
    write("home/other.py", "home/.ssh/id")
    Path("home/train.py").write_text("import mine")
    Path("home/mine.py").write_text("")
    place = os.path.abspath("home")
    name, *more = component
    with get_runner() as runner:

        def request(scheduler, cfg, made=name, args=(*more, *words)):
            return runner.dryrun_component(made, list(args), scheduler, cfg, place).request

        over_ssh = request("ssh", {"hosts": ["nowhere"]}).replicas[0].files
        assert [os.path.relpath(path, place) for path in over_ssh] == ["train.py", "mine.py"]
        (only,) = caplog.messages
        assert f"of {place} only train.py and what it imports is sent" in only
        on_ray = request("ray", {"dashboard_address": "http://nowhere:1"}).projects[place]
        assert [file.path for file in on_ray.files] == ["mine.py", "train.py"]
        on_slurm = request("slurm", {"job_dir": str(home / "jobs")})
        copy_workspaces(on_slurm.copies, on_slurm.copied_only)
        assert sorted(os.listdir(on_slurm.copies[place])) == ["mine.py", "train.py"]
        caplog.clear()
        assert request("ssh", {"hosts": ["a"]}, "utils.echo", ()).replicas[0].files == ()
        assert f"nothing of {place} is sent" in caplog.text


def test_of_a_home_directory_on_this_machine_nothing_is_said(home, caplog):
    """Programs run in it."""
    write("home/train.py")
    with get_runner() as runner:
        runner.dryrun_component(
            "utils.python", ["train.py"], "local_cwd", {}, os.path.abspath("home")
        )
    assert not caplog.messages
