"""What people who come from TorchX do with specs, and where they look for names."""

import copy
import dataclasses
import importlib
import json
import pickle
import re
from typing import ClassVar

import pytest
import yaml

from phalanx import errors, specs
from phalanx._specs.mutable import MutableAppDef, MutableRole, frozen, thawed
from phalanx.runner import Runner, get_runner
from phalanx.runner.config import apply
from phalanx.schedulers import Scheduler, ids
from phalanx.schedulers.api import split_lines
from phalanx.specs import AppDef, AppState, AppStatus, BindMount, Resource, Role

ROLE = Role("r", args=["a", "b"], env={"A": "1"}, metadata={"x": [1, {"y": 2}]})


def test_frozen_lists_and_dicts_read_as_those_they_replace():
    """Whatever others' code asks of them."""
    assert isinstance(ROLE.args, list)
    assert isinstance(ROLE.env, dict)
    assert ["x"] + ROLE.args == ["x", "a", "b"]  # noqa: RUF005 what users write
    assert ROLE.args + ["x"] == ["a", "b", "x"]  # noqa: RUF005
    assert ("x",) + ROLE.args == ["x", "a", "b"]  # noqa: RUF005
    assert (ROLE.args[1:], ROLE.args[::-1]) == (["b"], ["b", "a"])
    assert ROLE.args == ["a", "b"] == ROLE.args
    assert ROLE.args == ("a", "b")
    assert ROLE.args != ["a"]
    assert json.dumps([ROLE.args, ROLE.env]) == '[["a", "b"], {"A": "1"}]'
    assert yaml.safe_load(yaml.safe_dump({"m": Role("q", metadata={"k": [1]}).metadata})) == {
        "m": {"k": [1]}
    }
    assert yaml.safe_load(yaml.safe_dump(dataclasses.asdict(ROLE.resource))) == {
        "capabilities": {},
        "cpu": -1,
        "devices": {},
        "gpu": -1,
        "memMB": -1,
        "tags": {},
    }
    for made in (copy.copy(ROLE.args), copy.deepcopy(ROLE.args), pickle.loads(pickle.dumps(ROLE))):
        assert made in (ROLE.args, ROLE)
    changed = ROLE.args.copy()
    changed.append("c")
    assert (changed, ROLE.args) == (["a", "b", "c"], ["a", "b"])
    assert {**ROLE.env, "B": "2"} == {"A": "1", "B": "2"} == ROLE.env | {"B": "2"}
    assert len({ROLE, dataclasses.replace(ROLE)}) == 1


@pytest.mark.parametrize(
    ("change", "what", "recipe"),
    [
        (lambda: ROLE.args.append("x"), "role.args", "role.with_args('--flag')"),
        (lambda: ROLE.args.extend(["x"]), "role.args", "role.with_args('--flag')"),
        (lambda: ROLE.args.__iadd__(["x"]), "role.args", "role.with_args('--flag')"),
        (lambda: ROLE.args.sort(), "role.args", "role.with_args('--flag')"),
        (lambda: ROLE.args.__setitem__(0, "x"), "role.args", "role.with_args('--flag')"),
        (lambda: ROLE.env.update(B="2"), "role.env", "role.with_env({'KEY': 'value'})"),
        (lambda: ROLE.env.__setitem__("B", "2"), "role.env", "role.with_env({'KEY': 'value'})"),
        (lambda: ROLE.metadata["x"].append(3), "role.metadata", "role.with_metadata({'key': …})"),
        (lambda: ROLE.metadata["x"][1].clear(), "role.metadata", "role.with_metadata({'key': …})"),
        (lambda: copy.deepcopy(ROLE).mounts.append(3), "role.mounts", "role.with_mounts(…)"),
        (
            lambda: ROLE.port_map.clear(),
            "role.port_map",
            "dataclasses.replace(role, port_map={**role.port_map, …})",
        ),
        (lambda: AppDef("a", [ROLE]).roles.pop(), "app.roles", "app.with_role(role)"),
    ],
)
def test_changing_one_says_how_to_make_another(change, what, recipe):
    """The attribute is named, and what makes a spec with another."""
    with pytest.raises(TypeError) as caught:
        change()
    variable = what.partition(".")[0]
    said = f"{what} cannot be changed in place: use {variable} = {recipe}"
    assert str(caught.value) == said


