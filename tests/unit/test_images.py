"""Images of projects: which files, which Dockerfile, which name. No engine."""

import io
import os
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx._images import dockerfile, progress
from phalanx._images.context import DOCKERFILE, list_files
from phalanx._images.dockerignore import DockerIgnore
from phalanx._images.plan import plan_image, project_name
from phalanx._runner.dryrun import with_workspace
from phalanx._specs import Role
from phalanx.errors import ConfigError, SchedulerError
from tests.conftest import wait_until


def write(place, *names):
    for name in names:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def paths(place):
    own = plan_image("base", str(place)).dockerfile
    return [file.path for file in list_files(str(place), own).files]


# ── .dockerignore ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("a.txt", "a.txt", True),
        ("a.txt", "sub/a.txt", False),  # unlike .gitignore: from the top
        ("/a.txt", "a.txt", True),
        ("./a.txt", "a.txt", True),
        ("sub", "sub/deep/a.txt", True),
        ("sub/", "sub/a.txt", True),
        ("sub/", "subway", False),
        ("*.txt", "a.txt", True),
        ("*.txt", "sub/a.txt", False),
        ("*/*.txt", "sub/a.txt", True),
        ("*/temp*", "sub/temporary/x", True),
        ("**/*.txt", "a.txt", True),
        ("**/*.txt", "sub/deep/a.txt", True),
        ("**", "a", True),
        ("sub/**", "sub/a", True),
        ("sub/**", "sub", False),
        ("**/sub", "x/sub/a", True),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("temp?", "tempa", True),
        ("temp?", "temp/", False),
        ("[a-c].py", "b.py", True),
        ("[a-c].py", "d.py", False),
        ("[^a-c].py", "d.py", True),
        (r"\*.txt", "*.txt", True),
        (r"\*.txt", "a.txt", False),
        ("a.b+(c)$", "a.b+(c)$", True),
        ("a.b", "axb", False),
        ("*\n!a.txt", "a.txt", False),
        ("*\n!a.txt", "b.txt", True),
        ("*.md\n!README*.md\nREADME-secret.md", "README.md", False),
        ("*.md\n!README*.md\nREADME-secret.md", "README-secret.md", True),
        ("*.md\nREADME-secret.md\n!README*.md", "README-secret.md", False),
        ("sub\n!sub/keep.txt", "sub/keep.txt", False),
        ("# a\n\n  \n b \n", "b", True),
        ("# a", "a", False),
        ("\ufeffa", "a", True),
        ("! a\n", "a", False),
        ("x/../a", "a", True),
        (".", "a", False),
        ("/", "a", False),
    ],
)
def test_dockerignore_is_read_as_docker_reads_it(text, path, expected):
    """The rules of its documentation and of its matcher."""
    assert DockerIgnore(text)(path) is expected


@pytest.mark.parametrize(
    ("text", "line"), [("!", 1), ("a\n[b", 2), ("a\\", 1), ("[z-a]", 1), ("\n\n! \n", 3)]
)
def test_a_pattern_that_is_none_is_refused_with_its_line(text, line):
    """As Docker refuses it."""
    with pytest.raises(ValueError, match=f"line {line}: "):
        DockerIgnore(text)


@pytest.mark.parametrize(
    ("text", "directory", "is_skipped"),
    [
        ("data", "data/", True),
        ("data", "./data/", True),
        ("data\n!data/keep", "data/", False),
        ("data\n!data/keep", "data/deep/", True),
        ("data\n!other/keep", "data/", True),
        ("data\n!**/keep", "data/", False),
        ("data\n!data/*/keep", "data/deep/", False),
        ("data/*", "data/", False),
    ],
)
def test_a_directory_is_skipped_where_nothing_in_it_can_be_wanted(text, directory, is_skipped):
    """A data set that is left out is not walked through."""
    assert DockerIgnore(text)(directory) is is_skipped


names = st.sampled_from(["a", "b", "c"])
patterns = st.lists(
    st.tuples(
        st.booleans(), st.lists(st.sampled_from(["a", "b", "*", "**", "?"]), min_size=1, max_size=3)
    ),
    max_size=4,
)


