"""AWS Batch: requests that the service's own model takes, names, states. Pure."""

import json
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx._schedulers.aws_batch.logs import group_of, streams_of
from phalanx._schedulers.aws_batch.names import (
    DELETED,
    BatchAppId,
    AppTags,
    JobKind,
    role_tags,
    tag_value,
)
from phalanx._schedulers.aws_batch.options import AwsBatchOptions
from phalanx._schedulers.aws_batch.request import definition_name, make_request
from phalanx._schedulers.aws_batch.status import SeenJobs, state_of
from phalanx._schedulers.aws_batch.wait_reasons import vcpus_of, why_waiting
from phalanx._schedulers.options import make
from phalanx._specs import AppDef, AppState, RetryPolicy, Role
from phalanx._specs.resources import get_named_resources
from phalanx.components import dist
from phalanx.errors import ConfigError
from phalanx.specs import BindMount, DeviceMount, Resource, VolumeMount

ROLE = Role("role", image="image", entrypoint="python", args=["a.py"])
ENV = "PHALANX_RANK0_HOST"


def options(**given):
    return make("aws_batch", AwsBatchOptions, {"queue": "q", **given})


def request(*roles, **given):
    app = AppDef("app", roles or [ROLE])
    return make_request(app, "session", "me", options(**given), ENV, {})


def changed(role=ROLE, **fields):
    import dataclasses

    return dataclasses.replace(role, **fields)


@pytest.fixture(scope="session")
def model():
    pytest.importorskip("botocore", reason="boto3 is not installed")
    from botocore.session import Session

    return Session().get_service_model("batch")


@pytest.fixture
def taken(model):
    """Holds a request against the service's own model."""
    from botocore.validate import ParamValidator

    def check(made):
        definition = made.with_images({})
        job = made.submission(definition["jobDefinitionName"], {"TOKEN": "secret"})
        shown = json.loads(str(made))
        for operation, sent in (
            ("RegisterJobDefinition", definition),
            ("SubmitJob", job),
            *(
                (operation, shown[operation])
                for operation in ("RegisterJobDefinition", "SubmitJob")
            ),
        ):
            shape = model.operation_model(operation).input_shape
            report = ParamValidator().validate(sent, shape)
            assert not report.has_errors(), report.generate_report()
            _check_enums(shape, sent)
        assert re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,127}", job["jobName"])
        return definition, job

    return check


def _check_enums(shape, value):
    """The validator leaves them to the service."""
    if shape.type_name == "structure":
        for name, inner in value.items():
            _check_enums(shape.members[name], inner)
    elif shape.type_name == "list":
        for inner in value:
            _check_enums(shape.member, inner)
    elif getattr(shape, "enum", None):
        assert value in shape.enum


# ── requests ──────────────────────────────────────────────────────────────────


def test_one_replica_is_a_container(taken):
    """Its number is known, so nothing has to be found out."""
    env = {"PHALANX_JOB_ID": "aws_batch://s/${app_id}"}
    role = changed(
        args=["${replica_id}", "${app_id}", "$$HOME"], env=env, resource=Resource(2, 0, -1)
    )
    definition, job = taken(request(role))
    assert definition["type"] == "container"
    name = job["jobName"]
    assert job["containerOverrides"]["command"] == ["python3", "0", name, "$HOME"]
    assert {"name": "PHALANX_JOB_ID", "value": f"aws_batch://s/q:{name}"} in job[
        "containerOverrides"
    ]["environment"]
    assert "command" not in definition["containerProperties"]
    assert {"type": "VCPU", "value": "2"} in definition["containerProperties"][
        "resourceRequirements"
    ]
    assert "TOKEN" in str(job)


