"""Apps in containers with the project in the image: `--workspace`, on a real engine."""

import json
import os
import signal
import subprocess
import sys
import uuid

import pytest

from phalanx.compat.torchx.runner.api import Runner as TorchxRunner
from phalanx.runner import get_runner
from phalanx.specs import AppDef, AppState, Role
from tests.cluster.docker import IMAGE
from tests.conftest import wait_until
from tests.process.commands import phalanx

OPTIONS = {"pull": "never", "stop_grace": 0}


@pytest.fixture
def project(tmp_path, in_docker, monkeypatch):
    """The current directory, whose images are removed."""
    place = tmp_path / f"project-{uuid.uuid4().hex[:8]}"
    place.mkdir()
    (place / "main.py").write_text("print('hello')\n")
    monkeypatch.chdir(place)
    yield place
    images = images_of(in_docker, place)
    if images:
        in_docker.docker("rmi", "-f", *images)


def images_of(docker, project):
    found = docker.docker("images", "--format", "{{.Repository}}:{{.Tag}}")
    return [name for name in found.split() if f"/{project.name}:" in name]


def containers(docker, word):
    """Those in whose command a word is: others' tests have containers, too."""
    listed = docker.docker("ps", "-a", "--no-trunc", "--format", "{{.Command}}").splitlines()
    return [line for line in listed if word in line]


def app(*command, image=IMAGE):
    return AppDef("app", [Role(name="r", image=image, entrypoint=command[0], args=[*command[1:]])])


def printed(runner, handle):
    """What an app printed, which is then deleted."""
    status = runner.wait(handle, 0.1)
    assert status.state is AppState.SUCCEEDED, status
    lines = [line.rstrip("\n") for line in runner.log_lines(handle, "r", 0)]
    runner.delete(handle)
    return lines


def test_apps_run_with_the_project_as_it_was_when_they_were_submitted(in_docker, project):
    """An unchanged project has one image."""
    with get_runner("tests") as runner:
        run = lambda: runner.run(app("python3", "main.py"), "local_docker", OPTIONS)
        first = run()
        again = run()
        assert len(images_of(in_docker, project)) == 1
        (project / "main.py").write_text("print('changed')\n")
        changed = run()
        assert len(images_of(in_docker, project)) == 2
        assert printed(runner, first) == printed(runner, again) == ["hello"]
        assert printed(runner, changed) == ["changed"]


def test_none_runs_the_image_as_it_is(in_docker, project):
    """And is what TorchX's programs mean that name none."""
    command = app("ls", "/workspace/main.py")
    with get_runner("tests") as runner, TorchxRunner("tests") as torchx:
        for one, workspace in ((runner, ""), (torchx, None)):
            handle = one.run(command, "local_docker", OPTIONS, workspace)
            assert one.wait(handle, 0.1).state is AppState.FAILED
            one.delete(handle)
        assert images_of(in_docker, project) == []
        handle = torchx.run(command, "local_docker", OPTIONS, str(project))
        assert printed(torchx, handle) == ["/workspace/main.py"]


def test_an_empty_project_builds_nothing(in_docker, project):
    """The image has it all."""
    (project / "main.py").unlink()
    with get_runner("tests") as runner:
        handle = runner.run(app("echo", "hi"), "local_docker", OPTIONS)
        assert printed(runner, handle) == ["hi"]
    assert images_of(in_docker, project) == []


def command(*words, workspace=None):
    more = () if workspace is None else ("--workspace", workspace)
    return phalanx("run", "-s", "local_docker", "--pull", "never", *more, *words)


def test_the_command_line(in_docker, project):
    """The current directory by default; with --dryrun nothing is built, and it is said what."""
    words = ("utils.sh", "--image", IMAGE, "--", "cat", "main.py")
    shown = command("--dryrun", *words)
    assert shown.returncode == 0, shown.stderr
    (image,) = json.loads(shown.stdout.partition("=== SCHEDULER REQUEST ===")[2])["images"]
    assert (image["from"], image["project"], image["files"]) == (IMAGE, str(project), 1)
    assert images_of(in_docker, project) == []
    done = command("--wait", "--log", *words)
    assert (done.returncode, "sh/0 print('hello')\n" in done.stderr) == (0, True), done
    phalanx("delete", done.stdout.strip())
    assert len(images_of(in_docker, project)) == 1
    none = command("--wait", *words, workspace="")
    assert none.returncode == 1
    phalanx("delete", none.stdout.strip())


def test_a_build_that_fails_is_one_sentence_and_leaves_nothing(in_docker, project):
    """Nothing was submitted."""
    text = f"ARG IMAGE\nFROM $IMAGE\nRUN echo why >&2; exit 3; {project.name}\n"
    (project / "Dockerfile.phalanx").write_text(text)
    done = command("utils.echo", "--image", IMAGE)
    assert (done.returncode, done.stdout) == (1, "")
    text = done.stderr.partition("cannot build the image of ")[2]
    assert text.startswith(f"{project}: it failed in step 3, RUN echo why")
    assert text.endswith("non-zero code: 3. The output of that step:\n  why\n")
    assert containers(in_docker, project.name) == []


def test_ctrl_c_while_an_image_is_built_ends_the_build(in_docker, project):
    """Nothing is submitted, nothing is left, and there is no traceback of ours."""
    (project / "Dockerfile.phalanx").write_text(f"FROM {IMAGE}\nRUN : {project.name}; sleep 999\n")
    words = ("run", "-s", "local_docker", "utils.echo", "--image", IMAGE)
    with subprocess.Popen(
        [sys.executable, "-m", "phalanx", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        wait_until(lambda: containers(in_docker, project.name), 30)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, "Traceback" in err) == (130, "", False), err
    assert "check whether it was submitted: phalanx list -s local_docker\n" in err
    wait_until(lambda: not containers(in_docker, project.name), 30)
    assert images_of(in_docker, project) == []


def test_a_base_image_that_is_missing_is_said_with_the_next_command(in_docker, project):
    """Before anything else."""
    done = command("utils.echo", "--image", "nowhere/to/be:found")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "phalanx run: the Docker engine has no image 'nowhere/to/be:found', and pull=never. Try: "
        "docker pull nowhere/to/be:found\n"
    )


def test_clean_deletes_images_that_no_container_has(in_docker, project, monkeypatch):
    """Of apps that have ended, once they are deleted; and of this user's."""
    monkeypatch.setenv("LOGNAME", project.name)  # or it would delete other tests' images
    done = command("--wait", "utils.sh", "--image", IMAGE, "--", "true")
    clean = lambda *more: json.loads(phalanx("clean", "--json", *more).stdout)
    (image,) = images_of(in_docker, project)
    assert image not in clean("--images", "--older-than", "0", "--dry-run")
    assert image not in clean("--images")
    phalanx("delete", done.stdout.strip())
    assert image in clean("--images", "--older-than", "0", "--dry-run")
    assert images_of(in_docker, project) == [image]
    assert image in clean("--images", "--older-than", "0")
    assert images_of(in_docker, project) == []


def test_clean_without_an_engine_says_so(in_docker, monkeypatch):
    """It was asked for."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert phalanx("clean").returncode == 0
    done = phalanx("clean", "--images")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "/nowhere/docker.sock" in done.stderr
