"""Images of projects, built by a real engine."""

import base64
import gc
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import uuid

import docker as docker_client
import pytest

from phalanx._images import builder
from phalanx._images.builder import ensure_image, find_image, provide
from phalanx._images.old_images import old_images, remove_images
from phalanx._images.plan import plan_image
from phalanx.errors import SchedulerError
from tests.cluster.docker import IMAGE, Engine
from tests.cluster.registry import PASSWORD, USER, Registry
from tests.process.terminal import Terminal


@pytest.fixture
def engine(in_docker):
    client = docker_client.APIClient(base_url=in_docker.host, version="auto")
    yield client
    client.close()


@pytest.fixture
def project(tmp_path, in_docker):
    """A project of its own name, whose images are removed."""
    name = f"project-{uuid.uuid4().hex[:8]}"
    place = tmp_path / name
    place.mkdir()
    (place / "main.py").write_text("print('hello')\n")
    yield place
    images = in_docker.docker("images", "-q", f"phalanx/{name}").split()
    if images:
        in_docker.docker("rmi", "-f", *images, check=False)


@pytest.fixture
def base(in_docker, tmp_path):
    """Make an image over the tests' own, by lines of a Dockerfile."""
    made = []

    def make(*lines):
        tag = f"phalanx-tests/own:{uuid.uuid4().hex}"
        text = "\n".join([f"FROM {IMAGE}", *lines])
        in_docker.docker("build", "-t", tag, "-", input=text)
        made.append(tag)
        return tag

    yield make
    if made:
        in_docker.docker("rmi", "-f", *made)


def images_of(docker, project):
    return docker.docker("images", "-q", f"phalanx/{project.name}").split()


def run(docker, image, *command):
    return docker.docker("run", "--rm", image, *command)


def test_a_project_is_built_once(in_docker, engine, project, capfd):
    """Its files are where the image starts, and an unchanged one is not built again."""
    image = provide(plan_image(IMAGE, str(project)), engine)
    assert run(in_docker, image, "python3", "main.py") == "hello\n"
    found = find_image(engine, image)
    assert provide(plan_image(IMAGE, str(project)), engine) == image
    assert find_image(engine, image) == found
    (project / "main.py").write_text("print('changed')\n")
    changed = provide(plan_image(IMAGE, str(project)), engine)
    assert changed != image
    assert run(in_docker, changed, "python3", "main.py") == "changed\n"
    assert len(images_of(in_docker, project)) == 2
    labels = find_image(engine, changed)["Config"]["Labels"]
    assert labels[builder.PROJECT_LABEL] == project.name
    assert str(project) not in str(find_image(engine, changed))


def test_an_unchanged_project_asks_the_engine_to_build_nothing(engine, project, monkeypatch):
    """The name is looked up first."""
    image = provide(plan_image(IMAGE, str(project)), engine)
    monkeypatch.setattr(engine, "build", None)
    assert provide(plan_image(IMAGE, str(project)), engine) == image


def test_planning_builds_nothing(in_docker, project, monkeypatch):
    """It does not even ask the engine."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    plan = plan_image(IMAGE, str(project))
    assert (plan.num_files, plan.dockerfile, plan.is_pushed) == (1, None, False)
    assert images_of(in_docker, project) == []


def test_ignored_files_are_not_in_the_image(in_docker, engine, project):
    """Nor are the files by which they are ignored, and ours."""
    for name in ("secret", "data/x", "data/keep", "cache/x"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("x")
    (project / ".dockerignore").write_text("secret\ndata\n!data/keep\n")
    (project / ".phalanxignore").write_text("cache/\n.phalanxignore\n")
    image = provide(plan_image(IMAGE, str(project)), engine)
    assert run(in_docker, image, "sh", "-c", "ls -A . data").split() == [
        *(".:", "data", "main.py", "data:", "keep")
    ]


def test_files_links_modes_and_odd_names_arrive(in_docker, engine, project):
    """As they are here; root's, as Docker has it."""
    long, odd = "x" * 150 + "/" + "y" * 150, b"odd \xff\n name"
    (project / ("x" * 150)).mkdir()
    (project / long).write_text("long")
    (project / os.fsdecode(odd)).write_text("odd")
    (project / "run").write_text("#!/bin/sh\necho ran\n")
    (project / "run").chmod(0o755)
    (project / "link").symlink_to("main.py")
    image = provide(plan_image(IMAGE, str(project)), engine)
    program = (
        "import os, sys; print([os.popen('./run').read(), os.readlink('link'), open(sys.argv[1])."
        "read(), open(bytes.fromhex(sys.argv[2])).read(), os.stat('main.py').st_uid])"
    )
    said = run(in_docker, image, "python3", "-c", program, long, odd.hex())
    assert said == "['ran\\n', 'main.py', 'long', 'odd', 0]\n"


