"""Programs of the shapes that public ones have, written for TorchX, run unchanged."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from phalanx._schedulers.scheduler import BUILT_IN
from phalanx.runner import get_runner
from phalanx.specs import AppState
from tests.process.test_plugins import Environment


@pytest.fixture(autouse=True)
def own_registry(tmp_path, monkeypatch):
    """Apps and configuration of this test alone; those that it leaves running end with it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    yield
    with get_runner() as runner:
        for app in runner.known_by("local_cwd", "phalanx"):
            runner.cancel(app.app_handle)


def program(text, *words, files=(), code=0):
    """What a program prints under the hook."""
    for name, content in dict(files).items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w") as file:
            file.write(textwrap.dedent(content))
    with open("prog.py", "w") as file:
        file.write(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-m", "phalanx.compat", "torchx", "--", "prog.py", *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_a_pipeline_launcher():
    """Stages one after another, apps changed in place, a status that raises."""
    shown = program(
        """
        import sys
        import torchx.specs as specs
        from torchx.cli.cmd_log import _prefix_line, find_role_replicas, get_logs, validate
        from torchx.components.utils import python, sh
        from torchx.runner import Runner, get_runner
        from torchx.specs import AppDef, AppState, NULL_RESOURCE, Role, macros

        def stage(name, *args):
            return AppDef(name=name, roles=[Role(
                name=name, image="", entrypoint="sh", args=["-c", *args],
                resource=specs.resource(cpu=1, gpu=0, memMB=-1),
                env={"STAGE": name},
            )])

        prepare = stage("prepare", "echo $STAGE $EXTRA ${TORCHX_JOB_ID%%-*}")
        prepare.roles[0].env["EXTRA"] = "more"
        prepare.roles[0].args += ["unused"]
        train = sh("exit 3")
        train.roles[0].num_replicas = 1
        train.metadata["owner"] = "me"

        with get_runner("pipeline") as runner:
            handle = runner.run(prepare, scheduler="local_cwd", cfg={"log_dir": None})
            status = runner.wait(handle, wait_interval=1)
            assert status.state == AppState.SUCCEEDED, status
            status.raise_for_status()
            print("".join(runner.log_lines(handle, "prepare", 0)), end="")
            scheduler, session, app_id = specs.parse_app_handle(handle)
            print(scheduler, session, app_id.startswith("prepare"))
            failed = runner.wait(runner.run(train, "local_cwd"))
            try:
                failed.raise_for_status()
            except specs.AppStatusError as error:
                print(error.status.state, failed.state > AppState.RUNNING, NULL_RESOURCE.cpu)
            described = runner.describe(handle)
            described.roles[0].args.append("x")
            print(described.name, [a.app_handle for a in runner.list("local_cwd")] != [])
            described.roles[0].num_replicas = 2
            print(find_role_replicas(described, None), find_role_replicas(described, "other"))
            get_logs(sys.stdout, f"{handle}/prepare/0", regex="more", runner=runner)
            for wrong in (f"{handle}/other", "local_cwd://pipeline"):
                try:
                    get_logs(sys.stdout, wrong, None, runner=runner)
                except SystemExit as error:
                    print("exit", error)
        for text in ("a\\n", "\\ra\\n", "b\\ra\\n", "b\\na"):
            print(ascii(_prefix_line("<p>", text)))
        for identifier in ("", "/role", "/role/1", "/role/1,2"):
            validate(f"kubernetes://session/queue:name-1234{identifier}")
        """
    )
    assert shown.splitlines() == [
        "prepare more local_cwd://pipeline/prepare",
        "local_cwd pipeline True",
        "FAILED True -1",
        "prepare True",
        "[('prepare', 0), ('prepare', 1)] []",
        "prepare/0 prepare more local_cwd://pipeline/prepare",
        "exit 1",
        "exit 1",
        r"'<p>a\n'",
        r"'\r<p>a\n'",
        r"'<p>b\r<p>a\n'",
        r"'<p>b\n<p>a'",
    ]


def test_a_runner_of_trials():
    """As a tuner's: a component is called for every trial, statuses are polled, trials stopped."""
    shown = program(
        """
        import time
        from typing import Any, Callable, Dict, Mapping, Optional
        from torchx.runner import get_runner, Runner
        from torchx.specs import AppDef, AppState, AppStatus, CfgVal, Role

        STATES = {
            AppState.UNSUBMITTED: "candidate", AppState.SUBMITTED: "staged",
            AppState.PENDING: "staged", AppState.RUNNING: "running",
            AppState.SUCCEEDED: "completed", AppState.CANCELLED: "abandoned",
            AppState.FAILED: "failed", AppState.UNKNOWN: "failed",
        }

        def trial(x: float, idx: int) -> AppDef:
            '''A trial.

            Args:
                x: where
                idx: which
            '''
            command = f"echo {x * x}" if idx < 2 else "sleep 100"
            return AppDef("trial", [Role("r", image="", entrypoint="sh", args=["-c", command])])

        class Trials:
            def __init__(self, component: Callable[..., AppDef], scheduler: str,
                         cfg: Optional[Mapping[str, CfgVal]] = None) -> None:
                self._component, self._scheduler, self._cfg = component, scheduler, cfg
                self._runner: Runner = get_runner()

            def run(self, idx: int, parameters: Dict[str, Any]) -> str:
                app = self._component(**parameters, idx=idx)
                return self._runner.run(app, self._scheduler, self._cfg)

            def poll(self, handle: str) -> str:
                status = self._runner.status(handle)
                return STATES[status.state if status else AppState.UNKNOWN]

            def stop(self, handle: str) -> None:
                self._runner.stop(handle)

        trials = Trials(trial, "local_cwd", {})
        handles = [trials.run(i, {"x": float(i)}) for i in range(3)]
        trials.stop(handles[2])
        for handle in handles:
            trials._runner.wait(handle, wait_interval=0.1)
        print(*map(trials.poll, handles))
        print(*[line for h in handles[:2] for line in trials._runner.log_lines(h, "r")], sep="")
        """
    )
    assert shown.split() == ["completed", "completed", "abandoned", "0.0", "1.0"]


def test_a_project_with_a_configuration_of_its_own():
    """`.torchxconfig` with a component and its arguments; `torchx run` is the module's main."""
    files = {
        ".torchxconfig": """\
            [cli:run]
            component = components.py:train
            scheduler = local_cwd

            [component:components.py:train]
            model = small
            env = A=1;B=x,y

            [local_cwd]
            log_dir = out
            """,
        "components.py": """
            from typing import Dict, List, Optional
            import torchx
            import torchx.specs as specs
            from torchx.specs.named_resources_generic import NAMED_RESOURCES

            def train(*args: str, model: str, env: Optional[Dict[str, str]] = None,
                      j: str = "1x2") -> specs.AppDef:
                '''Train.

                Args:
                    args: the program's
                    model: which
                    env: variables
                    j: how many
                '''
                role = specs.Role(name="train", image="", entrypoint="echo",
                                  args=[model, j, *args], env=env or {})
                role.resource = specs.named_resources["cpu.small"]
                role.mounts = specs.parse_mounts(["type=bind", "src=~/a", "dst=/a"])
                role.mounts.clear()
                return specs.AppDef(name="train", roles=[role])
            """,
    }
    text = "import sys\nfrom torchx.cli.main import main\nmain(sys.argv[1:])\n"
    shown = program(text, "run", "--dryrun", "--j", "2x2", "--", "--lr", "1", files=files)
    app = json.loads(shown.partition("=== SCHEDULER REQUEST")[0].partition("===\n")[2])
    assert app["roles"][0]["args"] == ["small", "2x2", "--lr", "1"]
    assert app["roles"][0]["env"]["B"] == "x,y"
    assert app["roles"][0]["resource"]["memMB"] == 2048
    assert os.path.join(os.getcwd(), "out") in shown
    shown = program(
        """
        from torchx.runner.config import apply, get_config
        cfg = {"prepend_cwd": True}
        apply("local_cwd", cfg, dirs=["."])
        print(cfg, get_config("cli", "run", "component", dirs=["."]))
        """
    )
    assert shown == "{'prepend_cwd': True, 'log_dir': 'out'} components.py:train\n"


def test_a_service_that_submits_and_follows():
    """Options of several schedulers, some of them None; a log that a thread follows by keywords,
    and one that is read when the runner is closed; a component that another calls by position.
    """
    shown = program(
        """
        import threading
        from torchx import runner, specs
        from torchx.components.dist import ddp
        from torchx.runner.api import Stream
        from torchx.runner.config import apply

        def train(size: int = 1, checkpoint: str | None = None, *script_args: str) -> specs.AppDef:
            args = [f"--size={size}"]
            if checkpoint:
                args.append(f"--checkpoint={checkpoint}")
            return ddp(*args, *script_args, m="job", name="training", image="i", cpu=1, j="1x2",
                       rdzv_backend="c10d", rdzv_port=30303, env={"LEVEL": "1"})

        def short(size: int = 1) -> specs.AppDef:
            return train(size, None, "--short")

        class Follower:
            def __init__(self, namespace, queue):
                self.session = runner.get_runner()
                self.cfg = {"namespace": namespace, "queue": queue, "partition": None,
                            "time": None, "auto_set_cuda_visible_devices": False}

            def follow(self, handle, role, lines):
                lines += self.session.log_lines(app_handle=handle, role_name=role, k=0,
                                                streams=Stream.COMBINED, should_tail=True)

            def launch(self, app):
                apply("local_cwd", self.cfg, dirs=["."])
                handle = self.session.run(app, scheduler="local_cwd", cfg=self.cfg, workspace="")
                lines = []
                thread = threading.Thread(
                    target=self.follow, args=(handle, app.roles[0].name, lines))
                thread.start()
                return handle, thread, lines

        follower = Follower("ns", "default")
        handle, thread, lines = follower.launch(short(3))
        print(follower.session.wait(handle, wait_interval=1).state)
        thread.join()
        kept = follower.session.log_lines(handle, role_name="job")
        follower.session.close()
        assert list(kept) == lines, (kept, lines)
        print(*sorted(line.rstrip() for line in lines if "rank" in line), sep=chr(10))
        """,
        files={
            "job.py": """
                import os, sys
                print("rank", os.environ["RANK"], os.environ["LEVEL"], *sys.argv[1:])
                """
        },
    )
    assert shown.splitlines() == [
        "SUCCEEDED",
        "[0]:rank 0 1 --size=3 --short",
        "[1]:rank 1 1 --size=3 --short",
    ]


def test_a_dry_run_by_a_scheduler_alone():
    """Made with its own options, and shown, without a runner and without a cluster."""
    shown = program(
        """
        from torchx.components.dist import ddp
        from torchx.runner import get_runner
        from torchx.schedulers.kubernetes_scheduler import KubernetesOpts, create_scheduler

        app = ddp("--a", script="job.py", image="registry/image", name="job-1", cpu=1, gpu=2,
                  memMB=10, j="2x1", env={}, mounts="type=bind,src=/data,dst=/b".split(","))
        opts = KubernetesOpts({"queue": "q", "namespace": "n", "server_version": "1.29"})
        print(create_scheduler("test")._submit_dryrun(app, opts))
        try:
            get_runner(ray_client=None)._scheduler_instances["ray"] = None
        except AttributeError as error:
            print(error)
        """,
        files={"job.py": ""},
    )
    assert "kueue.x-k8s.io/queue-name: q" in shown
    assert "namespace: n" in shown
    assert "path: /data" in shown
    assert shown.splitlines()[-1] == (
        "'Runner' has no attribute '_scheduler_instances': to use a scheduler of your own, give "
        """what creates it: Runner(name, {"ray": lambda session_name, **params: scheduler})"""
    )


def test_tools_that_change_dry_runs():
    """Settings of servers: `_app`, `_fmt`, dataclasses of specs, one `cfg` for several."""
    shown = program(
        """
        import dataclasses, json
        from torchx import specs
        from torchx.runner import Runner, get_runner
        from torchx.specs import AppDryRunInfo
        from torchx.specs.api import is_terminal

        def fmt(request):
            return json.dumps(request.__class__.__name__)

        app = specs.AppDef("server", [specs.Role(
            "mesh", image="i", entrypoint="sh", args=["-c", "echo $0"], port_map={"mesh": 26600},
            metadata={"kubernetes": {"labels": ["a"]}}, num_replicas=2,
        )])
        copied = dataclasses.replace(app, name="other")
        with get_runner("tools", component_defaults={}) as runner:
            info = runner.dryrun(app, "local_cwd", {"log_dir": "out", "hosts": "h"}, None)
            assert isinstance(info, AppDryRunInfo)
            info._fmt = fmt
            info._app.metadata["changed"] = "yes"
            print(repr(info), info._scheduler, info._app.roles[0].num_replicas, copied.name)
            handle = runner.schedule(info)
            print(is_terminal(runner.wait(handle).state))
            print(runner.describe(handle).metadata)
        """
    )
    assert shown.splitlines() == [
        '"AppRequest" local_cwd 2 other',
        "True",
        "{'changed': 'yes'}",
    ]


PLUGIN = """
    import argparse
    import torchx.specs as specs
    from torchx.cli.cmd_base import SubCommand
    from torchx.schedulers.api import (
        AppDryRunInfo, DescribeAppResponse, ListAppResponse, Scheduler,
    )
    from torchx.specs.api import AppDef, AppState, NULL_RESOURCE, ReplicaStatus, RoleStatus, runopts

    class Paper(Scheduler):
        def __init__(self, session_name, **kwargs):
            super().__init__("paper", session_name)

        def _run_opts(self):
            opts = runopts()
            opts.add("tray", type_=int, default=1, help="which tray")
            return opts

        def _submit_dryrun(self, app, cfg):
            self._validate(app, "paper")
            app.roles[0].env["TRAY"] = str(cfg["tray"])
            return AppDryRunInfo(f"{app.name} {app.roles[0].env['TRAY']}", lambda r: f"<{r}>")

        def schedule(self, dryrun_info):
            return "sheet"

        def describe(self, app_id):
            replica = ReplicaStatus(0, AppState.RUNNING, "role", "desk")
            return DescribeAppResponse(app_id, AppState.RUNNING,
                                       roles_statuses=[RoleStatus("role", [replica])])

        def _cancel_existing(self, app_id):
            pass

        def list(self):
            return [ListAppResponse(app_id="sheet", state=AppState.RUNNING)]

    def create_scheduler(session_name, **kwargs):
        return Paper(session_name, **kwargs)

    def big():
        return specs.Resource(cpu=3, gpu=1, memMB=7)

    class Fold(SubCommand):
        def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
            subparser.add_argument("--times", type=int, default=1)

        def run(self, args: argparse.Namespace) -> None:
            print("folded", args.times)
"""


def test_plugins_of_torchx_are_found_and_run(tmp_path):
    """A scheduler, a resource and a command, under TorchX's entry points, as they are."""
    environment = Environment(tmp_path / "venv")
    environment.install(
        "paper",
        {"paper/__init__.py": textwrap.dedent(PLUGIN)},
        {
            "torchx.schedulers": ["paper = paper:create_scheduler"],
            "torchx.named_resources": ["big = paper:big"],
            "torchx.cli.cmds": ["fold = paper:Fold"],
        },
    )
    text = "import sys; from phalanx.compat import install; install('torchx')\n"
    main = text + "from torchx.cli.main import main; main(sys.argv[1:])"

    def torchx(*words):
        python = str(tmp_path / "venv" / "bin" / "python")
        done = subprocess.run(
            [python, "-c", main, *words], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert torchx("fold", "--times", "3") == "folded 3\n"
    shown = torchx("run", "--dryrun", "-s", "paper", "-cfg", "tray=4", "utils.echo")
    assert "<echo 4>" in shown
    handle = torchx("run", "-s", "paper", "utils.sh", "-h", "big", "x").strip()
    assert handle == "paper://torchx/sheet"
    assert "RUNNING" in torchx("status", handle)
    assert "Did you mean" not in environment("fold").stdout


def test_built_in_components_that_a_package_registers(tmp_path):
    """Beside its own, or under a name of theirs: modules of ours have those that they give."""
    environment = Environment(tmp_path / "venv")
    environment.install(
        "paper",
        {"paper.py": ""},
        {
            "torchx.components": [
                "_0 = torchx.components.utils",
                "dist = torchx.components.dist",
                "t = torchx.components",
            ],
            "phalanx.components": ["ours = phalanx.compat.torchx.components.dist"],
        },
    )
    main = "import sys; from torchx.cli.main import main; main(sys.argv[1:])"
    (tmp_path / "main.py").write_text(main)

    def torchx(*words):
        python = str(tmp_path / "venv" / "bin" / "python")
        command = [python, "-m", "phalanx.compat", "torchx", "--", str(tmp_path / "main.py")]
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = re.findall(r"\d+\. (\S+)", torchx("builtins"))
    assert {"dist.ddp", "echo", "t.dist.spmd", "t.utils.sh", "ours.ddp"} <= {*listed}
    assert "def ddp(" in torchx("builtins", "--print", "dist.ddp")
    shown = torchx("run", "--dryrun", "dist.ddp", "--name", "trial/1", "main.py")
    assert '"TORCHX_TRACKING_EXPERIMENT_NAME": "trial"' in shown
    assert '"TORCHX_TRACKING_EXPERIMENT_NAME": "default-experiment"' in torchx(
        "run", "--dryrun", "t.dist.ddp", "main.py"
    )
    assert "echo" in torchx("run", "--dryrun", "echo")


COPIED = """
from torchx.schedulers.api import AppDryRunInfo, Scheduler
from torchx.specs import runopts
from torchx.workspace.dir_workspace import DirWorkspaceMixin

class Copied(DirWorkspaceMixin, Scheduler):
    def _run_opts(self):
        opts = runopts()
        opts.add("job_dir", type_=str, default=None, help="where")
        return opts

    def _submit_dryrun(self, app, cfg):
        return AppDryRunInfo(app.roles[0].image, str)

    describe = list = schedule = _cancel_existing = None

def create_scheduler(session_name, **kwargs):
    return Copied("copied", session_name)
"""


def test_a_plugin_that_copies_the_workspace(tmp_path):
    """As `torchx run` has it: the current directory; a runner, only what is named."""
    shown = program(
        """
        import sys, os
        import plugin
        from torchx.runner import Runner
        from torchx.specs import AppDef, Role

        with Runner("s", {"copied": plugin.create_scheduler}) as runner:
            app = AppDef("a", [Role("r", image="own", entrypoint="x")])
            print(runner.dryrun(app, "copied", {"job_dir": "unused"}).request)
            there = "file://" + os.getcwd()
            print(runner.dryrun(app, "copied", {"job_dir": "made"}, workspace=there).request)
        print(os.path.exists("unused"), sorted(os.listdir("made")))
        try:
            import torchx.workspace.docker_workspace
        except ModuleNotFoundError as error:
            print(error)
        """,
        files={"plugin.py": COPIED, ".torchxignore": "home\nstate\n__pycache__\n"},
    )
    lines = shown.splitlines()
    assert lines[:2] == ["own", "made"]
    assert lines[2] == "False ['.torchxignore', 'plugin.py', 'prog.py']"
    assert "no module 'torchx.workspace.docker_workspace'. Instead: " in lines[3]
    assert ".." not in lines[3]


def test_the_command_sends_the_current_directory(tmp_path):
    """Into images, as there; a runner does if it is named."""
    command = [sys.executable, "-m", "phalanx.compat", "torchx", "--", "-m", "torchx.cli.main"]
    words = ["run", "-s", "kubernetes", "-cfg", "namespace=ml,server_version=1.29", "--dryrun"]

    def workspace(*more):
        done = subprocess.run(
            [*command, *words, *more, "utils.echo", "--image", "i:1"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return re.findall(r'"workspace": (.*)', done.stdout)

    assert workspace() == [f'"{tmp_path}"']
    assert workspace("--workspace", "") == ["null"]
    shown = program(
        """
        from torchx.runner import get_runner
        cfg = {"namespace": "ml", "server_version": "1.29"}
        with get_runner() as runner:
            info = runner.dryrun_component("utils.echo", ["--image", "i:1"], "kubernetes", cfg)
            print(info._app.roles[0].workspace)
        """
    )
    assert shown == "None\n"


def test_trackers_of_the_configuration_and_the_environment(monkeypatch):
    """Programs find them as there; what they are is the program's own."""
    text = """
        import os
        from torchx.runner import get_runner
        from torchx.components.dist import ddp
        app = ddp(script="prog.py", name="trial/1")
        with get_runner() as runner:
            env = runner.dryrun(app, "local_cwd", parent_run_id="p")._app.roles[0].env
        print({k: v for k, v in sorted(env.items()) if "TRACK" in k or "PARENT" in k})
        """
    config = "[torchx:tracker]\nflow=\n[tracker:flow]\nconfig=flow.yaml\n"
    files = {".torchxconfig": config}
    assert eval(program(text, files=files)) == {
        "PHALANX_PARENT_RUN_ID": "p",
        "TORCHX_PARENT_RUN_ID": "p",
        "TORCHX_TRACKERS": "flow",
        "TORCHX_TRACKER_FLOW_CONFIG": "flow.yaml",
        "TORCHX_TRACKING_EXPERIMENT_NAME": "trial",
    }
    monkeypatch.setenv("TORCHX_TRACKERS", "a,b")
    monkeypatch.setenv("TORCHX_PARENT_RUN_ID", "outer")
    found = eval(program(text, files=files))
    assert found["TORCHX_TRACKERS"] == "a,b"
    assert found["TORCHX_PARENT_RUN_ID"] == "outer"


def test_what_is_not_there_says_so():
    """By name, and by module."""
    shown = program(
        """
        import torchx
        print(torchx.__version__)
        try:
            torchx.tracker
        except AttributeError as error:
            print(error)
        try:
            import torchx.schedulers.lsf_scheduler
        except ModuleNotFoundError as error:
            print(error)
        from torchx.specs.finder import get_component, get_components, ComponentNotFoundException
        print("dist.ddp" in get_components(), get_component("utils.echo").fn(msg="x").roles[0].args)
        try:
            get_component("utils.ecco")
        except ComponentNotFoundException as error:
            print(error)
        """
    )
    assert shown.splitlines() == [
        "0.7.0",
        "module 'phalanx.compat.torchx' has no attribute 'tracker': trackers are not part of "
        "Phalanx: set what yours needs in a role's env",
        "phalanx.compat has no module 'torchx.schedulers.lsf_scheduler'. Instead: Phalanx has "
        f"{', '.join(BUILT_IN)}, and schedulers that plugins add.",
        "True ['x']",
        "unknown component 'utils.ecco'. Did you mean 'utils.echo'?",
    ]


def test_what_programs_begin_with():
    """The image's name, modules without an import of their own, macros by position, a text made of
    the request alone, modules that only say what to use instead.
    """
    shown = program(
        """
        import json
        import phalanx.compat.torchx as renamed
        import torchx
        from torchx.runner.config import apply
        print(renamed.specs.AppDef is torchx.specs.AppDef, repr(torchx.IMAGE))
        role = torchx.specs.Role("r", "", args=["${img_root} ${app_id} ${replica_id} ${rank0_env}"])
        print(torchx.specs.macros.Values("/img", "app", "7", "R0").apply(role).args)
        info = torchx.specs.AppDryRunInfo({"a": 1}, json.dumps)
        info._app = torchx.specs.AppDef("app", [role])
        print(json.loads(str(info)))
        try:
            import torchx.runtime.tracking
        except ModuleNotFoundError as error:
            print(error)
        try:
            apply("slrum", {}, dirs=["."])
        except ValueError as error:
            print(error)
        """,
        files={".torchxconfig": "[slrum]\npartition = x\n"},
    )
    assert shown.splitlines() == [
        "True ''",
        "['/img app 7 R0']",
        "{'a': 1}",
        "phalanx.compat has no module 'torchx.runtime'. Instead: read and write files with the "
        "program's own libraries, such as fsspec.",
        "unknown scheduler 'slrum'. Did you mean 'slurm'?",
    ]


def test_groups_of_replicas_that_are_watched_and_started_again():
    """Apps of `ddp` with a role's name changed, told apart by the app's name in a list."""
    shown = program(
        """
        import time
        from torchx import specs
        from torchx.components.dist import ddp
        from torchx.runner import Runner, get_runner

        def group(number):
            app = ddp(f"--group={number}", name=f"ft_{number}", script="./sub/train.py", j="1x2",
                      env={"GROUP": str(number)})
            app.roles[0].name = app.name
            return app

        def running(runner: Runner) -> dict:
            jobs = [j for j in runner.list("local_cwd") if j.state == specs.AppState.RUNNING]
            return {int(j.name.partition("-")[0].partition("_")[2]): j.app_handle for j in jobs}

        def watch(runner):
            alive = running(runner)
            for number in sorted({0, 1} - alive.keys()):
                runner.run(group(number), scheduler="local_cwd")
                print("started", number)

        with get_runner() as runner:
            watch(runner)
            watch(runner)
            runner.cancel(running(runner)[1])
            while 1 in running(runner):
                time.sleep(0.1)
            watch(runner)
            print(runner.describe(running(runner)[0]).roles[0].name)
            for handle in running(runner).values():
                runner.cancel(handle)
        """,
        files={"sub/train.py": "import time\ntime.sleep(100)\n"},
    )
    assert shown.splitlines() == ["started 0", "started 1", "started 1", "ft_0"]


def test_tools_that_keep_states_and_build_arguments():
    """States in JSON, handles without a session, what components leave to a replica's shell."""
    shown = program(
        """
        import dataclasses, json, shlex
        from torchx import specs
        from torchx.components import dist
        from torchx.specs import AppState, ReplicaState, parse_app_handle

        @dataclasses.dataclass
        class Mesh:
            name: str
            state: ReplicaState = AppState.UNSUBMITTED

        print(json.dumps(dataclasses.asdict(Mesh("m"))))
        print(*parse_app_handle("slurm:///job-1"), sep="|")
        words = ["a b", dist._noquote("$RANK")]
        print(*(w if isinstance(w, dist._noquote) else shlex.quote(w) for w in words))
        """
    )
    assert shown.splitlines() == [
        '{"name": "m", "state": "UNSUBMITTED"}',
        "slurm||job-1",
        "'a b' $RANK",
    ]


def test_its_command_runs_as_a_module():
    """`python -m torchx.cli.main`, under the hook."""
    command = [sys.executable, "-m", "phalanx.compat", "torchx", "--", "-m", "torchx.cli.main"]
    done = subprocess.run([*command, "builtins"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "dist.ddp" in done.stdout


def test_its_command_shows_a_local_app_and_ends_with_it():
    """The session is TorchX's, replicas find its variables, and the exit code says how it went."""
    command = [sys.executable, "-m", "phalanx.compat", "torchx", "--", "-m", "torchx.cli.main"]
    script = "echo on $TORCHX_RANK0_HOST by ${rank0_env}; exit $1"

    def torchx(*words):
        return subprocess.run([*command, *words], capture_output=True, text=True, timeout=60)

    done = torchx("run", "-s", "local_cwd", "utils.sh", "--", "sh", "-c", script, "-", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("local_cwd://torchx/sh-")
    assert "on localhost by TORCHX_RANK0_HOST" in done.stderr
    assert done.stdout.strip() in torchx("list", "-s", "local_cwd").stdout
    assert torchx("run", "utils.sh", "--", "sh", "-c", script, "-", "3").returncode == 3
    assert torchx("--version").returncode == 0

    running = subprocess.Popen(
        [*command, "run", "utils.sh", "--", "sh", "-c", "echo up; exec sleep 600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    handle = running.stdout.readline().strip()
    assert "up" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    with get_runner() as runner:
        assert runner.wait(handle).state is AppState.CANCELLED


def test_mistakes_are_caught_as_there():
    """The types that TorchX raises; options and what was chosen of them, as it shows them."""
    shown = program(
        """
        from torchx import specs
        from torchx.runner import get_runner
        from torchx.schedulers import get_scheduler_factories

        app = specs.AppDef("a", [specs.Role("r", "", entrypoint="sleep", args=["600"])])
        for mistake in (
            lambda: specs.named_resources["gpu.smal"],
            lambda: specs.resource(h="gpu.smal"),
            lambda: specs.parse_mounts(["type=bind"]),
            lambda: get_runner().run(app, "slrum"),
            lambda: get_scheduler_factories()["slrum"],
        ):
            try:
                mistake()
            except KeyError as error:
                print(error)
        late = specs.Role("r", "", entrypoint="sleep", num_replicas=0)
        with get_runner() as runner:
            try:
                runner.run(specs.AppDef("late", [late]), "local_cwd")
            except ValueError as error:
                print(error)
            opts = runner.scheduler_run_opts("local_cwd")
            print(opts.get("log_dir").opt_type, opts.resolve({})["prepend_cwd"])
            info = runner.dryrun(app, "local_cwd", {"log_dir": "out"})
            print(info._cfg["log_dir"], info._cfg.get("prepend_cwd"), type(info._cfg).__name__)
            handle = runner.schedule(info)
            print(runner.status(handle).state)
            runner.cancel(handle)
        """
    )
    lines = shown.splitlines()
    assert lines[0] == lines[1] == "unknown named resource 'gpu.smal'. Did you mean 'gpu.small'?"
    assert lines[2].startswith("mounts: a bind mount needs src=.")
    assert lines[3] == "unknown scheduler 'slrum'. Did you mean 'slurm'?"
    assert lines[4] == "'slrum'"
    assert lines[5] == "role 'r': num_replicas: 0 is not a whole number, 1 or more."
    assert lines[6] == "str | None False"
    assert lines[7] == "out False dict"
    assert lines[8] == "RUNNING"


def test_helpers_and_single_schedulers():
    """What launchers built on TorchX import: its helpers, and schedulers without a runner."""
    shown = program(
        """
        import importlib, os, sys
        from torchx import specs
        from torchx.runner.events import log_event
        from torchx.runner import Runner
        from torchx.schedulers import SchedulerFactory
        from torchx.schedulers.docker_scheduler import has_docker
        from torchx.schedulers.local_scheduler import LogIterator, create_scheduler
        from torchx.specs.builders import parse_args
        from torchx.specs.file_linter import get_fn_docstring, validate
        from torchx.specs.finder import get_builtin_source
        from torchx.util.entrypoints import load_group
        from torchx.util.modules import load_module
        from torchx.util.strings import normalize_str
        from torchx.util.types import none_throws, to_dict

        assert has_docker() in (True, False)
        print(normalize_str("-My_App-1"), to_dict("A=x,y;B=1"), load_module("os.path:sep"))
        print(load_group("nothing.here", default={"a": len})["a"]("xyz"))

        def comp(*args: str, n: int = 1, parts: dict[str, list[str]] | None = None) -> specs.AppDef:
            '''Say it.

            Args:
                n: how often
            '''
            return specs.AppDef("comp", [specs.Role("r", "", entrypoint="echo", args=[*args])])

        print(parse_args(comp, ["--n", "2", "--parts", "a=1,2;b=3", "x"]))
        print(get_fn_docstring(comp), validate("missing.py", "nothing")[0].name)
        for module in ("local", "slurm", "docker", "kubernetes", "aws_batch", "ray"):
            found = importlib.import_module(f"torchx.schedulers.{module}_scheduler")
            opts = next(name for name in found.__all__ if name.endswith("Opts"))
            made = found.create_scheduler("alone")
            print(made.backend, getattr(found, opts)({"a": 1}), len(list(made.run_opts())) > 3)

        scheduler = create_scheduler("alone")
        with log_event("schedule", "local_cwd"):
            info = scheduler.submit_dryrun(comp("hello"), {"log_dir": "out"})
        app_id = scheduler.schedule(info)
        print(*scheduler.log_iter(app_id, "r", should_tail=True), end="")
        print(app_id in [app.app_id for app in scheduler.list()])
        with open("own.log", "w") as file:
            print("one", file=file)
            print("two", file=file, end="")
        print([*LogIterator(app_id, "own.log", scheduler)])
        print(specs.is_terminal(none_throws(scheduler.describe(app_id)).state))
        with Runner("own", {"here": create_scheduler}) as runner:
            print(runner.wait(runner.run(comp("x"), "here")).state)
        with open("copied.py", "w") as file:
            file.write(get_builtin_source("utils.echo"))
        with Runner() as runner:
            handle = runner.run_component("copied.py:echo", ["--msg", "copied"], "local_cwd")
            runner.wait(handle)
            print(*runner.log_lines(handle, "echo"), end="")
        """
    )
    assert shown.splitlines() == [
        "myapp-1 {'A': 'x,y', 'B': '1'} /",
        "3",
        "Namespace(n=2, parts={'a': ['1', '2'], 'b': ['3']}, args=['x'])",
        "('Say it.', {'n': 'how often'}) nothing",
        *(
            f"{name} {{'a': 1}} True"
            for name in ("local_cwd", "slurm", "local_docker", "kubernetes", "aws_batch", "ray")
        ),
        "hello",
        "True",
        r"['one\n', 'two']",
        "True",
        "SUCCEEDED",
        "copied",
    ]
