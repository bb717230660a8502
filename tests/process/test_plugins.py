"""What packages add: real ones, with entry points, each installed into an environment of its own.

Every example of TorchX's page on advanced usage is here, with our names.
"""

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
import threading
from pathlib import Path

import pytest

import phalanx
from tests.process.commands import phalanx as command

TRAINER = '''
import phalanx.specs as specs


def trainer(name: str = "nobody") -> specs.AppDef:
    """Train."""
    role = specs.Role("trainer", entrypoint="echo", args=[name])
    return specs.AppDef("trainer", [role])
'''

BAZ = {
    "my_project/__init__.py": "",
    "my_project/bar/__init__.py": "",
    "my_project/bar/baz.py": TRAINER,
}


class Environment:
    """A virtual environment with this Phalanx, and what is installed into it."""

    def __init__(self, path):
        self._path = path
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
        self.python = str(path / "bin" / "python")
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        ours = [str(Path(phalanx.__file__).parent.parent), sysconfig.get_path("purelib")]
        ours.append(sysconfig.get_path("platlib"))
        place = path / "lib" / version / "site-packages" / "ours.pth"
        place.write_text("\n".join(dict.fromkeys(ours)) + "\n")

    def install(self, name, files, entry_points):
        """Write a project as its author would, and install it."""
        project = self._path / "projects" / name
        for path, text in files.items():
            (project / path).parent.mkdir(parents=True, exist_ok=True)
            (project / path).write_text(textwrap.dedent(text))
        (project / "setup.py").write_text(
            "from setuptools import find_namespace_packages, setup\n"
            f"setup(name={name!r}, version='1', packages=find_namespace_packages(),\n"
            f"      entry_points={entry_points!r})\n"
        )
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "-q"]
        pip += ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
        done = subprocess.run([*pip, project], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return self

    def __call__(self, *args, **kwargs):
        return command(*args, python=self.python, **kwargs)

    def evaluate(self, code):
        done = subprocess.run([self.python, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return Environment(tmp_path / "venv")


def listed(done):
    """The names that `builtins` has printed."""
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == f"Found {len(rest)} builtin components:"
    assert [line.split(".")[0].strip() for line in rest] == [str(i + 1) for i in range(len(rest))]
    return [line.split(". ", 1)[1] for line in rest]


OURS = [line.split(". ", 1)[1] for line in command("builtins").stdout.splitlines()[1:]]


# ── components: the four forms ────────────────────────────────────────────────


def test_own_components_replace_the_built_in_ones(environment):
    """`foo = my_project.bar` gives `foo.baz.trainer`, and nothing else."""
    environment.install("p", BAZ, {"phalanx.components": ["foo = my_project.bar"]})
    done = environment("builtins")
    assert done.stdout == "Found 1 builtin components:\n 1. foo.baz.trainer\n"
    done = environment("run", "--log", "foo.baz.trainer", "--", "--name", "test app")
    assert (done.returncode, done.stderr.split("\n")[0]) == (0, "trainer/0 test app")
    done = environment("run", "--log", "trainer", "--name", "short")
    assert (done.returncode, done.stderr.split("\n")[0]) == (0, "trainer/0 short")
    done = environment("run", "utils.echo")
    assert done.returncode == 1
    assert "unknown component 'utils.echo'" in done.stderr


def test_the_built_in_ones_are_added_back_under_a_prefix(environment):
    """`phalanx = phalanx.components`."""
    entries = ["foo = my_project.bar", "phalanx = phalanx.components"]
    environment.install("p", BAZ, {"phalanx.components": entries})
    names = listed(environment("builtins"))
    assert names == ["foo.baz.trainer", *(f"phalanx.{name}" for name in OURS)]
    assert environment("run", "--wait", "phalanx.utils.echo").returncode == 0
    assert environment("run", "--wait", "echo").returncode == 0


def test_overlapping_entries_list_both(environment):
    """`foo.*` and `test.bar.*`."""
    entries = ["foo = my_project.bar", "test = my_project"]
    environment.install("p", BAZ, {"phalanx.components": entries})
    assert listed(environment("builtins")) == ["foo.baz.trainer", "test.bar.baz.trainer"]
    for name in ("foo.baz.trainer", "test.bar.baz.trainer"):
        assert environment("run", "--wait", name).returncode == 0
    done = environment("run", "trainer")
    assert done.returncode == 1
    assert "ambiguous: it could be foo.baz.trainer, test.bar.baz.trainer" in done.stderr


def test_underscores_drop_the_prefix(environment):
    """`_0 = my_project.bar`, `_1 = phalanx.components`."""
    entries = ["_0 = my_project.bar", "_1 = phalanx.components"]
    environment.install("p", BAZ, {"phalanx.components": entries})
    names = listed(environment("builtins"))
    assert names == sorted(["baz.trainer", *OURS])
    assert len(names) == 11
    assert names[:2] == ["baz.trainer", "dist.ddp"]
    assert environment("run", "--wait", "baz.trainer").returncode == 0
    assert environment("run", "--wait", "utils.echo").returncode == 0


def test_packages_are_searched_and_namespace_packages_are_not(environment):
    """But for the one that is registered."""
    files = {
        "space/one.py": TRAINER,
        "space/inner/__init__.py": TRAINER,
        "space/inner/deep/__init__.py": "",
        "space/inner/deep/two.py": TRAINER,
        "space/hidden/three.py": TRAINER,
        "space/_private.py": TRAINER,
    }
    environment.install("p", files, {"phalanx.components": ["s = space"]})
    names = ["s.inner.deep.two.trainer", "s.inner.trainer", "s.one.trainer"]
    assert listed(environment("builtins")) == names
    for name in names:
        assert environment("run", "--dryrun", name).returncode == 0
    done = environment("run", "s.hidden.three.trainer")
    assert done.returncode == 1


def test_what_is_not_a_component_is_listed_with_its_reason_and_refused(environment):
    """With --verbose; helpers of a module do not count."""
    code = '''
    import phalanx.specs as specs
    from phalanx.specs import AppDef, resource

    def good() -> AppDef:
        """It is good."""

    def untyped(x) -> AppDef: ...

    def wrong(x: int) -> int: ...

    def silent(x: int): ...

    def odd(x: object) -> AppDef: ...

    def broken(x: "NoSuchType") -> AppDef: ...

    def keywords(**kwargs: str) -> AppDef: ...

    def _private(x): ...
    '''
    files = {"mine/__init__.py": "", "mine/mod.py": code}
    environment.install("p", files, {"phalanx.components": ["m = mine"]})
    assert listed(environment("builtins")) == ["m.mod.good"]
    done = environment("builtins", "--verbose")
    for said in (
        "1. m.mod.good  It is good.",
        "m.mod.untyped: its parameter 'x' has no type",
        "m.mod.wrong: it returns int, not AppDef",
        "m.mod.silent: it has no return annotation",
        "m.mod.odd: its parameter 'x': object is not supported on the command line",
        "m.mod.broken: cannot read its annotations: NameError",
        "m.mod.keywords: **kwargs cannot be given",
    ):
        assert said in done.stdout
    assert "_private" not in done.stdout
    assert "resource" not in done.stdout
    done = environment("run", "m.mod.untyped", "--x", "1")
    assert done.returncode == 1
    assert "m.mod.untyped is not a component: its parameter 'x' has no type" in done.stderr


def test_two_entries_that_yield_one_name_are_reported(environment):
    """The first is used."""
    other = TRAINER.replace("args=[name]", 'args=["other"]')
    environment.install(
        "a", {"one/__init__.py": "", "one/baz.py": TRAINER}, {"phalanx.components": ["_0 = one"]}
    )
    environment.install(
        "b", {"two/__init__.py": "", "two/baz.py": other}, {"phalanx.components": ["_1 = two"]}
    )
    done = environment("builtins")
    assert listed(done) == ["baz.trainer"]
    assert (
        "two entry points define the component 'baz.trainer': one of a and two of b" in done.stderr
    )
    assert environment("run", "--log", "baz.trainer").stderr.count("trainer/0 nobody\n")


def test_a_module_that_cannot_be_imported_is_named_and_the_rest_works(environment):
    """Also one that ends the interpreter, or prints to stdout."""
    files = {
        **BAZ,
        "my_project/bar/broken.py": "import no_such_module",
        "my_project/bar/leaves.py": "import sys; sys.exit(3)",
        "my_project/bar/loud.py": "print('loud')\n" + TRAINER,
    }
    entries = ["foo = my_project.bar", "gone = no_such_package", "odd = my_project.bar.baz:trainer"]
    environment.install("p", files, {"phalanx.components": entries})
    done = environment("builtins")
    assert listed(done) == ["foo.baz.trainer", "foo.loud.trainer"]
    for said in (
        "foo.broken",
        "'gone' of p",
        "it must name a module: odd = my_project.bar.baz",
        "SystemExit: 3",
    ):
        assert said in done.stderr.replace("my_project.bar.broken", "foo.broken")
    assert "Traceback" not in done.stderr
    done = environment("run", "--log", "foo.baz.trainer")
    assert (done.returncode, done.stderr.split("\n")[0]) == (0, "trainer/0 nobody")
    done = environment("run", "foo.broken.trainer")
    assert (done.returncode, "no_such_module" in done.stderr) == (1, True)
    done = environment("run", "--wait", "foo.loud.trainer")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert json.loads(environment("builtins", "--json").stdout)["problems"]


def test_running_one_imports_only_what_it_needs(environment):
    """Its own module; by its last part, those that have such a function."""
    marked = "open(__file__ + '.seen', 'w').close()\n"
    files = {**BAZ, "my_project/bar/heavy.py": marked + "def other(x: int): ...\n"}
    environment.install("p", files, {"phalanx.components": ["foo = my_project.bar"]})
    where = environment.evaluate("import my_project; print(my_project.__file__)")
    seen = Path(where.strip()).parent / "bar" / "heavy.py.seen"
    for name in ("foo.baz.trainer", "trainer"):
        assert environment("run", "--dryrun", name).returncode == 0
        assert not seen.exists()
    environment("builtins")
    assert seen.exists()


# ── named resources ───────────────────────────────────────────────────────────

RESOURCES = """
from phalanx.specs import Resource

def gpu_x1() -> Resource:
    return Resource(cpu=8,  gpu=1, memMB=61_000)

def gpu_x2() -> Resource:
    return Resource(cpu=16, gpu=2, memMB=122_000)

def gpu_x3() -> Resource:
    return Resource(cpu=32, gpu=4, memMB=244_000)

def gpu_x4() -> Resource:
    return Resource(cpu=64, gpu=8, memMB=488_000)

def broken() -> Resource:
    raise OSError("no cluster")

def none():
    return None
"""

COMPONENT = """
from phalanx.specs import AppDef, Role, get_named_resources

def test_app(resource: str) -> AppDef:
    return AppDef(name="test_app", roles=[
        Role(
            name="...",
            image="...",
            resource=get_named_resources(resource),
        )
    ])
"""


def test_named_resources_of_a_package(environment):
    """As in the page's own example; one that is broken breaks no other."""
    files = {
        "my_module/__init__.py": "",
        "my_module/resources.py": RESOURCES,
        "my_module/component.py": COMPONENT,
    }
    entries = [f"{name} = my_module.resources:{name}" for name in ("gpu_x2", "broken", "none")]
    entries += ["gone = my_module.nowhere:gone"]
    environment.install("p", files, {"phalanx.named_resources": entries})
    shown = environment.evaluate(
        "from phalanx.specs import get_named_resources; print(get_named_resources('gpu_x2'))"
    )
    assert shown.startswith("Resource(cpu=16, gpu=2, memMB=122000, ")
    shown = environment.evaluate(
        "from my_module.component import test_app; print(test_app('gpu_x2').roles[0].resource.gpu)"
    )
    assert shown == "2\n"
    for name, said in (
        ("gpu_x9", "Did you mean 'gpu_x2'?"),
        ("broken", "OSError: no cluster"),
        ("none", "it returned None, not a phalanx.specs.Resource"),
        ("gone", "'gone' of p (phalanx.named_resources: my_module.nowhere:gone) is broken"),
    ):
        done = environment("run", "--dryrun", "utils.sh", "-h", name, "true")
        assert done.returncode in (1, 2)
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert environment("run", "--dryrun", "utils.sh", "-h", "gpu.small", "true").returncode == 0


# ── schedulers ────────────────────────────────────────────────────────────────

SCHEDULER = """
from dataclasses import dataclass

from phalanx.schedulers import Scheduler, option
from phalanx.specs import AppState, AppStatus, AppSummary

@dataclass
class Options:
    queue: str = option(help="where it waits")
    size: int = option(3, help="how large it is")

class MyScheduler(Scheduler):
    options = Options

    def dryrun(self, app, options):
        return {"queue": options.queue, "app": app.name}

    def submit(self, request):
        return f"{request['app']}-in-{request['queue']}"

    def describe(self, app_id):
        return AppStatus(app_id, AppState.RUNNING) if "-in-" in app_id else None

    def list(self):
        return [AppSummary("echo-in-fast", AppState.RUNNING)]

    def logs(self, app_id, role, replica, **_):
        return iter(())

    def cancel(self, app_id):
        print("cancelled", app_id)

    def delete(self, app_id):
        pass

def create_scheduler(session_name: str, **kwargs: object) -> Scheduler:
    return MyScheduler(session_name, **kwargs)

def needs_client(session_name, **kwargs):
    import no_such_client

def not_one(session_name, **kwargs):
    return object()
"""


def test_a_scheduler_of_a_package_adds_to_ours(environment):
    """Its options are options like any; one that is broken is named when it is asked for."""
    files = {"my/__init__.py": "", "my/custom/__init__.py": "", "my/custom/scheduler.py": SCHEDULER}
    entries = [
        "my_scheduler = my.custom.scheduler:create_scheduler",
        "misspelt = my.custom.scheduler:create_schedule",
        "clientless = my.custom.scheduler:needs_client",
        "not_one = my.custom.scheduler:not_one",
        "ssh = my.custom.scheduler:create_scheduler",
    ]
    environment.install("p", files, {"phalanx.schedulers": entries})
    done = environment("runopts")
    assert done.returncode == 0
    for name in ("local_cwd:", "ssh:", "my_scheduler:", "queue (str)", "size (int, default: 3)"):
        assert name in done.stdout
    for said in (
        "'misspelt' of p",
        "no_such_client",
        "which is not a phalanx.schedulers.Scheduler",
        "'ssh' of p",
    ):
        assert said in done.stderr
    assert "Traceback" not in done.stderr
    done = environment("run", "-s", "misspelt", "utils.echo")
    assert (done.returncode, "AttributeError" in done.stderr) == (1, True)
    assert environment("runopts", "clientless").returncode == 1
    done = environment("run", "-s", "my_scheduler", "utils.echo")
    assert (done.returncode, "missing required option 'queue'" in done.stderr) == (2, True)
    done = environment("run", "-s", "my_scheduler", "-cfg", "queue=fast", "utils.echo")
    handle = done.stdout.strip()
    assert handle == "my_scheduler://phalanx/echo-in-fast"
    assert environment("run", "--wait", "utils.echo").returncode == 0
    rows = json.loads(environment("list", "--json").stdout)
    assert [(r["handle"] == handle, r["status"]["state"]) for r in rows] == [
        (True, "RUNNING"),
        (False, "SUCCEEDED"),
    ]
    assert "RUNNING" in environment("status", handle).stdout
    assert json.loads(environment("describe", handle).stdout)["name"] == "echo"
    assert "echo-in-fast: RUNNING, cancelling" in environment("cancel", handle).stdout
    done = environment(
        "run",
        "-s",
        "my_scheduler",
        "--queue",
        "q",
        "utils.sh",
        "--mounts",
        "type=bind,src=/a,dst=/b",
        "true",
    )
    assert (done.returncode, "does not support mounts" in done.stderr) == (2, True)


def test_the_last_of_a_plugin_gone_its_apps_can_still_be_listed(environment, tmp_path):
    """An uninstalled scheduler is named, and the rest is listed."""
    files = {"my/__init__.py": "", "my/s.py": SCHEDULER}
    environment.install("p", files, {"phalanx.schedulers": ["mine = my.s:create_scheduler"]})
    environment("run", "-s", "mine", "-cfg", "queue=q", "utils.echo")
    rows = json.loads(command("list", "--json").stdout)
    assert [row["status"]["state"] for row in rows] == ["UNKNOWN"]
    assert "unknown scheduler 'mine'" in command("list").stderr


WILD = """
from dataclasses import dataclass

from phalanx.schedulers import Scheduler, need
from phalanx.specs import AppState, AppStatus, AppSummary

@dataclass
class Options:
    pass

class Wild(Scheduler):
    options = Options
    def dryrun(self, app, options):
        return {}
    def submit(self, request):
        return IDS.pop(0)
    def describe(self, app_id):
        raise ConnectionError("cluster is offline")
    def list(self):
        raise KeyError("cluster is offline")
    def logs(self, app_id, role, replica, **_):
        yield 1 / 0
    def cancel(self, app_id):
        raise SystemExit(3)
    def delete(self, app_id):
        raise ConnectionError("cluster is offline")
    def close(self):
        raise OSError("cannot close")

class Odd(Wild):
    def submit(self, request):
        return 5
    def describe(self, app_id):
        return "RUNNING"
    def list(self):
        return None

@dataclass
class Unreadable:
    z: "Undefined" = 1

class NoOptions(Wild):
    options = Unreadable

class NoDataclass(Wild):
    options = int

IDS = ["1234"]

def wild(session_name, **kwargs): return Wild(session_name)
def odd(session_name, **kwargs): return Odd(session_name)
def unreadable(session_name, **kwargs): return NoOptions(session_name)
def no_dataclass(session_name, **kwargs): return NoDataclass(session_name)
def outside(session_name, **kwargs):
    IDS[:] = ["../../../escaped"]
    return Wild(session_name)
def clientless(session_name, **kwargs):
    need("no_such_client", "acme[cluster]")
"""


def test_schedulers_that_misbehave_are_named_and_hinder_nobody(environment, tmp_path):
    """Whatever they raise or give, whenever."""
    names = ("wild", "odd", "unreadable", "no_dataclass", "outside", "clientless")
    entries = [f"{name} = w:{name}" for name in names] + ["tame = w:wild"]
    environment.install("p", {"w/__init__.py": WILD}, {"phalanx.schedulers": entries})
    done = environment("runopts")
    assert done.returncode == 0
    assert {"local_cwd:", "ssh:", "wild:", "odd:"} <= set(done.stdout.split())
    for said in ("'unreadable' of p", "'no_dataclass' of p", "pip install 'acme[cluster]'"):
        assert said in done.stderr
    for verb in ("config", "configure"):
        assert environment(verb, *(["--print"] if verb == "configure" else [])).returncode == 0
    for name in ("wild", "tame"):  # both give the same id
        done = environment("run", "-s", name, "utils.echo", "--msg", name)
        assert (done.returncode, done.stdout) == (0, f"{name}://phalanx/1234\n")
        assert "the scheduler" in done.stderr  # it cannot be closed
    assert environment("run", "--wait", "utils.echo").returncode == 0
    done = environment("list", "--json")
    assert [row["status"]["state"] for row in json.loads(done.stdout)] == [
        *("UNKNOWN", "UNKNOWN", "SUCCEEDED"),
    ]
    assert "the scheduler wild failed: KeyError: 'cluster is offline'" in done.stderr
    for name in ("wild", "tame"):
        shown = json.loads(environment("describe", f"{name}://phalanx/1234").stdout)
        assert shown["roles"][0]["args"] == [name]
    for verb in ("status", "log", "cancel", "delete"):
        done = environment(verb, "wild://phalanx/1234")
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), verb
        assert "wild" in done.stderr
    assert "wild://phalanx/1234" in environment("status", "1234").stderr  # one of two
    for name, said in (
        ("odd", "returned 5, which is not a valid id"),
        ("outside", "not a valid id"),
    ):
        done = environment("run", "-s", name, "utils.echo")
        assert (done.returncode, done.stdout) == (1, "")
        assert said in done.stderr
    assert not list(tmp_path.rglob("escaped"))
    done = environment("status", "odd://phalanx/x")
    assert "it gave 'RUNNING', not a AppStatus" in done.stderr
    done = environment("run", "-s", "clientless", "utils.echo")
    assert done.returncode == 2
    assert "pip install 'acme[cluster]'" in done.stderr


def test_what_an_uninstalled_scheduler_has_left_can_be_forgotten(environment):
    """The record at least."""
    environment.install("p", {"w/__init__.py": WILD}, {"phalanx.schedulers": ["wild = w:wild"]})
    environment("run", "-s", "wild", "utils.echo")
    done = command("delete", "wild://phalanx/1234")
    assert done.returncode == 0, done.stderr
    assert json.loads(command("list", "--json").stdout) == []


def test_a_component_entry_that_is_broken_does_not_hide_others(environment):
    """Nor does a module that refuses when it is imported, or a record that is damaged."""
    refusing = "from phalanx.specs import resource\nresource(h='gpu.smal')\n"
    files = {**BAZ, "my_project/bar/refuses.py": refusing}
    entries = ["_ = no_such_package", "_0 = my_project.bar", "_1 = phalanx.components"]
    environment.install("p", files, {"phalanx.components": entries})
    done = environment("builtins")
    assert "baz.trainer" in listed(done)
    assert "Did you mean 'gpu.small'" in done.stderr
    assert environment("run", "--wait", "utils.echo").returncode == 0
    assert environment("run", "--wait", "baz.trainer").returncode == 0
    where = environment.evaluate("import my_project; print(my_project.__file__)").strip()
    damaged = Path(where).parent.parent / "damaged-1.dist-info"
    damaged.mkdir()
    (damaged / "METADATA").write_text("Name: damaged\nVersion: 1\n")
    (damaged / "entry_points.txt").write_text("[phalanx.components]\nnonsense\n")
    done = environment("builtins")
    assert "baz.trainer" in listed(done)
    assert "damaged" in done.stderr


# ── commands ──────────────────────────────────────────────────────────────────


def test_commands_of_a_package(environment):
    """A function or a module; one that is broken breaks no other."""
    files = {
        "cmds/__init__.py": "",
        "cmds/hello.py": "def main(arguments):\n    print('hello', arguments)\n    return 4\n",
        "cmds/broken.py": "import no_such_module",
    }
    entries = [
        "hello = cmds.hello",
        "hi = cmds.hello:main",
        "oops = cmds.broken",
        "run = cmds.hello",
    ]
    environment.install("p", files, {"phalanx.cli": entries})
    for verb in ("hello", "hi"):
        done = environment(verb, "--flag", "x")
        assert (done.returncode, done.stdout) == (4, "hello ['--flag', 'x']\n")
    done = environment("oops")
    assert done.returncode == 1
    assert "plugin 'oops' of p (phalanx.cli: cmds.broken) is broken" in done.stderr
    assert "Traceback" not in done.stderr
    done = environment("--help")
    assert "hello       from p" in done.stdout
    assert "phalanx has a command of that name" in done.stderr
    assert environment("run", "--wait", "utils.echo").returncode == 0
    assert "Did you mean 'hello'?" in environment("helo").stderr


def test_entry_points_are_read_once(environment):
    """However many kinds of them are asked for."""
    environment.install("p", BAZ, {"phalanx.components": ["foo = my_project.bar"]})
    code = """
from phalanx import _plugins
times = []
real = _plugins._packages
_plugins._packages = lambda: times.append(1) or real()
from phalanx._cli import main
main(["builtins"]); main(["runopts"]); main(["run", "--dryrun", "foo.baz.trainer"])
print("read", len(times))
"""
    assert environment.evaluate(code).splitlines()[-1] == "read 1"


TORCHX_SCHEDULER = """
    import os, subprocess, tempfile
    import phalanx.compat.torchx as torchx
    from phalanx.compat.torchx.schedulers.api import (
        AppDryRunInfo, DescribeAppResponse, ListAppResponse, Scheduler, split_lines_iterator,
    )
    from phalanx.compat.torchx.schedulers.ids import make_unique
    from phalanx.compat.torchx.schedulers.local_scheduler import LogIterator
    from phalanx.compat.torchx.specs import (
        NONE, AppState, ReplicaStatus, Role, RoleStatus, macros, runopts,
    )
    from phalanx.compat.torchx.util import shlex

    PLACE = os.environ["PLACE"]

    class Simple(Scheduler):
        def __init__(self, session_name, wrong=False):
            super().__init__("simple", session_name)
            self.wrong = wrong

        def _run_opts(self):
            opts = runopts()
            opts.add("queue", type_=str, required=True, help="the queue")
            opts.add("mail-user", type_=str, default=None, help="whom to tell")
            return opts

        def _submit_dryrun(self, app, cfg):
            app.roles[0].env["QUEUE"] = cfg["queue"]
            app.roles[0].args.append("end")
            values = macros.Values(
                img_root="", app_id="simple-1", replica_id="0", rank0_env="TORCHX_RANK0_HOST"
            )
            role = values.apply(app.roles[0])
            assert role.resource != NONE and shlex.join(["a b"]) == "'a b'"
            request = {"cmd": [role.entrypoint, *role.args], "env": dict(role.env)}
            return AppDryRunInfo(request, lambda request: 1 / 0 if self.wrong else repr(request))

        def schedule(self, dryrun_info):
            request = dryrun_info.request
            with open(f"{PLACE}/simple-1", "w") as out:
                subprocess.run(request["cmd"], stdout=out, env={**os.environ, **request["env"]})
            return "simple-1"

        def describe(self, app_id):
            if self.wrong:
                return "fine"
            if not os.path.exists(f"{PLACE}/{app_id}"):
                return None
            role, status = Role(name="sh", num_replicas=0, image=""), RoleStatus("sh", [])
            role.num_replicas += 1  # as many as are found
            status.replicas.append(
                ReplicaStatus(id=0, state=AppState.SUCCEEDED, role="sh", hostname="here")
            )
            return DescribeAppResponse(
                app_id=app_id,
                state=AppState.SUCCEEDED,
                roles=[role],
                roles_statuses=[status],
            )

        def list(self):
            return [ListAppResponse("simple-1", AppState.SUCCEEDED)]

        def _cancel_existing(self, app_id):
            pass

        def log_iter(self, app_id, role_name, k=0, regex=None, since=None, until=None,
                     should_tail=False, streams=None):
            found = LogIterator(app_id, f"{PLACE}/{app_id}", self, should_tail=should_tail)
            return split_lines_iterator(found)

    def create_scheduler(session_name, **kwargs):
        return Simple(session_name)

    def create_wrong(session_name, **kwargs):
        return Simple(session_name, wrong=True)
"""


def test_a_scheduler_written_for_torchx_runs_with_its_imports_changed(
    environment, tmp_path, monkeypatch
):
    """Options, changes to the app, status, logs; what it cannot do, and nonsense, is named. A module
    of TorchX's that is looked for under a name of ours is told.
    """
    monkeypatch.setenv("PLACE", str(tmp_path))
    entries = ["simple = simple_plugin:create_scheduler", "wrong = simple_plugin:create_wrong"]
    entries += ["astray = simple_plugin.astray:create"]
    environment.install(
        "simple_plugin",
        {
            "simple_plugin/__init__.py": textwrap.dedent(TORCHX_SCHEDULER),
            "simple_plugin/astray.py": "from phalanx.schedulers.local_scheduler import LogIterator",
        },
        {"phalanx.schedulers": entries},
    )
    words = ["-s", "simple", "-cfg", "queue=q", "utils.sh", "--entrypoint", "sh", "--"]
    done = environment("run", "--wait", "--log", *words, "-c", "echo $QUEUE $0")
    assert done.returncode == 0, done.stderr
    assert "sh/0 q end" in done.stderr
    handle = done.stdout.strip()
    assert handle == "simple://phalanx/simple-1"
    assert "SUCCEEDED" in environment("status", handle).stdout
    done = environment("run", "--dryrun", *words, "-c", "x")
    assert "'cmd': ['sh', '-c', 'x', 'end']" in done.stdout
    assert "missing required option 'queue'" in environment("run", *words[:2], "utils.echo").stderr
    assert "queue" in environment("runopts", "simple").stdout
    done = environment("delete", handle)
    assert "the scheduler simple does not support this: it cannot delete apps" in done.stderr
    done = environment("status", "wrong://phalanx/simple-1")
    assert "the scheduler wrong failed: TypeError: it gave 'fine', not a" in done.stderr
    done = environment("run", "--dryrun", "-s", "wrong", *words[2:])
    assert done.returncode == 1
    assert "the scheduler wrong failed: ZeroDivisionError" in done.stderr
    done = environment("runopts", "astray")
    said = "torchx's module of that name is phalanx.compat.torchx.schedulers.local_scheduler"
    assert said in done.stderr


def test_a_command_that_is_a_class(environment):
    """As TorchX has them."""
    code = """
        from phalanx.cli import SubCommand

        class Greet(SubCommand):
            '''Greet somebody.'''

            def add_arguments(self, subparser):
                subparser.add_argument("--name", required=True)

            def run(self, args):
                print("hello", args.name)
    """
    environment.install(
        "greet",
        {"greet/__init__.py": textwrap.dedent(code)},
        {"phalanx.cli": ["greet = greet:Greet"]},
    )
    assert environment("greet", "--name", "x").stdout == "hello x\n"
    done = environment("greet")
    assert done.returncode == 2
    assert "phalanx greet: error" in done.stderr


SLOW = """
import os, time
from dataclasses import dataclass

from phalanx.schedulers import Scheduler
from phalanx.specs import AppState, AppStatus, AppSummary

def answer():
    while not os.path.exists("answer"):
        time.sleep(0.01)

@dataclass
class Options:
    pass

class Slow(Scheduler):
    options = Options
    def dryrun(self, app, options):
        return {}
    def submit(self, request):
        answer()
        return "one"
    def describe(self, app_id):
        if not os.path.exists("quick"):
            answer()
        return AppStatus(app="one", state=AppState.RUNNING)
    def list(self):
        answer()
        return []
    def logs(self, app_id, role, replica, **_):
        answer()
        return iter(())
    def cancel(self, app_id):
        answer()
    def delete(self, app_id):
        answer()

def create(session_name, **kwargs):
    return Slow(session_name)
"""


def test_commands_say_what_they_wait_for(environment):
    """A scheduler that takes its time is named, with what it is to do, by every command."""
    files = {"my/__init__.py": "", "my/slow.py": SLOW}
    environment.install("p", files, {"phalanx.schedulers": ["slow = my.slow:create"]})
    answer, quick = Path("answer"), Path("quick")

    def waits_for(*words):
        """What the command says before it is answered."""
        answer.unlink(missing_ok=True)
        run = [environment.python, "-m", "phalanx", *words]
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(run, **streams) as process:
            give_up = threading.Timer(60, process.kill)
            give_up.start()
            line = process.stderr.readline().rstrip()
            answer.touch()
            process.communicate()
            give_up.cancel()
        return line

    waiting = "phalanx run: waiting for slow to accept the app"
    assert waits_for("run", "-s", "slow", "utils.echo") == waiting
    assert waits_for("status") == "phalanx status: waiting for an answer from slow"
    assert waits_for("list") == "phalanx list: waiting for answers from the schedulers of your apps"
    assert waits_for("list", "-s", "slow") == "phalanx list: waiting for an answer from slow"
    assert waits_for("log") == "phalanx log: waiting for an answer from slow"
    quick.touch()
    assert waits_for("cancel", "one") == "phalanx cancel: waiting for slow to cancel one"
    waiting = "phalanx delete: waiting for slow to delete slow://phalanx/one"
    assert waits_for("delete", "one") == waiting


def test_a_quick_answer_needs_no_words(environment):
    """Nothing but the answer is printed then."""
    files = {"my/__init__.py": "", "my/slow.py": SLOW}
    environment.install("p", files, {"phalanx.schedulers": ["slow = my.slow:create"]})
    Path("answer").touch()
    assert environment("run", "-s", "slow", "utils.echo").stderr == ""
    assert environment("list").stderr == ""