def test_assigning_says_how_to_make_another():
    """By the field."""
    app = AppDef("a", [ROLE])
    for spec, name, recipe in (
        (ROLE, "env", r"role\.with_env"),
        (ROLE, "args", r"role\.with_args"),
        (ROLE, "num_replicas", r"dataclasses\.replace\(role, num_replicas="),
        (app, "roles", r"app\.with_role"),
        (app, "name", r"dataclasses\.replace\(app, name="),
        (ROLE.resource, "gpu", r"dataclasses\.replace\(resource, gpu="),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError, match=recipe):
            setattr(spec, name, 1)


def test_builders():
    """For what people do by changing."""
    mount = BindMount("/a", "/b")
    made = ROLE.with_args("c").with_env({"B": "2"}, C="3").with_mounts(mount).with_metadata(z=1)
    assert made.args == ["a", "b", "c"]
    assert made.env == {"A": "1", "B": "2", "C": "3"}
    assert (made.mounts, made.metadata["z"]) == ([mount], 1)
    app = AppDef("a", [ROLE]).with_role(Role("s")).with_role(made).with_env(D="4")
    assert [role.name for role in app.roles] == ["r", "s"]
    assert [role.env["D"] for role in app.roles] == ["4", "4"]
    assert app.with_metadata({"k": "v"}).metadata == {"k": "v"}
    assert ROLE.env == {"A": "1"}


def test_minus_one_means_not_specified():
    """As in TorchX; other numbers below 0 are mistakes."""
    assert specs.NULL_RESOURCE == Resource(-1, -1, -1)
    assert specs.resource(cpu=1, gpu=0, memMB=-1).memMB == -1
    assert specs.from_json(specs.to_json(AppDef("a", [Role("r", resource=specs.NULL_RESOURCE)])))
    with pytest.raises(errors.ConfigError, match=r"Resource.memMB: -5"):
        Resource(1, 0, -5)


def asked_of_slurm(role):
    from phalanx._schedulers.slurm.options import SlurmOptions
    from phalanx._schedulers.slurm.script import ScriptRole, make_script

    made = ScriptRole("r", 1, ("true",), {}, "/", role.resource)
    script = make_script("app-1", "/jobs/app-1", (made,), SlurmOptions(), ("python3",))
    return set(re.findall(r"^#SBATCH --(cpus|mem|gpus)", script, re.MULTILINE))


def asked_of_docker(role):
    from phalanx._schedulers.docker.options import DockerOptions
    from phalanx._schedulers.docker.request import make_request

    made = make_request(AppDef("a", [role]), "s", DockerOptions(), "R0", {}, {})
    config = made.containers[0].config["HostConfig"]
    return {"NanoCpus", "Memory", "DeviceRequests"} & config.keys()


def asked_of_kubernetes(role):
    from phalanx._schedulers.kubernetes.options import KubernetesOptions
    from phalanx._schedulers.kubernetes.apps.request import RequestFiles, make_request

    options, files = KubernetesOptions(), RequestFiles()
    made = make_request(AppDef("a", [role]), "s", options, "R0", "ns", (1, 29), files, {}, {})
    return set(re.findall(r"\b(cpu|memory|nvidia\.com/gpu): ", str(made)))


def asked_of_aws_batch(role):
    from phalanx._schedulers.aws_batch.options import AwsBatchOptions
    from phalanx._schedulers.aws_batch.request import make_request

    options = AwsBatchOptions(queue="q")
    made = make_request(AppDef("a", [role]), "s", "me", options, "R0", {})
    return set(re.findall(r'"type": "(VCPU|MEMORY|GPU)"', json.dumps(made.with_images({}))))