def test_the_working_directory_of_the_image_is_kept(in_docker, engine, project, base):
    """And what it has there."""
    below = base("WORKDIR /deep/place", "RUN touch before")
    image = provide(plan_image(below, str(project)), engine)
    assert run(in_docker, image, "sh", "-c", "pwd; ls") == "/deep/place\nbefore\nmain.py\n"


def test_an_image_without_a_working_directory_gets_one(in_docker, engine, project):
    """A project with a `bin` must not be laid over `/bin`."""
    (project / "bin").mkdir()
    (project / "bin" / "sh").write_text("broken")
    image = provide(plan_image(IMAGE, str(project)), engine)
    assert run(in_docker, image, "sh", "-c", "pwd; ls") == "/workspace\nbin\nmain.py\n"


def test_the_user_of_the_image_owns_the_project(in_docker, engine, project, base):
    """Files that only their owner may read are read."""
    below = base("WORKDIR /app", "RUN chown user /app", "USER user")
    (project / "main.py").chmod(0o600)
    image = provide(plan_image(below, str(project)), engine)
    command = "id -un; python3 main.py; touch new && ls"
    assert run(in_docker, image, "sh", "-c", command).split() == ["user", "hello", "main.py", "new"]


@pytest.mark.parametrize("name", ["Dockerfile.phalanx", "Dockerfile.torchx"])
def test_a_projects_own_dockerfile(in_docker, engine, project, name):
    """It is given the role's image, and is part of the content."""
    (project / name).write_text(
        "ARG IMAGE\nFROM $IMAGE\nWORKDIR /own\nCOPY main.py .\nRUN echo one > made\n"
    )
    image = provide(plan_image(IMAGE, str(project)), engine)
    assert run(in_docker, image, "sh", "-c", "pwd; ls; cat made").split() == [
        *("/own", "made", "main.py", "one")
    ]
    text = (project / name).read_text()
    (project / name).write_text(text.replace("one", "two"))
    again = provide(plan_image(IMAGE, str(project)), engine)
    assert run(in_docker, again, "cat", "made") == "two\n"


def test_an_ignored_dockerfile_is_used_and_not_copied(in_docker, engine, project):
    """As Docker has it."""
    (project / ".dockerignore").write_text("Dockerfile*\n")
    (project / "Dockerfile.phalanx").write_text(f"FROM {IMAGE}\nWORKDIR /x\nCOPY . .\n")
    image = provide(plan_image("of-no-account", str(project)), engine)
    assert run(in_docker, image, "ls", "-A") == "main.py\n"


def test_another_base_image_of_the_same_name_is_another_image(in_docker, engine, project, base):
    """Its id is part of the content."""
    first, second = base("RUN echo 1 > /version"), base("RUN echo 2 > /version")
    name = base()
    in_docker.docker("tag", first, name)
    one = provide(plan_image(name, str(project)), engine)
    in_docker.docker("tag", second, name)
    two = provide(plan_image(name, str(project)), engine)
    assert [run(in_docker, image, "cat", "/version") for image in (one, two)] == ["1\n", "2\n"]


