"""What a TorchX user's notes show, with our names; the page on plugins is in test_plugins.py."""

import json

import pytest

from phalanx import specs
from tests.process.commands import phalanx
from tests.process.test_plugins import RESOURCES, SCHEDULER, Environment


@pytest.fixture(autouse=True)
def own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_an_app_spec_that_runs_python():
    """As the notes have it: names, image and all."""

    def python(
        m=None, cmd=("hello.py",), args=("aptg",), num_replicas=1, cpu=1, gpu=0, memMB=64, h=None
    ):
        return specs.AppDef(
            name="torchx_utils_python",
            roles=[
                specs.Role(
                    name="python",
                    image="ghcr.io/pytorch/torchx:latest",
                    entrypoint="python",
                    num_replicas=num_replicas,
                    resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
                    args=[*cmd, *args],
                    env={"HYDRA_MAIN_MODULE": m} if m else {},
                )
            ],
        )

    role = python().roles[0]
    assert (role.args, role.env, role.resource.memMB) == (["hello.py", "aptg"], {}, 64)
    assert python(m="x", h="gpu.small").roles[0].env == {"HYDRA_MAIN_MODULE": "x"}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("builtins", "Found 10 builtin components:"),
        ("runopts", "local_cwd:"),
        ("runopts local_cwd", "log_dir (str)"),
        ("run -s local_cwd dist.ddp --help", "Run a script or module on every worker"),
        ("run --dryrun -s local_cwd utils.python hello.py aptg", "=== SCHEDULER REQUEST ==="),
    ],
)
def test_the_commands_of_the_notes(command, said):
    """Each does what they say."""
    done = phalanx(*command.split())
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_local_cwd_runs_in_the_current_directory(tmp_path):
    """As plain processes."""
    (tmp_path / "hello.py").write_text("import os, sys; print(os.getcwd(), sys.argv[1])\n")
    done = phalanx("run", "--log", "-s", "local_cwd", "utils.python", "hello.py", "aptg")
    assert done.stderr.startswith(f"python/0 {tmp_path} aptg\n")


def test_a_project_with_a_scheduler_and_a_named_resource(tmp_path):
    """The setup file of the page on plugins, its blank in the name included."""
    environment = Environment(tmp_path / "venv")
    files = {
        "my/__init__.py": "",
        "my/custom/__init__.py": "",
        "my/custom/scheduler.py": SCHEDULER,
        "my_module/__init__.py": "",
        "my_module/resources.py": RESOURCES,
    }
    entry_points = {
        "phalanx.schedulers": ["my_scheduler = my.custom.scheduler:create_scheduler"],
        "phalanx.named_resources": ["gpu_x2 = my_module.resources:gpu_x2"],
    }
    environment.install("project foobar", files, entry_points)
    assert set(json.loads(environment("runopts", "--json").stdout)) == {
        *(
            "local_cwd",
            "ssh",
            "slurm",
            "local_docker",
            "kubernetes",
            "ray",
            "aws_batch",
            "my_scheduler",
        ),
    }
    done = environment("run", "--dryrun", "utils.sh", "-h", "gpu_x2", "true")
    assert '"gpu": 2' in done.stdout, done.stderr