@pytest.mark.parametrize(
    ("asked", "left", "given"),
    [
        (asked_of_slurm, set(), {"cpus", "mem", "gpus"}),
        (asked_of_docker, set(), {"NanoCpus", "Memory", "DeviceRequests"}),
        (asked_of_kubernetes, set(), {"cpu", "memory", "nvidia.com/gpu"}),
        # The service takes no job without these two: it is asked for little.
        (asked_of_aws_batch, {"VCPU", "MEMORY"}, {"VCPU", "MEMORY", "GPU"}),
    ],
)
def test_what_is_not_specified_is_not_asked_for(asked, left, given):
    """Of any scheduler that reserves."""
    role = Role("r", image="i:1", entrypoint="true")
    assert role.resource == specs.NULL_RESOURCE
    assert asked(role) == left
    assert asked(dataclasses.replace(role, resource=Resource(2, 1, 4096))) == given


def test_states_are_ordered_and_shown_by_name():
    """As they follow each other."""
    assert AppState.PENDING < AppState.RUNNING <= AppState.SUCCEEDED
    assert max(AppState.SUBMITTED, AppState.PENDING) is AppState.PENDING
    assert sorted([AppState.SUCCEEDED, AppState.PENDING])[0] is AppState.PENDING
    assert (AppState.FAILED > AppState.RUNNING, AppState.RUNNING >= AppState.FAILED) == (
        True,
        False,
    )
    assert json.dumps({"state": AppState.RUNNING}) == '{"state": "RUNNING"}'
    assert (str(AppState.RUNNING), specs.ReplicaState is AppState) == ("RUNNING", True)
    assert [state.name for state in AppState if specs.is_started(state)] == [
        "RUNNING",
        "SUCCEEDED",
        "FAILED",
        "CANCELLED",
    ]


def test_a_status_raises_is_shown_and_is_json():
    """With its replicas, or those of some roles."""
    replicas = (specs.ReplicaStatus(0, "r", AppState.FAILED, exit_code=3),)
    roles = (specs.RoleStatus("r", replicas), specs.RoleStatus("s", ()))
    status = AppStatus("app", AppState.FAILED, "why", roles=roles)
    with pytest.raises(errors.AppStatusError, match="app did not succeed") as raised:
        status.raise_for_status()
    assert raised.value.status is status
    assert pickle.loads(pickle.dumps(raised.value)).status == status
    AppStatus("app", AppState.SUCCEEDED).raise_for_status()
    assert "r/0: FAILED exited with code 3" in status.format()
    assert "r/0" not in status.format(["s"])
    plain = json.loads(json.dumps(status.to_json()))
    assert (plain["state"], plain["roles"][0]["replicas"][0]["state"]) == ("FAILED", "FAILED")
    assert [role["role"] for role in status.to_json(filter_roles=["s"])["roles"]] == ["s"]


def test_handles():
    """Made, and taken apart."""
    handle = specs.make_app_handle("local_cwd", "team", "echo-1")
    parsed = specs.parse_app_handle(handle)
    assert parsed == ("local_cwd", "team", "echo-1")
    assert (parsed.scheduler_backend, parsed.session_name) == ("local_cwd", "team")
    assert specs.parse_app_handle("slurm:///job-1") == ("slurm", "", "job-1")
    with pytest.raises(errors.ConfigError, match="invalid handle"):
        specs.parse_app_handle("echo-1")


def test_a_variable_with_its_value_in_its_name_is_taken_apart():
    """A slip that a shell's notation invites."""
    with pytest.raises(errors.ConfigError) as raised:
        Role("r", env={"DEBUG=1": "1"})
    assert str(raised.value) == (
        "role 'r': env: 'DEBUG=1' is not a valid variable name. Write 'DEBUG': '1'."
    )


def component(name: str, env: dict[str, str] | None = None, debug: bool = False) -> AppDef:
    """A component."""
    return AppDef(name, [Role("r", env=env or {}, args=[str(debug)])])


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("A=1;B=2", {"A": "1", "B": "2"}),
        ("A=x,y,B=z", {"A": "x,y", "B": "z"}),
        ("A=x;y,B=z", {"A": "x;y", "B": "z"}),
        ("A=,B=z", {"A": "", "B": "z"}),
        ("A='',B=z", {"A": "", "B": "z"}),
        ("URL=http://h:1/?a=b,B=c=d", {"URL": "http://h:1/?a=b", "B": "c=d"}),
        ('A="x;B=1",C=2', {"A": "x;B=1", "C": "2"}),
        ("", {}),
    ],
)
def test_environments_are_read_as_torchx_reads_them(text, env):
    """Values may have commas; `;` separates as well."""
    made = specs.materialize_appdef(component, ["--name", "a", "--env", text])
    assert made.roles[0].env == env