def test_several_replicas_are_nodes_and_learn_their_number(taken):
    """One group of nodes for each role, whatever the number of replicas."""
    many = changed(num_replicas=40, env={"N": "n-${replica_id}", "A": "b"})
    other = changed(name="other", num_replicas=2, args=["it's ${replica_id}"])
    definition, job = taken(request(many, other))
    nodes = definition["nodeProperties"]
    assert (nodes["numNodes"], nodes["mainNode"]) == (42, 0)
    assert [g["targetNodes"] for g in nodes["nodeRangeProperties"]] == ["0:39", "40:41"]
    first, second = (g["containerOverrides"] for g in job["nodeOverrides"]["nodePropertyOverrides"])
    script = first["command"][2]
    assert "export PHALANX_REPLICA_ID=$((AWS_BATCH_JOB_NODE_INDEX - 0))" in script
    assert 'export N=n-"$PHALANX_REPLICA_ID"' in script
    assert {"name": "A", "value": "b"} in first["environment"]
    assert "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS" in script
    assert "AWS_BATCH_JOB_NODE_INDEX - 40" in second["command"][2]
    assert "MAIN_NODE" not in second["command"][2]


def test_independent_replicas_are_an_array(taken):
    """If the user says that they are."""
    role = changed(num_replicas=3, max_retries=2, retry_policy=RetryPolicy.REPLICA)
    definition, job = taken(request(role, job_type="array"))
    assert definition["type"] == "container"
    assert job["arrayProperties"] == {"size": 3}
    assert job["retryStrategy"] == {"attempts": 3}
    assert "AWS_BATCH_JOB_ARRAY_INDEX" in job["containerOverrides"]["command"][2]
    _, alone = taken(request(job_type="array"))
    assert "arrayProperties" not in alone  # an array of one is refused


@pytest.mark.parametrize("kind", [JobKind.CONTAINER, JobKind.NODES, JobKind.ARRAY])
def test_all_options_are_taken(taken, kind):
    """Each where the service has it, whatever the kind of the job."""
    given = {
        "job_type": "array" if kind is JobKind.ARRAY else "auto",
        "job_role_arn": "arn:aws:iam::1:role/job",
        "execution_role_arn": "arn:aws:iam::1:role/run",
        "user": "1000",
        "privileged": True,
        "share_id": "team",
        "priority": 7,
        "timeout": 3600,
        "spot_retries": 3,
        "efa": True,
        "ulimits": "nofile=65536:70000,core=-1",
        "shm_size": "8g",
        "env": "A:1",
        "secrets": "KEY:arn:aws:ssm:eu-west-1:1:parameter/key",
        "log_group": "/team",
        "tags": "cost:me",
    }
    mounts = [
        BindMount("/data", "/in", read_only=True),
        VolumeMount("fs-0123abcd:/x@fsap-4567", "/out"),
        DeviceMount("/dev/fuse", "/dev/fuse", "rw"),
    ]
    replicas = 1 if kind is JobKind.CONTAINER else 2
    made = request(changed(mounts=mounts, num_replicas=replicas), **given)
    assert made.kind is kind
    definition, job = taken(made)
    if kind is JobKind.NODES:
        container = definition["nodeProperties"]["nodeRangeProperties"][0]["container"]
        overrides = job["nodeOverrides"]["nodePropertyOverrides"][0]["containerOverrides"]
    else:
        container = definition["containerProperties"]
        overrides = job["containerOverrides"]
    assert (container["jobRoleArn"], container["executionRoleArn"]) == (
        "arn:aws:iam::1:role/job",
        "arn:aws:iam::1:role/run",
    )
    assert (container["user"], container["privileged"]) == ("1000", True)
    assert container["logConfiguration"]["logDriver"] == "awslogs"
    assert container["logConfiguration"]["options"]["awslogs-group"] == "/team"
    assert {"name": "A", "value": "1"} in overrides["environment"]
    assert container["secrets"] == [
        {"name": "KEY", "valueFrom": "arn:aws:ssm:eu-west-1:1:parameter/key"}
    ]
    limits = {limit["name"]: limit["hardLimit"] for limit in container["ulimits"]}
    assert limits == {"nofile": 70000, "core": -1, "memlock": -1}
    linux = container["linuxParameters"]
    assert linux["sharedMemorySize"] == 8192
    paths = [device["hostPath"] for device in linux["devices"]]
    assert paths == ["/dev/infiniband/uverbs0", "/dev/fuse"]
    efs = container["volumes"][1]["efsVolumeConfiguration"]
    assert (efs["fileSystemId"], efs["rootDirectory"]) == ("fs-0123abcd", "/x")
    assert container["mountPoints"][0]["readOnly"] is True
    assert job["retryStrategy"]["attempts"] == 4
    assert job["retryStrategy"]["evaluateOnExit"][0]["onStatusReason"] == "Host EC2*"
    assert (job["shareIdentifier"], job["schedulingPriorityOverride"]) == ("team", 7)
    assert job["timeout"] == {"attemptDurationSeconds": 3600}
    assert (job["tags"]["cost"], job["propagateTags"]) == ("me", True)