def test_old_images_are_found_and_removed(in_docker, engine, project):
    """Those of this user that no container has."""
    first = provide(plan_image(IMAGE, str(project)), engine)
    (project / "main.py").write_text("print('second')\n")
    second = provide(plan_image(IMAGE, str(project)), engine)
    container = in_docker.docker("create", second).strip()
    mine = lambda before: [i for i in old_images(engine, before) if f"/{project.name}:" in i]
    try:
        assert mine(time.time() - 3600) == []
        assert mine(time.time() + 1) == [first]
        assert remove_images(engine, [first, second, "phalanx/nothing:1"]) == [
            *(first, "phalanx/nothing:1")
        ]
    finally:
        in_docker.docker("rm", container)
    assert mine(time.time() + 1) == [second]


# ── what goes wrong ───────────────────────────────────────────────────────────


def test_a_step_that_fails_is_named_with_its_output(in_docker, engine, project):
    """And leaves no container."""
    (project / "Dockerfile.phalanx").write_text(
        f"FROM {IMAGE}\nRUN echo early\nRUN echo out; echo wrong >&2; exit 3; {project.name}\n"
    )
    with pytest.raises(SchedulerError) as raised:
        provide(plan_image(IMAGE, str(project)), engine)
    text = str(raised.value)
    assert text.startswith(f"cannot build the image of {project}: it failed in step 3, RUN echo")
    assert "non-zero code: 3. The output of that step:\n" in text
    assert sorted(re.findall("^  (.*)$", text, re.MULTILINE)) == ["out", "wrong"]
    assert images_of(in_docker, project) == []
    assert project.name not in in_docker.docker("ps", "-a", "--no-trunc")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("FROM\n", "FROM requires"),
        ("FRM x\n", "unknown instruction: FRM"),
        (f"FROM {IMAGE}\nCOPY nothing .\n", r"step 2, COPY nothing \.: COPY failed: .*nothing"),
        ("", "file with no instructions|cannot be empty"),
        (
            f"FROM {IMAGE}\nRUN --mount=type=cache,target=/x ls\n",
            "build the image with docker build",
        ),
    ],
)
def test_a_broken_dockerfile_is_one_sentence(engine, project, text, reason):
    """With the engine's own reason."""
    (project / "Dockerfile.phalanx").write_text(text)
    with pytest.raises(SchedulerError, match=f"^cannot build the image of .*{reason}") as raised:
        provide(plan_image(IMAGE, str(project)), engine)
    assert "Traceback" not in str(raised.value)


@pytest.mark.parametrize("own", [True, False])
def test_a_base_image_that_is_nowhere_is_said_with_the_next_command(engine, project, own):
    """One sentence."""
    name = "127.0.0.1:9/no/such:1"
    if own:
        (project / "Dockerfile.phalanx").write_text("ARG IMAGE\nFROM $IMAGE\n")
    with pytest.raises(SchedulerError) as raised:
        provide(plan_image(name, str(project)), engine)
    text = str(raised.value)
    assert text.startswith(f"the Docker engine has no image '{name}' and cannot pull it: ")
    assert text.endswith(f". Try: docker pull {name}")
    assert "\n" not in text


def test_a_base_image_is_not_pulled_where_that_is_not_wanted(engine, project):
    """pull=never."""
    with pytest.raises(SchedulerError, match=r"no image 'nowhere:1', and pull=never\. Try: docker"):
        provide(plan_image("nowhere:1", str(project)), engine, pull="never")
    assert ensure_image(engine, IMAGE, "never").startswith("sha256:")


def test_a_project_that_changes_while_it_is_sent_gives_no_image(in_docker, engine, project):
    """The engine does not take half of it for the whole."""
    (project / "large").write_bytes(bytes(5 << 20))
    plan = plan_image(IMAGE, str(project))
    (project / "main.py").write_text("print('other')\n")
    with pytest.raises(SchedulerError, match=r"changed while the image was being built\. Submit"):
        provide(plan, engine)
    assert images_of(in_docker, project) == []