@pytest.mark.parametrize(("text", "value"), [("1", "True"), ("t", "True"), ("y", "True")])
def test_bools_of_one_letter(text, value):
    """And their opposites."""
    words = ["--name", "a", "--debug"]
    assert specs.materialize_appdef(component, [*words, text]).roles[0].args == [value]
    opposite = {"1": "0", "t": "f", "y": "n"}[text]
    assert specs.materialize_appdef(component, [*words, opposite]).roles[0].args == ["False"]


@pytest.mark.parametrize("text", ["1", "t", "y", "true", "yes"])
def test_bools_among_options_of_a_scheduler(text):
    """As `-cfg prepend_cwd=1`, and their opposites."""
    opposite = {"1": "0", "t": "f", "y": "n", "true": "false", "yes": "no"}[text]
    app = AppDef("a", [Role("r", entrypoint="true")])
    with get_runner() as runner:
        assert runner.dryrun(app, "local_cwd", f"prepend_cwd={text}").cfg.prepend_cwd is True
        assert runner.dryrun(app, "local_cwd", f"prepend_cwd={opposite}").cfg.prepend_cwd is False


def test_apply_fills_in_options_that_are_not_given(tmp_path):
    """Those that are given are kept, and the first directory counts most."""
    for name, text in (("a", 'log_dir = "a"\nstop_grace = 1'), ("b", "prepend-cwd = true")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".phalanxconfig").write_text(
            f'[scheduler.local_cwd]\n{text}\n[scheduler.ssh]\nhosts = "h"\n'
        )
    (tmp_path / "b" / ".phalanxconfig").open("a").write('[command.run]\nscheduler = "ssh"\n')
    cfg = {"stop_grace": 7}
    apply("local_cwd", cfg, dirs=[str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path)])
    assert cfg == {"stop_grace": 7, "log_dir": "a", "prepend_cwd": True}


class Bare(Scheduler):
    """Only what a scheduler must have, over apps that are all there."""

    options = dataclasses.make_dataclass("Options", [])
    created: ClassVar[list] = []

    def __init__(self, session_name, **params):
        """What it is created with is noted."""
        super().__init__(session_name)
        self.created.append((session_name, params))

    def dryrun(self, app, options):
        """Nothing to prepare."""
        return app

    def submit(self, request):
        """At once."""
        return "bare-1"

    def describe(self, app_id):
        """It has ended."""
        role = specs.RoleStatus("r", (specs.ReplicaStatus(0, "r", AppState.SUCCEEDED),))
        return AppStatus(app_id, AppState.SUCCEEDED, roles=(role,))

    def list(self):
        """None is remembered."""
        return []

    def cancel(self, app_id):
        """It has ended."""


def test_a_scheduler_without_logs_and_delete_says_so(monkeypatch):
    """To whoever asks; and each is created with the parameters of its runner."""
    monkeypatch.setattr(Bare, "created", [])
    factories = {"bare": Bare}
    with Runner("team", factories, scheduler_params={"client": 1}) as runner:
        said = "the scheduler bare does not support this: it has no logs"
        with pytest.raises(errors.SchedulerError, match=said):
            list(runner.log_lines("bare://team/bare-1", "r"))
        said = "the scheduler bare does not support this: it cannot delete apps"
        with pytest.raises(errors.SchedulerError, match=said):
            runner.delete("bare://team/bare-1")
    assert Bare.created == [("team", {"client": 1})]