def test_a_named_instance_is_asked_for_with_its_devices(taken):
    """The type for nodes, its adapters and GPUs for all."""
    role = changed(num_replicas=2, resource=get_named_resources("aws_p4d.24xlarge"))
    definition, _ = taken(request(role))
    (group,) = definition["nodeProperties"]["nodeRangeProperties"]
    container = group["container"]
    assert container["instanceType"] == "p4d.24xlarge"
    assert {"type": "GPU", "value": "8"} in container["resourceRequirements"]
    assert len(container["linuxParameters"]["devices"]) == 4
    definition, _ = taken(request(role, efa=False))
    assert "devices" not in str(definition)


def test_a_definition_is_named_by_its_content():
    """So that another run of the same app finds it."""
    one, two = request(), request(changed(args=["b.py"], env={"A": "1"}))
    assert one.app.name != two.app.name
    assert definition_name(one.definition) == definition_name(two.definition)
    other = request(changed(image="other"))
    assert definition_name(one.definition) != definition_name(other.definition)
    built = one.with_images({0: "repo:tag"})
    assert built["containerProperties"]["image"] == "repo:tag"
    assert built["jobDefinitionName"] != definition_name(one.definition)


def test_ddp_meets_at_the_main_node(taken):
    """And is refused where replicas do not find each other."""
    app = dist.ddp(script="a.py", image="i", j="2x4")
    _, job = taken(make_request(app, "s", "me", options(), ENV, {}))
    (group,) = job["nodeOverrides"]["nodePropertyOverrides"]
    script = group["containerOverrides"]["command"][2]
    assert f'export {ENV}="${{AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:-' in script
    assert shlex.split(script.splitlines()[-1])[:2] == ["exec", "sh"]
    with pytest.raises(ConfigError, match="do not find each other"):
        make_request(app, "s", "me", options(job_type="array"), ENV, {})
    two = AppDef("two", [ROLE, *app.roles])
    with pytest.raises(ConfigError, match="only the replicas of the first role"):
        make_request(two, "s", "me", options(), ENV, {})


def test_what_is_shown_has_both_requests():
    """And can be read back."""
    shown = json.loads(str(request()))
    assert (
        shown["SubmitJob"]["jobDefinition"] == (shown["RegisterJobDefinition"]["jobDefinitionName"])
    )


REFUSED = [
    ({"priority": 3}, {}, "needs share_id"),
    ({"share_id": "a b"}, {}, "letters and digits"),
    ({"timeout": 5}, {}, "60 seconds or more"),
    ({"ulimits": "nofile"}, {}, "NAME=SOFT"),
    ({"shm_size": "8"}, {}, "must be a size"),
    ({"env": "AWS_BATCH_JOB_ID:1"}, {}, "AWS Batch sets it"),
    ({"secrets": "A:b"}, {}, "need execution_role_arn"),
    ({"tags": "aws:b"}, {"max_retries": 10}, "9 times at most"),
    ({"spot_retries": 10}, {}, "from 0 to 9"),
    ({"spot_retries": 1}, {"max_retries": 1}, "leave spot_retries out"),
    ({"tags": "phalanx/name:x"}, {}, "not a key"),
    ({}, {"image": ""}, "no image"),
    ({}, {"entrypoint": ""}, "no entrypoint"),
    ({}, {"env": {"AWS_BATCH_X": "1"}}, "sets AWS_BATCH_X itself"),
    ({}, {"mounts": [VolumeMount("data", "/d")]}, "must be an EFS file system"),
    ({}, {"resource": Resource(1, 0, 1, devices={"x/y": 1})}, "does not know the device"),
    ({}, {"metadata": {"phalanx/hosts": 2}}, "on one host"),
    ({}, {"args": ["x" * 40000]}, "AWS Batch takes 8192"),
    (
        {},
        {"num_replicas": 2, "max_retries": 1, "retry_policy": RetryPolicy.REPLICA},
        "starts again as a whole",
    ),
    ({"job_type": "array"}, {"num_replicas": 2, "max_retries": 1}, "one by one"),
    ({"job_type": "array"}, {"num_replicas": 10001}, "at most 10000"),
]