@given(patterns, st.lists(names, min_size=2, max_size=4))
def test_nothing_is_lost_by_skipping_directories(rules, path):
    """What is in a directory that is skipped is left out by itself, too."""
    text = "\n".join(("!" if again else "") + "/".join(parts) for again, parts in rules)
    ignored = DockerIgnore(text)
    if ignored("/".join(path[:-1]) + "/"):
        assert ignored("/".join(path))


# ── files ─────────────────────────────────────────────────────────────────────


def test_without_a_dockerignore_what_hosts_are_sent(tmp_path):
    """Everything but what nobody wants, less .phalanxignore."""
    write(tmp_path, "a.py", "sub/b.py", "data/x", "__pycache__/a.pyc", "venv/pyvenv.cfg", "venv/x")
    (tmp_path / ".phalanxignore").write_text("data/\n")
    assert paths(tmp_path) == [".phalanxignore", "a.py", "sub/b.py"]


def test_both_ignore_files_leave_out(tmp_path):
    """In the syntax of each; .dockerignore itself is of no use in an image."""
    write(tmp_path, "a.py", "sub/a.py", "deep/data/x", "data/x", "keep/x", "keep/y")
    (tmp_path / ".dockerignore").write_text("data\nkeep\n!keep/y\n")
    (tmp_path / ".phalanxignore").write_text("/sub/\n")
    assert paths(tmp_path) == [".phalanxignore", "a.py", "deep/data/x", "keep/y"]


def test_a_dockerfile_may_have_a_dockerignore_of_its_own(tmp_path):
    """As Docker's command has it."""
    write(tmp_path, "a", "b", "Dockerfile.phalanx")
    (tmp_path / ".dockerignore").write_text("a")
    (tmp_path / "Dockerfile.phalanx.dockerignore").write_text("b\n*.dockerignore")
    assert paths(tmp_path) == ["Dockerfile.phalanx", "a"]


def test_a_broken_dockerignore_is_said_with_file_and_line(tmp_path):
    """One sentence."""
    (tmp_path / ".dockerignore").write_text("a\n[b\n")
    with pytest.raises(ConfigError, match=r"\.dockerignore: line 2: '\[b' is no pattern"):
        plan_image("base", str(tmp_path))


def test_a_file_that_cannot_be_read_is_said(tmp_path):
    """And what to do."""
    write(tmp_path, "secret")
    context = list_files(str(tmp_path), None)
    (tmp_path / "secret").unlink()
    with pytest.raises(ConfigError, match=r"cannot read .*secret: No such file.*\.phalanxignore"):
        context.digest()


# ── the tar ───────────────────────────────────────────────────────────────────


def unpacked(place):
    context = list_files(str(place), None)
    data = b"".join(context.tar("FROM x\n", context.digest()))
    return tarfile.open(fileobj=io.BytesIO(data))  # noqa: SIM115 closed with the test


def test_the_tar_has_files_links_and_modes(tmp_path):
    """Whoever owns them here, they are root's there."""
    long, odd = "x" * 150 + "/" + "y" * 150, "naïve \n\udcff"
    write(tmp_path, "a.py", "run.sh", "empty", long)
    (tmp_path / os.fsencode(odd).decode("utf-8", "surrogateescape")).write_text("odd")
    (tmp_path / "empty").write_text("")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("a.py")
    (tmp_path / "dangling").symlink_to("/nowhere/" + "z" * 200)
    tar = unpacked(tmp_path)
    found = {member.name: member for member in tar.getmembers()}
    assert set(found) == {
        *(DOCKERFILE, ".dockerignore", "a.py", "run.sh", "empty", long, odd),
        *("link", "dangling"),
    }
    assert tar.extractfile("a.py").read() == b"a.py"
    assert tar.extractfile(long).read() == long.encode()
    assert found["run.sh"].mode == 0o755
    assert found["link"].linkname == "a.py"
    assert found["dangling"].linkname == "/nowhere/" + "z" * 200
    assert {(m.uid, m.gid, m.uname) for m in found.values()} == {(0, 0, "")}
    assert tar.extractfile(DOCKERFILE).read() == b"FROM x\n"
    assert tar.extractfile(".dockerignore").read().split() == [
        DOCKERFILE.encode(),
        b".dockerignore",
    ]


