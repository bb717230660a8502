"""What people who come from TorchX type and configure, from outside."""

import json

import pytest

from phalanx.components import utils
from phalanx.runner import get_runner
from phalanx.runner.config import apply
from phalanx.specs import AppDef, AppState, Role
from phalanx.testing import ComponentTestCase
from tests.process.commands import phalanx


@pytest.fixture(autouse=True)
def own_registry(tmp_path, monkeypatch):
    """Apps and configuration of this test alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()


def args_of(done):
    """The arguments of the app that a dry run shows."""
    assert done.returncode == 0, done.stderr
    app = json.loads(done.stdout.partition("=== SCHEDULER REQUEST")[0].partition("===\n")[2])
    return app["roles"][0]["args"]


def dryrun(*words):
    return phalanx("run", "--dryrun", *words)


def test_a_configured_component_runs_when_none_is_named(tmp_path):
    """With its configured arguments, and those that are given; other runs are as they were."""
    (tmp_path / ".phalanxconfig").write_text(
        '[command.run]\ncomponent = "utils.echo"\n[component."utils.echo"]\nmsg = "configured"\n'
        '[component."utils.python"]\nm = "train"\nargs = "--lr 0.1 \'a b\'"\n'
    )
    assert args_of(dryrun()) == ["configured"]
    assert args_of(dryrun("--msg", "given")) == ["given"]
    assert args_of(dryrun("--", "--msg", "given")) == ["given"]
    assert args_of(dryrun("--log_dir", "logs", "--msg", "given")) == ["given"]
    assert args_of(dryrun("utils.python")) == ["-m", "train", "--lr", "0.1", "a b"]
    assert args_of(dryrun("utils.python", "--", "own")) == ["-m", "train", "own"]
    assert args_of(dryrun("utils.touch", "--file", "x")) == ["x"]
    assert "has no option '--mgs'. Did you mean --msg?" in dryrun("--msg", "x", "--mgs", "y").stderr


def test_a_configured_component_that_is_wrong_breaks_no_other_run(tmp_path):
    """It is told by `config`, and by a run that would use it."""
    (tmp_path / ".phalanxconfig").write_text('[command.run]\ncomponent = "utils.ecco"\n')
    assert args_of(dryrun("utils.touch", "--file", "x")) == ["x"]
    assert "unknown component 'utils.ecco'. Did you mean 'utils.echo'?" in dryrun().stderr
    done = phalanx("config")
    assert done.returncode == 1
    assert "component: unknown component 'utils.ecco'" in done.stderr


COMPONENTS = """\
from phalanx.specs import AppDef, Role

def train(lr: float) -> AppDef:
    return AppDef("train", [Role("r", entrypoint="echo", args=[str(lr)])])

def opened(file: str, num_replicas: int = 1) -> AppDef:
    return AppDef("opened", [Role(open(file).read(), num_replicas=num_replicas)])

def steps(data: str, num_replicas: int = 1, kind: str = "a", of: str = "") -> AppDef:
    if kind == "b" and not of:
        raise KeyError("of")
    return AppDef("steps", [Role("r", num_replicas=num_replicas)])
