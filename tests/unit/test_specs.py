"""Apps as data: checked, frozen, there and back."""

import copy
import dataclasses
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx import specs
from phalanx.errors import ConfigError
from phalanx.specs import AppDef, BindMount, DeviceMount, Resource, RetryPolicy, Role, VolumeMount

FULL = AppDef(
    "app",
    [
        Role(
            "one",
            image="img",
            min_replicas=1,
            entrypoint="sh",
            args=["-c", "x"],
            env={"A": "b"},
            num_replicas=2,
            max_retries=3,
            retry_policy=RetryPolicy.ROLE,
            resource=Resource(1.5, 2, 3, {"c": [1]}, {"d": 4}, {"t": "x"}),
            port_map={"http": 80},
            metadata={"deep": {"list": [1, "two", None]}},
            mounts=[
                BindMount("/a", "/b", True),
                VolumeMount("v", "/c"),
                DeviceMount("/d", "/e", "r"),
            ],
            workspace="/w",
        ),
        Role("two"),
    ],
    {"k": "v"},
)


def test_json_there_and_back():
    """Unchanged, all fields."""
    assert specs.from_json(specs.to_json(FULL)) == FULL
    assert specs.from_dict(json.loads(specs.to_json(FULL, indent=None))) == FULL


def test_yaml_there_and_back():
    """The same."""
    assert specs.from_yaml(specs.to_yaml(FULL)) == FULL
    with pytest.raises(ConfigError, match="invalid YAML"):
        specs.from_yaml("a: [")