def test_the_tar_is_made_in_pieces(tmp_path):
    """A large file is never in memory as a whole."""
    with open(tmp_path / "large", "wb") as file:
        file.truncate(50 << 20)
    context = list_files(str(tmp_path), None)
    sizes = [len(piece) for piece in context.tar("FROM x\n", context.digest())]
    assert max(sizes) <= 1 << 20
    assert sum(sizes) > 50 << 20


def test_the_tar_does_not_depend_on_where_the_project_is(tmp_path):
    """The same files give the same bytes."""
    tars = []
    for place in (tmp_path / "one", tmp_path / "two"):
        write(place, "b", "a", "sub/c")
        for file in place.rglob("*"):
            os.utime(file, (0, 1000))
        context = list_files(str(place), None)
        tars.append(b"".join(context.tar("FROM x\n", context.digest())))
    assert tars[0] == tars[1]


@pytest.mark.parametrize("change", ["other", "long text", ""])
def test_a_file_that_changes_meanwhile_makes_no_image(tmp_path, change):
    """What is sent is not ended then."""
    write(tmp_path, "a.txt")
    context = list_files(str(tmp_path), None)
    digest = context.digest()
    (tmp_path / "a.txt").write_text(change)
    with pytest.raises(SchedulerError, match="changed while .* Submit again"):
        list(context.tar("FROM x\n", digest))


# ── the name ──────────────────────────────────────────────────────────────────


def name(place, text="FROM base\n", parents=(("base", "sha256:1"),), base="base"):
    return plan_image(base, str(place)).name(text, dict(parents))


def test_the_name_is_the_content(tmp_path):
    """Paths, modes, bytes, links, Dockerfile, the images below; not times, not other files."""
    place = tmp_path / "My Project!"
    write(place, "a", "b")
    first = name(place)
    assert first.startswith("phalanx/my-project:")
    os.utime(place / "a", (0, 0))
    write(place, "__pycache__/x.pyc")
    assert name(place) == first
    assert name(place, "FROM base\nRUN x\n") != first
    assert name(place, parents=[("base", "sha256:2")]) != first
    seen = {first}

    def is_new():
        count = len(seen)
        seen.add(name(place))
        return len(seen) > count

    (place / "a").write_text("else")
    assert is_new()
    (place / "a").chmod(0o755)
    assert is_new()
    (place / "a").rename(place / "c")
    assert is_new()
    (place / "link").symlink_to("c")
    assert is_new()
    (place / "link").unlink()
    (place / "link").symlink_to("b")
    assert is_new()


def test_a_repository_of_ones_own(tmp_path):
    """It is pushed there."""
    plan = plan_image("base", str(tmp_path), image_repo="localhost:5000/team/app")
    assert plan.is_pushed
    assert plan.name("FROM base", {}).startswith("localhost:5000/team/app:")


@pytest.mark.parametrize("repo", ["", "a:tag", "UPPER/case/", "a b", "https://x/y", "a//b", "-a"])
def test_what_is_no_repository_is_refused(tmp_path, repo):
    """Before anything is built."""
    with pytest.raises(ConfigError, match="must be a repository without a tag"):
        plan_image("base", str(tmp_path), image_repo=repo)


def test_a_role_without_an_image_is_refused(tmp_path):
    """There is nothing to lay the project over."""
    with pytest.raises(ConfigError, match="no image: name one with --image"):
        plan_image("", str(tmp_path))


@pytest.mark.parametrize(
    ("directory", "expected"),
    [("/x/My_App.v2", "my-app-v2"), ("/", "project"), ("/x/日本", "project"), ("/a" * 99, "a")],
)
def test_projects_are_named_as_images_may_be(directory, expected):
    """Whatever their directories are called."""
    assert project_name(directory) == expected