def test_materialize_takes_defaults_and_a_config():
    """Words win over defaults, the config over words."""
    defaults = {"name": "default", "debug": True}
    assert specs.materialize_appdef(component, [], defaults).roles[0].args == ["True"]
    assert specs.materialize_appdef(component, ["--name", "b"], defaults).name == "b"
    made = specs.materialize_appdef(component, ["--name", "b"], None, {"name": "c", "other": 1})
    assert made.name == "c"
    with pytest.raises(errors.UsageError, match="missing required --name"):
        specs.materialize_appdef(component, [])


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        ("specs", "MISSING", "use '' or None"),
        ("specs", "InvalidRunConfigException", "phalanx.ConfigError"),
        ("specs.api", "MISSING", "use '' or None"),
        ("specs.builders", "parse_args", "materialize_appdef"),
        ("schedulers", "get_default_scheduler_name", "default_scheduler"),
        ("schedulers", "slurm_scheduler", "phalanx.compat.torchx.schedulers.slurm_scheduler"),
        ("compat.torchx", "tracker", "a role's env"),
        ("compat.torchx.schedulers", "kubernetes_mcad_scheduler", "use kubernetes_scheduler"),
        ("compat.torchx.schedulers.local_scheduler", "PopenRequest", "str\\(info\\)"),
        ("compat.torchx.cli", "cmd_run", "torchx.cli.main.main"),
        ("schedulers.api", "WorkspaceMixin", "phalanx.schedulers.Scheduler"),
        ("runner.api", "get_configured_trackers", "env"),
        ("runner.config", "dump", "phalanx configure"),
        ("compat.torchx.specs.finder", "ModuleComponentsFinder", "get_components"),
    ],
)
def test_a_name_that_there_is_not_says_what_to_use(module, name, said):
    """For those whom people import, in one way or the other."""
    found = importlib.import_module(f"phalanx.{module}")
    with pytest.raises(AttributeError, match=said):
        getattr(found, name)
    assert not hasattr(found, name)
    with pytest.raises(ImportError, match=said):
        exec(f"from phalanx.{module} import {name}")


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("schedulers.local_scheduler", "phalanx.compat.torchx.schedulers.local_scheduler"),
        ("specs.finder", "torchx's module of that name is phalanx.compat.torchx.specs.finder"),
        ("components.component_test_base", "phalanx.compat.torchx.components.component_test_base"),
        ("version", "phalanx.compat.torchx.version"),
        ("utils", "torchrunx's module of that name is phalanx.compat.torchrunx.utils"),
        ("tracker", "trackers are not part of Phalanx"),
        ("nonsense", "^No module named 'phalanx.nonsense'$"),
    ],
)
def test_a_module_that_there_is_not_says_where_it_is(module, said):
    """For those that are here under the name of another launcher."""
    with pytest.raises(ModuleNotFoundError, match=said) as caught:
        importlib.import_module(f"phalanx.{module}")
    assert caught.value.name == f"phalanx.{module}"
    with pytest.raises(AttributeError, match=r"phalanx\.compat\.torchx\.version"):
        importlib.import_module("phalanx").version.TORCHX_IMAGE


def test_what_torchxs_requests_have_says_what_ours_have():
    """Tools look into them."""
    with get_runner() as runner:
        made = AppDef("a", [Role("r", entrypoint="x")])
        request = runner.dryrun(made, "local_cwd").request
        with pytest.raises(AttributeError, match="role_params': replicas have argv"):
            request.role_params  # noqa: B018 it is asked for
        with pytest.raises(AttributeError, match="no attribute 'nonsense'$"):
            request.nonsense  # noqa: B018 it is asked for
        opts = {name: opt for name, opt in runner.scheduler_run_opts("local_cwd")}  # noqa: C416 unpacked
    assert (opts["log_dir"].is_required, opts["prepend_cwd"].opt_type) == (False, bool)


NAMES = {
    "": "IMAGE",
    "specs": "parse_app_handle make_app_handle AppHandle CfgVal AppDryRunInfo ReplicaState "
    "materialize_appdef UnknownAppException NULL_RESOURCE",
    "specs.api": "parse_app_handle make_app_handle AppHandle CfgVal AppDryRunInfo ReplicaState "
    "UnknownAppException NULL_RESOURCE AppDef Role Resource macros runopts",
    "specs.builders": "materialize_appdef make_app_handle parse_mounts",
    "schedulers": "get_scheduler_factories",
    "schedulers.api": "AppDryRunInfo AppState DescribeAppResponse ListAppResponse Scheduler Stream "
    "filter_regex runopts split_lines",
    "schedulers.ids": "make_unique random_id get_len_random_id random_uint64",
    "runner": "Runner get_runner",
    "runner.api": "Runner get_runner AppHandle AppStatus AppDryRunInfo CfgVal UnknownAppException "
    "make_app_handle materialize_appdef parse_app_handle",
    "runner.config": "apply find_configs get_config get_configs",
}