@pytest.mark.parametrize(("given", "fields", "message"), REFUSED)
def test_what_the_service_would_not_take_is_refused(given, fields, message):
    """Before anything is sent, in one sentence."""
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        request(changed(**fields), **given)
    assert "\n" not in str(raised.value)


def test_apps_that_the_service_has_no_form_for_are_refused():
    """Too many roles, or instance types that differ."""
    with pytest.raises(ConfigError, match="runs five"):
        request(*(changed(name=f"r{i}") for i in range(6)))
    with pytest.raises(ConfigError, match="an array job has one role"):
        request(ROLE, changed(name="other"), job_type="array")
    large = changed(name="large", resource=get_named_resources("aws_p4d.24xlarge"))
    with pytest.raises(ConfigError, match="the same instance type"):
        request(ROLE, large)


# ── names ─────────────────────────────────────────────────────────────────────

TEXT = st.text(min_size=1, max_size=300)


@given(TEXT, TEXT, st.none() | TEXT, st.none() | TEXT, st.none() | TEXT)
def test_an_id_says_where_an_app_is(queue, name, region, profile, endpoint):
    """Whatever the parts are made of; and it fits into a handle."""
    from hypothesis import assume

    assume(all(_utf8(text) for text in (queue, name, region, profile, endpoint)))
    app = BatchAppId(queue, name, region, profile, endpoint)
    assert BatchAppId.parse(str(app)) == app
    assert not {"/", " ", "\n"} & set(str(app))


def _utf8(text):
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        return False
    return True


@given(st.lists(st.tuples(TEXT, st.integers(1, 10**6)), min_size=1, max_size=5), TEXT, TEXT)
def test_tags_keep_what_an_app_is(roles, name, session):
    """Within what AWS takes as a tag; no two roles have the same name."""
    app = AppTags(tag_value(name), tag_value(session), "me", JobKind.NODES, role_tags(roles))
    tags = app.to_tags()
    for value in tags.values():
        assert re.fullmatch(r"[a-zA-Z0-9 +\-=._:/@]{1,256}", value)
    assert AppTags.parse(tags) == app
    assert len({role.name for role in app.roles}) == len(roles)
    assert AppTags.parse({**tags, DELETED: "me"}) is None


def test_what_is_not_an_id_or_not_ours():
    """Is no disaster."""
    for text in ("", "a", ":a", "a:b:c:d:e:f"):
        assert BatchAppId.parse(text) is None
    assert AppTags.parse({"phalanx/role-0": "x"}) is None
    assert AppTags.parse({}) is None


# ── states ────────────────────────────────────────────────────────────────────


def seen(job, kind=JobKind.CONTAINER, replicas=1, children=None):
    tags = AppTags("app", "s", "me", kind, role_tags([("role", replicas)]))
    return SeenJobs("q:app", tags, {"jobId": "j", **job}, children or {})


@pytest.mark.parametrize(
    ("job", "state"),
    [
        ({"status": "SUBMITTED"}, AppState.SUBMITTED),
        ({"status": "RUNNABLE"}, AppState.PENDING),
        ({"status": "STARTING"}, AppState.PENDING),
        ({"status": "RUNNING"}, AppState.RUNNING),
        ({"status": "SUCCEEDED"}, AppState.SUCCEEDED),
        ({"status": "FAILED"}, AppState.FAILED),
        ({"status": "FAILED", "isTerminated": True}, AppState.CANCELLED),
        ({"status": "FAILED", "isCancelled": True}, AppState.CANCELLED),
        ({"status": "FAILED", "statusReason": "phalanx: cancelled by me"}, AppState.CANCELLED),
        ({"status": "of a later version"}, AppState.UNKNOWN),
    ],
)
def test_states(job, state):
    """As the service has them."""
    assert state_of(job) is state