def test_an_engine_that_is_gone_is_said(project):
    """One sentence with the next command."""
    client = docker_client.APIClient(base_url="unix:///nowhere/docker.sock", version="1.41")
    with pytest.raises(
        SchedulerError, match=r"connection to the Docker engine broke.* docker info"
    ):
        provide(plan_image(IMAGE, str(project)), client)
    client.close()
    gc.collect()  # the client's own socket, which was never connected


@pytest.mark.parametrize("large", [30, 100])
def test_a_full_disk_is_said(small_engine, project, large):
    """Whether the engine takes the project in and cannot copy it, or takes only a part of it."""
    docker = small_engine
    engine = docker_client.APIClient(base_url=docker.host, version="auto")
    base = import_small(docker, project.parent)
    (project / "large").write_bytes(os.urandom(large << 20))
    with pytest.raises(SchedulerError, match="^cannot build .*no space left on device") as raised:
        provide(plan_image(base, str(project)), engine)
    assert len(str(raised.value)) < 600
    assert images_of(docker, project) == []
    (project / "large").unlink()
    provide(plan_image(base, str(project)), engine)
    engine.close()


@pytest.fixture(scope="module")
def small_engine(docker):
    """An engine of its own with a small disk."""
    engine = Engine()
    try:
        engine.stop()
        data = engine.place / "data"
        engine.inside("mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", data)
        engine.start()
        yield engine
    finally:
        engine.close()


# ── registries ────────────────────────────────────────────────────────────────


@pytest.fixture
def registry(in_docker, tmp_path):
    """One that anybody may use."""
    made = Registry(in_docker, tmp_path / "registry")
    yield made
    made.close()


@pytest.fixture
def private(in_docker, tmp_path):
    """One that wants a password."""
    made = Registry(in_docker, tmp_path / "registry", private=True)
    yield made
    made.close()


@pytest.fixture
def configured(in_docker, tmp_path, monkeypatch):
    """A client whose user has this Docker configuration."""
    clients = []

    def make(config):
        place = tmp_path / "config"
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config))
        monkeypatch.setenv("DOCKER_CONFIG", str(place))
        clients.append(docker_client.APIClient(base_url=in_docker.host, version="auto"))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def import_small(docker, place):
    """An image with one small file."""
    name = f"phalanx-tests/small:{uuid.uuid4().hex}"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    (place / "small.tar").write_bytes(content.getvalue())
    docker.docker("import", place / "small.tar", name)
    return name


@pytest.fixture
def pushed(in_docker, project):
    """Plans of the project over an image that is pushed at once."""
    name = import_small(in_docker, project.parent)
    yield lambda registry: plan_image(
        name, str(project), image_repo=f"{registry.address}/{project.name}"
    )
    in_docker.docker("rmi", "-f", name)


def forget(docker, *images):
    """The engine has them no longer; the registry has."""
    docker.docker("rmi", "-f", *images)


def test_an_image_is_pushed_once(in_docker, engine, project, pushed, registry):
    """Others can pull it; an unchanged project is neither pushed nor built again."""
    image = provide(pushed(registry), engine)
    assert image.startswith(f"{registry.address}/{project.name}:")
    uploads = registry.requests("PUT")
    assert uploads > 0
    assert provide(pushed(registry), engine) == image
    forget(in_docker, image)
    assert provide(pushed(registry), engine) == image
    assert find_image(engine, image) is None
    assert registry.requests("PUT") == uploads
    in_docker.docker("pull", image)
    (project / "main.py").write_text("print('changed')\n")
    changed = provide(pushed(registry), engine)
    assert registry.requests("PUT") > uploads
    forget(in_docker, image, changed)


