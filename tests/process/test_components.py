"""The components that come with Phalanx, each really run."""

import json
import socket
import textwrap
import urllib.request

import pytest

from phalanx.errors import ConfigError
from phalanx._registry.recorded_app import by_handle
from phalanx._runner import catalog
from phalanx.runner import get_runner
from phalanx.specs import AppState
from tests.conftest import wait_until


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with get_runner() as made:
        yield made
        for app in made.list():
            made.cancel(app.app_handle)


def run(runner, component, *args):
    handle = runner.run_component(component, list(args))
    return runner.wait(handle), list(runner.log_lines(handle))


def test_touch_and_copy(runner, tmp_path):
    """Paths, and places that fsspec knows."""
    assert run(runner, "utils.touch", "--file", "a")[0].state is AppState.SUCCEEDED
    (tmp_path / "a").write_text("content")
    assert run(runner, "utils.copy", "--src", "a", "--dst", "b")[0].state is AppState.SUCCEEDED
    url = f"file://{tmp_path}/c"
    status, lines = run(runner, "utils.copy", "--src", "b", "--dst", url)
    assert status.state is AppState.SUCCEEDED, lines
    assert (tmp_path / "c").read_text() == "content"
    status, lines = run(runner, "utils.copy", "--src", "nowhere", "--dst", "d")
    assert (status.exit_code, "cannot copy nowhere to d" in lines[0]) == (1, True)


def test_binary_and_python(runner):
    """A program with arguments; a module; a command."""
    assert run(runner, "utils.binary", "--entrypoint", "echo", "--", "-n", "x")[1] == ["x"]
    assert run(runner, "utils.python", "-c", "print(2)")[1] == ["2"]
    status, lines = run(runner, "utils.python", "-m", "json.tool", "--", "--help")
    assert (status.state, "usage" in lines[0]) == (AppState.SUCCEEDED, True)
    for args in (["-m", "a", "-c", "b"], []):
        with pytest.raises(ConfigError, match="utils.python"):
            runner.dryrun_component("utils.python", args)


def test_hydra(runner, tmp_path):
    """The app that a configuration describes, with overrides."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "job.yaml").write_text(
        "text: configured\n"
        "app:\n  _target_: phalanx.components.utils.echo\n  msg: ${text}\n  num_replicas: 2\n"
    )
    args = ["--config_name", "job", "--config_dir", "conf"]
    assert run(runner, "utils.hydra", *args)[1] == ["configured"]
    assert run(runner, "utils.hydra", *args, "text=overridden")[1] == ["overridden"]
    with pytest.raises(ConfigError, match="no such directory: nowhere"):
        runner.dryrun_component("utils.hydra", ["--config_name", "x", "--config_dir", "nowhere"])


def test_tensorboard_serves_until_a_file_appears(runner, tmp_path):
    """Really."""
    with socket.create_server(("localhost", 0)) as probe:
        port = probe.getsockname()[1]
    (tmp_path / "logs").mkdir()
    args = {"logdir": "logs", "port": port, "start_on_file": "start", "exit_on_file": "stop"}
    handle = runner.run_component("metrics.tensorboard", args)
    (tmp_path / "start").touch()

    def answers():
        try:
            with urllib.request.urlopen(f"http://localhost:{port}/data/environment") as page:
                return json.load(page)
        except OSError:
            return None

    assert "version" in wait_until(answers, message="it never answered")
    (tmp_path / "stop").touch()
    status = runner.wait(handle)
    assert status.state is AppState.SUCCEEDED, list(runner.log_lines(handle))


@pytest.mark.parametrize(
    ("j", "replicas", "words"),
    [
        ("4", 1, "--nnodes 1 --nproc_per_node 4"),
        ("1x4", 1, "--nnodes 1 --nproc_per_node 4"),
        ("2x1", 2, "--nnodes 2 --nproc_per_node 1"),
        ("2:3x1", 3, "--nnodes 2:3 --nproc_per_node 1"),
    ],
)
def test_the_shape_of_ddp(j, replicas, words):
    """`-j`, names, port."""
    app = catalog.find("dist.ddp").build(["-j", j, "--name", "exp/run", "-m", "pkg.train"])
    (role,) = app.roles
    assert (app.name, role.name, role.num_replicas) == ("run", "train", replicas)
    assert words in " ".join(role.args)
    assert role.env["PHALANX_EXPERIMENT"] == "exp"
    assert role.port_map == ({"c10d": 29500} if replicas > 1 else {})


def test_the_shape_of_spmd():
    """A worker for each GPU of the resource, where none is said."""
    app = catalog.find("dist.spmd").build(["-j", "2", "-h", "gpu.large", "train.py", "x"])
    assert app.roles[0].num_replicas == 2
    assert "--nproc_per_node 4" in " ".join(app.roles[0].args)
    assert app.roles[0].args[-1] == "x"


def test_an_error_of_a_worker_is_the_replicas(runner, tmp_path):
    """Not torchrun's own."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import os
        if os.environ["RANK"] == "1":
            raise KeyError("mine")
        """)
    )
    status, lines = run(runner, "dist.ddp", "-j", "1x2", "--script", "train.py")
    assert status.state is AppState.FAILED
    assert status.roles[0].replicas[0].error == "KeyError: 'mine'", "\n".join(lines)


def test_files_of_the_workers_are_with_the_app(runner, tmp_path, monkeypatch):
    """Not under the temporary directory, where they would stay; and gone when it is deleted."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['RANK'])\n")
    handle = runner.run_component("dist.ddp", ["-j", "1x2", "--script", "train.py"])
    assert runner.wait(handle).state.value == "SUCCEEDED"
    assert not list(place.glob("phalanx_logs_*"))
    app = by_handle(*handle.replace("://", "/").split("/"))
    written = {path.read_text() for path in app.path.rglob("attempt_0/*/stdout.log")}
    assert written == {"rank 0\n", "rank 1\n"}
    runner.delete(handle)
    assert not app.path.exists()