def test_a_failure_is_told_with_code_and_reason():
    """The service's words, unless they say nothing; then the replica's own."""
    job = {"status": "FAILED", "statusReason": "Essential container in task exited"}
    status = seen({**job, "container": {"exitCode": 3}}).status("", {0: "ValueError: no"})
    assert (status.exit_code, status.message) == (3, "role/0 exited with code 3: ValueError: no")
    reason = "OutOfMemoryError: Container killed due to memory usage"
    status = seen({**job, "container": {"exitCode": 137, "reason": reason}}).status("", {})
    assert status.message.startswith("role/0 was killed by SIGKILL: OutOfMemoryError")
    assert "--memMB" in status.message
    status = seen({"status": "FAILED", "statusReason": "Host EC2 (i-1) terminated."}).status("", {})
    assert "Host EC2 (i-1) terminated." in status.message


def test_children_are_replicas():
    """By the ids that the service gives them; one that is not there waits."""
    children = {
        "j#0": {"status": "FAILED", "statusReason": "x", "container": {}},
        "j#1": {"status": "FAILED", "container": {"exitCode": 5}, "attempts": [{}, {}]},
    }
    app = seen({"status": "FAILED", "attempts": [{}, {}]}, JobKind.NODES, 2, children)
    status = app.status("", {})
    assert app.failed_replicas() == [0, 1]
    assert (status.exit_code, status.num_restarts) == (5, 1)
    assert status.message == "role/1 exited with code 5"
    waits = seen({"status": "RUNNING"}, JobKind.ARRAY, 2, {"j:0": {"status": "RUNNING"}})
    states = [replica.state for replica in waits.status("", {}).roles[0].replicas]
    assert states == [AppState.RUNNING, AppState.PENDING]


def test_why_a_job_waits():
    """What is surely in the way, or where it waits."""
    need = [{"type": "VCPU", "value": "8"}]
    job = {"status": "RUNNABLE", "container": {"resourceRequirements": need}}
    queue = {"jobQueueName": "q", "state": "ENABLED", "status": "VALID"}
    small = {
        "computeEnvironmentName": "c",
        "state": "ENABLED",
        "status": "VALID",
        "computeResources": {"maxvCpus": 4},
    }
    assert why_waiting(job, None, ()) == "waits for a host"
    assert why_waiting(job, queue, ()) == "waits for a host in the queue q"
    assert "needs 8 vCPUs" in why_waiting(job, queue, [small])
    assert "disabled" in why_waiting(job, {**queue, "state": "DISABLED"}, [])
    invalid = {**small, "status": "INVALID", "statusReason": "no such subnet"}
    assert why_waiting(job, queue, [invalid]) == (
        "the compute environment c is INVALID: no such subnet"
    )
    large = {**small, "computeResources": {"maxvCpus": 64}}
    assert why_waiting(job, queue, [small, large]) == "waits for a host in the queue q"
    said = {**job, "statusReason": "CAPACITY: none left"}
    assert why_waiting(said, queue, [small]) == "CAPACITY: none left"
    assert "pulls the image" in why_waiting({"status": "STARTING"}, queue, [])
    groups = [{"targetNodes": "0:3", "container": {"resourceRequirements": need}}]
    assert vcpus_of({"nodeProperties": {"numNodes": 4, "nodeRangeProperties": groups}}) == 32


def test_logs_of_all_attempts():
    """In their order, each once; in the group that the job names."""
    attempts = [{"container": {"logStreamName": name}} for name in ("a", "b")]
    job = {"attempts": attempts, "container": {"logStreamName": "b"}}
    assert streams_of(job) == ["a", "b"]
    assert streams_of({}) == []
    assert group_of(job) == "/aws/batch/job"
    config = {"options": {"awslogs-group": "/team"}}
    assert group_of({"container": {"logConfiguration": config}}) == "/team"