@pytest.mark.parametrize("has_terminal", [True, False])
def test_how_far_a_push_is_is_said(in_docker, project, pushed, registry, has_terminal):
    """Line by line, on a terminal and off one; here sooner, and more often."""
    (project / "large").write_bytes(os.urandom(24 << 20))
    plan = pushed(registry)
    program = f"""if True:
        import docker
        from phalanx._images import progress
        from phalanx._images.builder import provide
        from phalanx._images.plan import plan_image
        progress._QUIET = progress._PAUSE = 0.005
        engine = docker.APIClient(base_url={in_docker.host!r}, version="auto")
        plan = plan_image({plan.base!r}, {str(project)!r}, image_repo={plan.repository!r})
        print("pushed", provide(plan, engine))
        engine.close()
    """
    command = [sys.executable, "-c", program]
    if has_terminal:
        shown = Terminal(*command)
        assert shown.finish() == 0, shown.raw
        said = shown.lines
    else:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        said = said.splitlines()
    (image,) = in_docker.docker(
        "images", "--format", "{{.Repository}}:{{.Tag}}", plan.repository
    ).split()
    at = said.index(f"phalanx: pushing the image {image}")
    far = [re.fullmatch(r"phalanx: (\d+) of (\d+) MiB", line) for line in said[at + 1 :]]
    far = [tuple(map(int, found.groups())) for found in far if found]
    assert far
    assert far == sorted(far)
    assert far[-1][1] >= 24
    forget(in_docker, image)


def test_an_image_that_was_built_and_not_pushed_is_pushed(
    in_docker, engine, project, pushed, registry
):
    """The registry was away when it was built."""
    plan = pushed(registry)
    registry.close()
    with pytest.raises(SchedulerError, match=f"^cannot push {registry.address}/.* refused"):
        provide(plan, engine)
    again = Registry(in_docker, project.parent / "again")
    plan = pushed(again)
    image = provide(plan, engine)
    assert again.requests("PUT") > 0
    again.close()
    forget(in_docker, image)


def test_a_base_image_is_pulled(in_docker, engine, project, registry):
    """When the engine does not have it; with pull=always, when there is a newer one."""
    name = f"{registry.address}/base:1"
    in_docker.docker("tag", IMAGE, name)
    in_docker.docker("push", name)
    forget(in_docker, name)
    image = provide(plan_image(name, str(project)), engine)
    assert run(in_docker, image, "python3", "main.py") == "hello\n"
    in_docker.docker("build", "-t", name, "-", input=f"FROM {IMAGE}\nRUN echo new > /new\n")
    in_docker.docker("push", name)
    in_docker.docker("tag", IMAGE, name)
    assert provide(plan_image(name, str(project)), engine) == image
    newer = provide(plan_image(name, str(project)), engine, pull="always")
    assert run(in_docker, newer, "cat", "/new") == "new\n"
    forget(in_docker, name)


def test_who_may_not_push_is_told_how_to_log_in(in_docker, configured, project, pushed, private):
    """One sentence."""
    with pytest.raises(SchedulerError) as raised:
        provide(pushed(private), configured({}))
    text = str(raised.value)
    assert text.startswith(f"cannot push {private.address}/{project.name}:")
    assert text.endswith(f" Log in first: docker login {private.address}")
    assert "\n" not in text


def test_the_password_is_from_the_users_configuration(
    in_docker, configured, project, pushed, private
):
    """As `docker login` writes it."""
    both = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    client = configured({"auths": {private.address: {"auth": both}}})
    image = provide(pushed(private), client)
    uploads = private.requests("PUT")
    assert provide(pushed(private), client) == image
    assert private.requests("PUT") == uploads > 0
    forget(in_docker, image)


def test_the_password_is_from_a_credential_helper(
    in_docker, configured, project, pushed, private, tmp_path, monkeypatch
):
    """The program that the configuration names."""
    helper = tmp_path / "bin" / "docker-credential-tests"
    helper.parent.mkdir()
    known = {"ServerURL": private.address, "Username": USER, "Secret": PASSWORD}
    helper.write_text(f"#!/bin/sh\ncat > /dev/null\necho '{json.dumps(known)}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
    client = configured({"credHelpers": {private.address: "tests"}})
    image = provide(pushed(private), client)
    assert private.requests("PUT") > 0
    forget(in_docker, image)