"""


def test_config_finds_what_commands_would_find(tmp_path):
    """In sections of all commands."""
    (tmp_path / "mine.py").write_text(COMPONENTS)
    (tmp_path / ".phalanxconfig").write_text(
        '[command.run]\nscheduler = "local_cwdd"\nwait = "maybe"\ncomponent = 3\n'
        'workspace = "nowhere"\n'
        '[command.list]\nal = true\n[command.launch]\nx = 1\n[command.log]\ntail = "few"\n'
        '[component."mine.py:train"]\nlr = "fast"\n[component."other.py:train"]\nlr = 1\n'
        '[component."utils.sh"]\nh = "gpu.smal"\nnum_replicas = 0\nmounts = "type=x"\n'
        'cpu = "y"\n[component.dist.ddp]\nj = "ax2"\n[component.dist.dpd]\nj = "1x2"\n'
        '[component.spmd]\nj = "1x2"\n'
        '[component."mine.py:opened"]\nnum_replicas = 0\n'
        '[component."mine.py:steps"]\nnum_replicas = 0\nkind = "b"\n'
        "[scheduler.local_cwd]\nstop_grace = -1\n[componet.x]\ny = 1\n"
    )
    (tmp_path / "home" / ".phalanxconfig").write_text("[command\n")
    done = phalanx("config")
    assert done.returncode == 1
    for said in (
        "unknown scheduler 'local_cwdd'. Did you mean 'local_cwd'?",
        "wait: 'maybe' is not yes or no",
        "component: 3 is not a name",
        "list has no option 'al'. Did you mean 'all'?",
        "launch takes nothing from a configuration",
        "mine.py:train: lr: 'fast' is not a number",
        '[component."other.py:train"]: unknown component: no such file',
        "nowhere: no such directory",
        "tail: invalid int value: 'few'",
        "utils.sh: unknown named resource 'gpu.smal'. Did you mean 'gpu.small'?",
        "utils.sh: role 'sh': num_replicas: 0",
        "utils.sh: mounts: unknown type 'x'",
        "utils.sh: cpu: 'y' is not a whole number",
        "dist.ddp: -j 'ax2': expected",
        "[component.\"dist.dpd\"]: unknown component. Did you mean 'dist.ddp'?",
        '[component."spmd"]: write [component."dist.spmd"]',
        "mine.py:steps: role 'r': num_replicas: 0",
        "mine.py:steps: KeyError: 'of'",
        "local_cwd: stop_grace=-1.0: must be",
        f"{tmp_path / '.phalanxconfig'}: unknown section [componet]. Did you mean [component.NAME]",
        f"{tmp_path / 'home' / '.phalanxconfig'}: invalid TOML",
    ):
        assert said in done.stderr
    assert "name the function first" not in done.stderr
    assert "mine.py:opened" not in done.stderr  # it needs a file to say anything


def test_config_is_silent_about_what_commands_take(tmp_path):
    """Also where more is given with the command, or one value needs another."""
    (tmp_path / "mine.py").write_text(COMPONENTS)
    (tmp_path / "home" / ".phalanxconfig").write_text('[component."utils.echo"]\nmsg = "x"\n')
    (tmp_path / ".phalanxconfig").write_text(
        '[component."mine.py:train"]\nlr = 0.5\n'
        '[component."mine.py:steps"]\nkind = "b"\nof = "c"\n'
        '[component."mine.py:opened"]\nnum_replicas = 2\n'
        '[component."dist.ddp"]\nrdzv_backend = "etcd"\nrdzv_endpoint = "e:1"\nj = "2x2"\n'
        '[component.utils.sh]\nh = "gpu.small"\n[component."utils.python"]\nm = "train"\n'
    )
    done = phalanx("config")
    assert (done.returncode, done.stderr) == (0, "")
    assert args_of(dryrun("mine.py:train")) == ["0.5"]


TORCHX = """\
[cli:run]
component = dist.ddp
scheduler = local_cwd
workspace = file://.

[component:dist.ddp]
j = 1x2
script = train.py
env = A=1;B=x,y
debug = True

[local_cwd]
log_dir = logs
nothing = 3

[some_cluster]
queue = #FIXME:(str) the queue

[kubernetes]
queue = default

[torchx:tracker]
mlflow =