def test_specs_do_not_change_and_can_be_copied():
    """Nor can what is in them."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.name = "x"
    role = FULL.roles[0]
    for change in (
        lambda: role.env.update(A="c"),
        lambda: role.env.__setitem__("A", "c"),
        lambda: role.metadata["deep"].clear(),
        lambda: role.resource.capabilities.pop("c"),
    ):
        with pytest.raises(TypeError, match="cannot be changed in place"):
            change()
    for made in (copy.deepcopy(FULL), pickle.loads(pickle.dumps(FULL)), dataclasses.replace(FULL)):
        assert made == FULL
    assert role.args == ["-c", "x"]
    assert [*role.args, "y"] == ["-c", "x", "y"]
    assert {**role.env} == {"A": "b"}


def test_what_was_given_is_not_kept():
    """Changing it afterwards changes nothing."""
    args, env = ["a"], {"A": "b"}
    role = Role("r", args=args, env=env)
    args.append("b")
    env["C"] = "d"
    assert (role.args, role.env) == (["a"], {"A": "b"})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: AppDef(""), "AppDef.name"),
        (lambda: AppDef("a", "roles"), "roles"),
        (lambda: AppDef("a", ["x"]), r"roles\[0\]"),
        (lambda: AppDef("a", [Role("r"), Role("r")]), r"roles\[1\].name"),
        (lambda: Role(""), "Role.name"),
        (lambda: Role("a/b"), "Role.name"),
        (lambda: Role(".."), "Role.name"),
        (lambda: Role("r", num_replicas=0), "num_replicas"),
        (lambda: Role("r", num_replicas=True), "num_replicas"),
        (lambda: Role("r", num_replicas="2"), "num_replicas"),
        (lambda: Role("r", min_replicas=2), "min_replicas"),
        (lambda: Role("r", max_retries=-1), "max_retries"),
        (lambda: Role("r", retry_policy="ROLE"), "retry_policy"),
        (lambda: Role("r", args="text"), "args"),
        (lambda: Role("r", args=[1]), r"args\[0\]"),
        (lambda: Role("r", args=["a\0b"]), r"args\[0\]"),
        (lambda: Role("r", env={"A": 1}), r"env\['A'\]"),
        (lambda: Role("r", env={"A=B": "1"}), "env"),
        (lambda: Role("r", env=["A"]), "env"),
        (lambda: Role("r", mounts=["x"]), r"mounts\[0\]"),
        (lambda: Role("r", port_map={"http": 99999}), r"port_map\['http'\]"),
        (lambda: Role("r", resource=3), "resource"),
        (lambda: Resource(-2, 0, 0), "Resource.cpu"),
        (lambda: Resource(1, 0.5, 0), "Resource.gpu"),
        (lambda: Resource(1, 0, "x"), "Resource.memMB"),
        (lambda: DeviceMount("/a", "/b", "x"), "permissions"),
        (lambda: specs.from_dict([]), "app"),
        (lambda: specs.from_dict({"name": "a", "rolls": []}), "app.rolls.*Did you mean 'roles'"),
        (lambda: specs.from_dict({}), "app.name is missing"),
        (lambda: specs.from_dict({"name": "a", "roles": [{}]}), r"app.roles\[0\].name is missing"),
        (lambda: specs.from_dict({"name": "a", "roles": [3]}), r"app.roles\[0\]"),
        (
            lambda: specs.from_dict({"name": "a", "roles": [{"name": "r", "retry_policy": "X"}]}),
            "retry_policy: 'X': choose one of",
        ),
        (
            lambda: specs.from_dict({"name": "a", "roles": [{"name": "r", "mounts": [{}]}]}),
            r"mounts\[0\].type",
        ),
        (lambda: specs.from_json("{"), "invalid JSON"),
    ],
)
def test_mistakes_name_the_field(make, said):
    """And the value."""
    with pytest.raises(ConfigError, match=said):
        make()


def test_resources():
    """By parts; by name, which wins; an explicit 0 is 0."""
    assert specs.resource() == Resource(2, 0, 1024)
    assert specs.resource(cpu=0, gpu=0, memMB=0) == Resource(0, 0, 0)
    assert specs.resource(cpu=1, h="gpu.large") == Resource(32, 4, 128 * 1024)
    assert specs.get_named_resources("cpu.nano") == Resource(1, 0, 512)
    p4d = specs.get_named_resources("aws_p4d.24xlarge")
    assert (p4d.cpu, p4d.gpu, p4d.memMB) == (96, 8, 1152 * 983)
    assert p4d.capabilities == {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
    assert p4d.devices == {"vpc.amazonaws.com/efa": 4}
    assert specs.get_named_resources("aws_trn1.2xlarge").devices == {
        "aws.amazon.com/neurondevice": 1
    }
    assert len(specs.named_resources) > 50
    assert all(found.memMB > 0 for found in specs.named_resources.values())
    assert specs.named_resources["cpu.nano"].cpu == 1
    assert "gpu.nano" not in specs.named_resources
    with pytest.raises(KeyError):
        specs.named_resources["gpu.nano"]
    for wrong, right in (("gpu.smal", "gpu.small"), ("aws_p4d.24xlarg", "aws_p4d.24xlarge")):
        with pytest.raises(ConfigError, match=f"Did you mean '{right}'"):
            specs.get_named_resources(wrong)
    grown = Resource.copy(p4d, spot=True)
    assert (grown.capabilities["spot"], "spot" in p4d.capabilities) == (True, False)


@pytest.mark.parametrize(
    ("text", "mounts"),
    [
        ("type=bind,src=/a,dst=/b", [BindMount("/a", "/b")]),
        ("type=bind,source=/a,target=/b,readonly", [BindMount("/a", "/b", True)]),
        ("type=bind,src=/a,destination=/b,read_only=false", [BindMount("/a", "/b", False)]),
        ("type=volume,src=v,dst=/b,readonly=true", [VolumeMount("v", "/b", True)]),
        ("type=device,src=/dev/x", [DeviceMount("/dev/x", "/dev/x")]),
        ("type=device,src=/dev/x,dst=/dev/y,perm=rw", [DeviceMount("/dev/x", "/dev/y", "rw")]),
        (
            "type=bind,src=a,dst=b,type=volume,src=c,dst=d",
            [BindMount("a", "b"), VolumeMount("c", "d")],
        ),
        ("", []),
    ],
)
def test_mounts(text, mounts):
    """As Docker writes them."""
    assert specs.parse_mounts([word for word in text.split(",") if word]) == mounts


def test_a_home_directory_in_a_mount(monkeypatch):
    """That of who submits; a volume is a name, which may begin like that."""
    monkeypatch.setenv("HOME", "/home/me")
    assert specs.parse_mounts(["type=bind", "src=~/data", "dst=~/b"]) == [
        BindMount("/home/me/data", "~/b")
    ]
    assert specs.parse_mounts(["type=volume", "src=~v", "dst=/b"]) == [VolumeMount("~v", "/b")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("src=/a", "before any type="),
        ("type=bund,src=/a,dst=/b", "unknown type 'bund'"),
        ("type=bind,src=/a", "needs dst="),
        ("type=bind,dst=/a", "needs src="),
        ("type=bind,src=/a,dts=/b", "Did you mean 'dst'"),
        ("type=bind,src=/a,dst=/b,target=/c", "given twice"),
        ("type=bind,src=/a,dst=/b,perm=r", "has no 'perm'"),
        ("type=device,src=/a,readonly", "has no 'readonly'"),
        ("type=bind,src=/a,dst=/b,readonly=maybe", "readonly='maybe'"),
    ],
)
def test_mounts_that_are_wrong(text, said):
    """Say how to write them."""
    with pytest.raises(ConfigError, match=said):
        specs.parse_mounts(text.split(","))


@given(st.text())
def test_macros_leave_alone_what_is_not_theirs(text):
    """Only `$` means something."""
    values = specs.macros.Values("/root", "app", "3", "RANK0")
    if "$" not in text:
        assert values.substitute(text) == text
    assert values.substitute(text.replace("$", "$$")) == text


def test_macros():
    """In all places, nested; `$$` is `$`, unknown names stay."""
    values = specs.macros.Values("/root", "app", "3", "RANK0")
    m = specs.macros
    role = Role(
        "r",
        entrypoint=f"{m.img_root}/bin/x",
        args=[m.app_id, f"$${{{m.rank0_env}:=x}}", "$$HOME ${HOME} $", "${replica_id}$app_id"],
        env={"A": f"<{m.replica_id}>"},
        metadata={"a": [m.app_id, {"b": (m.replica_id, 7)}]},
    )
    made = values.apply(role)
    assert made.entrypoint == "/root/bin/x"
    assert made.args == ["app", "${RANK0:=x}", "$HOME ${HOME} $", "3app"]
    assert made.env == {"A": "<3>"}
    assert made.metadata == {"a": ["app", {"b": ["3", 7]}]}
    assert role.env == {"A": "<${replica_id}>"}


def test_states():
    """Which are final, and by which names they are known elsewhere."""
    final = {state.name for state in specs.AppState if specs.is_terminal(state)}
    assert final == {"SUCCEEDED", "FAILED", "CANCELLED"}
    status = specs.AppStatus("a", specs.AppState.FAILED, "why")
    assert (status.msg, status.is_terminal(), status.structured_error_msg) == ("why", True, "")