# ── Dockerfiles ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("workdir", "user", "expected"),
    [
        ("/app", "", "FROM b\nCOPY . .\n"),
        ("/app", "root", "FROM b\nCOPY . .\n"),
        ("/app", "me:us", "FROM b\nCOPY --chown=me:us . .\n"),
        ("", "0:0", "FROM b\nWORKDIR /workspace\nCOPY . .\n"),
        ("/", "", "FROM b\nWORKDIR /workspace\nCOPY . .\n"),
    ],
)
def test_a_project_is_laid_over_the_base_image(workdir, user, expected):
    """In its directory, for its user; never over the root of its file system."""
    assert dockerfile.overlay("b", workdir, user) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ARG IMAGE\nFROM $IMAGE\nCOPY . .", ["role"]),
        ("ARG IMAGE=x\nFROM ${IMAGE}", ["role"]),
        ("ARG V=3.12\nFROM --platform=linux/amd64 python:${V:-3}\n", ["python:3.12"]),
        ("from a as build\nFROM b\nCOPY --from=build /x /x\nCOPY --from=c /y /y", ["a", "b", "c"]),
        ("FROM scratch\nCOPY --from=0 a a", []),
        ("# FROM no\nFROM \\\n  a\n", ["a"]),
        ('ARG A="x"\nARG B=$A/y\nFROM $B', ["x/y"]),
        ("FROM ${NOTHING:+x}a${OTHER:-b}", ["ab"]),
        ("FROM a AS one\nFROM One AS two\nFROM two", ["a"]),
    ],
)
def test_the_images_that_a_dockerfile_stands_on(text, expected):
    """Their ids are part of the content."""
    given = dockerfile.arguments(text, "role", "/project")
    assert dockerfile.parents(text, given) == expected


def test_only_arguments_that_are_taken_are_given():
    """Engines complain of others."""
    assert dockerfile.arguments("ARG IMAGE\nFROM $IMAGE", "b", "/p") == {"IMAGE": "b"}
    assert dockerfile.arguments("FROM b\narg WORKSPACE=x", "b", "/p") == {"WORKSPACE": "/p"}
    assert dockerfile.arguments("FROM b", "b", "/p") == {}


def test_a_projects_own_dockerfile_is_used(tmp_path):
    """That of TorchX if there is no other."""
    write(tmp_path, "Dockerfile", "Dockerfile.torchx")
    assert plan_image("b", str(tmp_path)).dockerfile == "Dockerfile.torchx"
    write(tmp_path, "Dockerfile.phalanx")
    plan = plan_image("b", str(tmp_path))
    assert plan.dockerfile == "Dockerfile.phalanx"
    assert plan.own_dockerfile() == "Dockerfile.phalanx"


# ── which directory ───────────────────────────────────────────────────────────


def meant(own=None, given=None, *, runs_images=True):
    role = Role(name="r", image="i", entrypoint="e", workspace=own)
    return with_workspace(role, given, runs_images=runs_images).workspace


def test_the_workspace_of_a_role_that_runs_in_an_image(tmp_path, monkeypatch):
    """As elsewhere: its own, the one given, the current one; but "" is none."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "own/x", "given/x")
    assert meant("own", "given") == str(tmp_path / "own")
    assert meant(None, "given") == str(tmp_path / "given")
    assert meant() == str(tmp_path)
    assert meant(None, "") is None
    assert meant("own", "") == str(tmp_path / "own")
    assert meant(None, "", runs_images=False) == str(tmp_path)


def test_a_home_directory_is_copied_only_where_it_is_named(tmp_path, monkeypatch, caplog):
    """Nobody means to have it in an image."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert meant() is None
    assert f"runs its image as it is: {tmp_path} is not taken for a project" in caplog.text
    assert meant(None, ".") == str(tmp_path)
    assert meant(runs_images=False) == str(tmp_path)


# ── what is said meanwhile ────────────────────────────────────────────────────


def test_long_work_says_what_it_does(monkeypatch, capsys):
    """The steps, and now and then how far it is; nothing that a terminal would act on."""
    monkeypatch.setattr(progress, "_QUIET", 0.0)
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    text = ""

    def says(words):
        nonlocal text
        text += capsys.readouterr().err
        return words in text

    with progress.ImageProgress("building it") as shown:
        wait_until(lambda: says("phalanx: building it\n"))
        shown.step("step 1, \x1b[2Jx")
        shown.how_far("10 of 20 MiB")
        wait_until(lambda: says("phalanx: step 1, \\x1b[2Jx\nphalanx: 10 of 20 MiB\n"))
    assert text.count("10 of 20") == 1


def test_quick_work_says_nothing(monkeypatch, capsys):
    """It has ended before anybody wonders."""
    monkeypatch.setattr(progress, "_QUIET", 60.0)
    with progress.ImageProgress("building it") as shown:
        shown.step("step 1")
    assert capsys.readouterr().err == ""