[tracker:mlflow]
config = x
"""


def test_a_configuration_of_torchx_is_noticed_and_converted(tmp_path, caplog):
    """What cannot be kept is commented out, with the reason."""
    (tmp_path / ".torchxconfig").write_text(TORCHX)
    (tmp_path / "train.py").write_text("")
    said = f"{tmp_path / '.torchxconfig'} is not read; convert it with: phalanx configure"
    assert said in dryrun("utils.echo").stderr
    assert said in phalanx("config").stderr
    apply("local_cwd", {}, dirs=[str(tmp_path)])
    assert said in caplog.text
    done = phalanx("configure", "--from-torchx")
    assert done.returncode == 0, done.stderr
    assert "local_cwd has no option 'nothing'" in done.stderr
    assert "unknown scheduler 'some_cluster'" in done.stderr
    text = (tmp_path / ".phalanxconfig").read_text()
    assert '\ncomponent = "dist.ddp"\n' in text
    assert '\n# nothing = "3"' in text
    assert '\n# queue = "default"  # kubernetes.queue is Volcano' in text
    assert "kubernetes.queue is Volcano's in TorchX" in done.stderr
    assert "\n# tracker:mlflow: Phalanx has no trackers" in text
    assert "tracker:mlflow: Phalanx has no trackers" in done.stderr
    done = phalanx("config")
    assert (done.returncode, done.stderr) == (0, "")
    app = dryrun()
    assert "train.py" in args_of(app)
    assert '"B": "x,y"' in app.stdout
    (tmp_path / ".torchxconfig").unlink()
    (tmp_path / ".phalanxconfig").unlink()
    assert "no such file" in phalanx("configure", "--from-torchx").stderr


def test_a_component_that_imports_torchx_is_told_what_there_is(tmp_path):
    """With the traceback of its own; one that is configured, also by `config`."""
    said = "import phalanx.compat.torchx as torchx, or run the program with: python"
    (tmp_path / "torchx.py").write_text("import torchx.specs as specs\n")  # its own name, too
    done = phalanx("run", "torchx.py:train")
    assert (done.returncode, said in done.stderr) == (1, True)
    (tmp_path / ".phalanxconfig").write_text(
        '[command.run]\ncomponent = "torchx.py:train"\n[component."torchx.py:train"]\nlr = 1\n'
    )
    done = phalanx("config")
    assert (done.returncode, done.stderr.count(said)) == (1, 2)
    assert "component: torchx.py:train: ModuleNotFoundError: No module" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["utils.echo", "dist.ddp", "metrics.tensorboard", "utils.copy"])
def test_a_printed_component_runs(name, tmp_path):
    """As a file of its own."""
    done = phalanx("builtins", "--print", name)
    assert done.returncode == 0, done.stderr
    (tmp_path / "mine.py").write_text(done.stdout)
    required = {
        "dist.ddp": ["--script", "mine.py"],
        "metrics.tensorboard": ["--logdir", "x"],
        "utils.copy": ["--src", "a", "--dst", "b"],
    }.get(name, [])
    function = name.rpartition(".")[2]
    assert args_of(dryrun(f"mine.py:{function}", *required)) == args_of(dryrun(name, *required))


def test_replicas_of_some_roles_and_lines_that_are_followed(tmp_path):
    """`status --roles`, `log --tail` without a number."""
    app = AppDef(
        "two",
        [Role("a", entrypoint="echo", args=["A"]), Role("b", entrypoint="echo", args=["B"])],
    )
    with get_runner("") as runner:
        handle = runner.run(app, "local_cwd")
        status = runner.wait(handle)
        status.raise_for_status()
        assert list(runner.log_lines(handle, "a")) == ["A"]
        assert list(runner.log_lines(handle, role_name="b", k=0, should_tail=True)) == ["B\n"]
    assert handle.startswith("local_cwd://phalanx/")
    shown = phalanx("status", "--roles", "b", handle).stdout
    assert ("b/0" in shown, "a/0" in shown) == (True, False)
    assert "has no role 'c'" in phalanx("status", "--roles", "c", handle).stderr
    assert phalanx("log", "--tail", f"{handle}/a").stdout == phalanx("log", f"{handle}/a").stdout
    assert "A" in phalanx("log", "-n", "1", handle).stdout


def test_one_cfg_for_several_schedulers():
    """Keys of others are passed over, unknown ones are errors."""
    app = AppDef("a", [Role("r", entrypoint="echo")])
    cfg = {"log_dir": None, "hosts": ["h"], "partition": "p"}
    with get_runner(component_defaults={"utils.echo": {"msg": "default"}}) as runner:
        runner.dryrun(app, "local_cwd", cfg)
        with pytest.raises(ValueError, match="has no option 'logdir'. Did you mean 'log_dir'"):
            runner.dryrun(app, "local_cwd", {**cfg, "logdir": "x"})
        info = runner.dryrun_component("utils.echo", [], "local_cwd")
        assert info.app.roles[0].args == ["default"]
        info._fmt = lambda request: f"<{request.name}>"
        assert str(info).endswith("<echo>")
    done = phalanx("run", "--dryrun", "-cfg", "hosts=a", "utils.echo")
    assert "local_cwd does not use 'hosts', an option of ssh" in done.stderr


def test_a_session_without_a_name():
    """It is the default one, in handles that are made and in those that leave it out."""
    app = AppDef("said", [Role("r", entrypoint="echo", args=["hello"])])
    with get_runner("") as runner:
        handle = runner.run(app, "local_cwd")
        assert handle.startswith("local_cwd://phalanx/said-")
        bare = handle.replace("phalanx", "", 1)
        assert runner.wait(bare).state is AppState.SUCCEEDED
        assert [*runner.log_lines(bare, "r")] == ["hello"]


def test_mounts_on_this_machine_are_a_warning():
    """The files are there as they are."""
    mounts = ("utils.sh", "--mounts", "type=bind,src=~/data,dst=/data", "ls")
    done = dryrun(*mounts)
    assert done.returncode == 0
    assert "local_cwd mounts nothing: role 'sh'" in done.stderr
    assert "/home/data" in done.stdout


def test_mounts_on_slurm_are_a_warning():
    """TorchX drops them there, too."""
    done = phalanx(
        "run",
        "--dryrun",
        "-s",
        "slurm",
        "utils.sh",
        "--mounts",
        "type=bind,src=/data,dst=/data",
        "ls",
    )
    assert done.returncode == 0
    assert "slurm mounts nothing: role 'sh'" in done.stderr


class TestComponents(ComponentTestCase):
    """A component's own tests, as they are written for TorchX."""

    def test_validate(self):
        """Each is a component."""
        self.validate(utils, "echo")
        with self.assertRaisesRegex(ValueError, "has no function"):
            self.validate(utils, "ecco")

    def test_run(self):
        """And runs."""
        status = self.run_component(utils.touch, {"file": "made"})
        assert status.state is AppState.SUCCEEDED