@pytest.mark.parametrize("root", ["phalanx", "phalanx.compat.torchx"])
@pytest.mark.parametrize("module", NAMES)
def test_names_are_where_people_import_them_from(root, module):
    """Ours, and those of the programs that run unchanged."""
    found = importlib.import_module(f"{root}.{module}".rstrip("."))
    for name in NAMES[module].split():
        assert getattr(found, name) is not None, name
    assert set(NAMES[module].split()) <= {*found.__all__, "IMAGE"}


def test_the_image_of_a_role_that_needs_none():
    """One may be named by default, as TorchX's programs do."""
    compat = importlib.import_module("phalanx.compat.torchx")
    assert importlib.import_module("phalanx").IMAGE == compat.IMAGE == Role("r").image


def test_facades_have_the_same_objects():
    """Where people import them from."""
    api = importlib.import_module("phalanx.specs.api")
    assert (api.AppDef, api.parse_app_handle) == (specs.AppDef, specs.parse_app_handle)
    assert api.__all__ == specs.__all__
    builders = importlib.import_module("phalanx.specs.builders")
    assert builders.make_app_handle is specs.make_app_handle
    runner = importlib.import_module("phalanx.runner")
    assert importlib.import_module("phalanx.runner.api").Runner is runner.Runner
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        api.nothing


def test_ids_and_lines(monkeypatch):
    """Small helpers of schedulers."""
    with monkeypatch.context() as fixed:
        fixed.setattr("os.urandom", lambda count: bytes(range(count)))
        assert ids.make_unique("app") == "app-fzfjxlmln9"
    assert len(ids.get_len_random_id(5)) == 5
    assert ids.make_unique("app") != ids.make_unique("app")
    assert split_lines("a\n\nb") == ["a\n", "\n", "b"]


def test_specs_that_may_be_changed():
    """They are specs of ours, and become frozen as they are then."""
    app = MutableAppDef("a", [MutableRole("r", args=["x"])])
    app.roles[0].args.append("y")
    app.roles[0].env["A"] = "1"
    app.roles[0].num_replicas = 2
    app.name = "b"
    assert isinstance(app, AppDef)
    made = frozen(app)
    assert made == AppDef("b", [Role("r", args=["x", "y"], env={"A": "1"}, num_replicas=2)])
    assert type(made.roles[0]) is Role
    app.roles[0].num_replicas = 0
    with pytest.raises(errors.ConfigError, match="num_replicas"):
        frozen(app)
    again = thawed(made)
    assert again == made
    assert copy.deepcopy(again) == again
    again.roles[0].env["B"] = "2"
    assert (again != made, made.roles[0].env) == (True, {"A": "1"})


def test_options_of_torchx():
    """Added one by one."""
    opts = specs.runopts()
    opts.add("queue", type_=str, required=True, help="the queue")
    opts.add("mail-user", type_=str, help="whom to tell")
    opts.add("images", type_=list[str], default=["a"], help="images")
    assert opts.cfg_from_str("queue=x,images=a,b;other=1") == {"queue": "x", "images": ["a", "b"]}
    assert opts.resolve({"queue": "x"}) == {"queue": "x", "mail-user": None, "images": ["a"]}
    with pytest.raises(errors.ConfigError, match="missing required option 'queue'"):
        opts.resolve({})
    with pytest.raises(errors.ConfigError, match="'queue': 3 is not str"):
        opts.resolve({"queue": 3})
    with pytest.raises(TypeError, match="must be of type"):
        opts.add("wrong", type_=int, default="x")
    with pytest.raises(ValueError, match="must not have a default"):
        opts.add("wrong", type_=int, default=3, required=True)
    assert "queue=QUEUE (str, required)" in repr(opts)
