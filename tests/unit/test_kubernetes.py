"""Objects of apps, names, and how an app stands, without a cluster."""

import base64
import gzip
import io
import json
import re
import tarfile
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx._images.plan import plan_image
from phalanx._schedulers.replicas.assessment import assess
from phalanx._schedulers.kubernetes import names
from phalanx._schedulers.kubernetes.apps.actions import again, seen_objects
from phalanx._schedulers.kubernetes.apps.archive import PackedFiles, pack_project
from phalanx._schedulers.kubernetes.api.cluster import (
    Forbidden,
    NotInCluster,
    ObjectExists,
    parse_version,
    refusal,
)
from phalanx._schedulers.kubernetes.apps.creation import with_image
from phalanx._schedulers.kubernetes.apps.logs import parse_line
from phalanx._schedulers.kubernetes.names import AppName
from phalanx._schedulers.kubernetes.options import KubernetesOptions
from phalanx._schedulers.kubernetes.manifest import merged
from phalanx._schedulers.kubernetes.apps.record import AppAnnotation
from phalanx._schedulers.kubernetes.apps.request import RequestFiles, make_request
from phalanx._schedulers.kubernetes.rights import RIGHTS
from phalanx._schedulers.kubernetes.apps.seen import indexes, seen_pod
from phalanx._schedulers.kubernetes.manifest import moment
from phalanx._specs import AppDef, AppState, Resource, RetryPolicy, Role
from phalanx._specs.mounts import BindMount, DeviceMount, VolumeMount
from phalanx.errors import ConfigError, SchedulerError, SchedulerUnreachable

DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
VERSIONS = ["1.25", "1.29", "1.33", "1.37"]
"""From the oldest to the newest of which there are schemas."""


def request(app, version=(1, 20), files=None, environ=None, session="s", plans=None, **options):
    made = KubernetesOptions(**options)
    return make_request(
        app,
        session,
        made,
        "PHALANX_RANK0_HOST",
        "ns",
        version,
        files or RequestFiles(),
        plans or {},
        environ or {},
    )


def role(name="role", **fields):
    fields = {"image": "image:1", "entrypoint": "sh", "args": ["-c", "true"], **fields}
    return Role(name, **fields)


def main(job):
    return next(c for c in job["spec"]["template"]["spec"]["containers"] if c["name"] == "main")


# ── names ─────────────────────────────────────────────────────────────────────


ROLE_NAMES = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="/"), min_size=1, max_size=60
).filter(lambda text: text not in (".", ".."))


@settings(max_examples=40)
@given(st.text(max_size=300), st.lists(ROLE_NAMES, min_size=1, max_size=4))
def test_every_name_is_one_that_a_server_takes(app_name, roles):
    """Whatever an app, its roles and its session are called."""
    roles = list(dict.fromkeys(roles))
    app = AppDef("x", [role(name, num_replicas=2) for name in roles])
    object.__setattr__(app, "name", app_name)
    for version in ((1, 20), (1, 29)):
        made = request(app, version, session=app_name)
        found = [one["metadata"]["name"] for one in made.objects]
        assert len(set(found)) == len(found)
        for one in made.objects:
            meta = one["metadata"]
            assert DNS_LABEL.fullmatch(meta["name"]), meta["name"]
            assert all(LABEL_VALUE.fullmatch(value) for value in meta["labels"].values())
        for job in made.jobs:
            hostname = job["spec"]["template"]["spec"].get("hostname", "a")
            assert DNS_LABEL.fullmatch(hostname)


def test_the_longest_names_fit():
    """With the number of a replica, an attempt, and what an Indexed Job adds."""
    words = names.role_words(["r" * 99, *(f"{'r' * 40}{i}" for i in range(200))])
    assert len(set(words.values())) == 201
    app = names.make_name("a" * 300)
    for word in words.values():
        assert len(names.job_name(app, word, 99999, 98)) <= 63
        assert len(names.job_name(app, word, None, 98)) + len("-99999") <= 63


def test_two_apps_never_share_a_name():
    """Though they are called the same."""
    assert len({names.make_name("train") for _ in range(100)}) == 100


def test_the_macro_of_the_id_is_the_name_alone():
    """Paths and names are made of it; the handle has the whole id."""
    env = {"RUN": "/runs/${app_id}", "TORCHX_JOB_ID": "kubernetes://s/${app_id}"}
    made = request(AppDef("a", [role(args=["${app_id}"], env=env)]), namespace="ns")
    main_container = main(made.jobs[0])
    values = {one["name"]: one.get("value") for one in main_container["env"]}
    assert main_container["command"] == ["sh", made.app.name]
    assert values["RUN"] == f"/runs/{made.app.name}"
    assert values["TORCHX_JOB_ID"] == f"kubernetes://s/ns:{made.app.name}"


@pytest.mark.parametrize("context", [None, "kind", "arn:aws:eks:eu:1:cluster/a b%"])
def test_an_id_has_all_that_is_needed_to_find_the_app(context):
    """And no slash, since it is part of a handle."""
    app = AppName("train-1a2b3c4d", "team-a", context)
    assert "/" not in str(app)
    assert AppName.parse(str(app)) == app


def test_what_is_no_id_is_none():
    """Of an app."""
    assert AppName.parse("a:b:c:d") is None
    assert AppName.parse(":x") is None
    assert AppName.parse("nothing-00000000") == AppName("nothing-00000000", "")


# ── objects ───────────────────────────────────────────────────────────────────


def everything():
    """An app with all that a pod can have."""
    mounts = [BindMount("/data", "/data", True), VolumeMount("claim", "/out")]
    mounts.append(DeviceMount("/dev/fuse", "/dev/fuse"))
    resource = Resource(
        1.5,
        8,
        4096,
        capabilities={"node.kubernetes.io/instance-type": "p4d.24xlarge"},
        devices={"vpc.amazonaws.com/efa": 4},
    )
    return AppDef(
        "all",
        [
            role("a", num_replicas=3, mounts=mounts, resource=resource, port_map={"c10d": 29500}),
            role("b", num_replicas=2, max_retries=2, retry_policy=RetryPolicy.REPLICA),
        ],
    )


FULL = {
    "service_account": "trainer",
    "image_secret": "pull",
    "priority_class": "high",
    "queue": "team",
    "node_selector": {"gpu": "a100"},
    "tolerations": ["nvidia.com/gpu:NoSchedule", "spot=yes", "*"],
    "shm_size": "8g",
    "ttl": 60,
    "env": {"A": "1"},
}


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_what_the_published_schemas_say(version):
    """For servers old and new, with nothing that they do not know."""
    made = request(everything(), parse_version(version), RequestFiles({"a": b"x"}), **FULL)
    objects = list(yaml.safe_load_all(str(made)))
    assert [one["kind"] for one in objects[:2]] == ["Secret", "Service"]
    for one in [*objects[:3], objects[-1]]:
        kubernetes_validate.validate(one, version, strict=True)


def test_what_is_printed_is_what_is_submitted():
    """But for what is not shown."""
    made = request(everything(), (1, 31), environ={"TOKEN": "hush"}, copy_env=["TOK*"])
    assert list(yaml.safe_load_all(str(made))) == json.loads(json.dumps(made.objects))
    assert "hush" not in str(made) + repr(made)
    assert "TOKEN" in str(made).partition("---")[0]


def test_a_role_is_one_indexed_job_where_the_server_has_them():
    """Otherwise a Job for each replica."""
    app = AppDef("x", [role(num_replicas=3, args=["${replica_id}", "$$(date) $$HOME"])])
    (job,) = request(app, (1, 29)).jobs
    assert job["spec"]["completionMode"] == "Indexed"
    assert (job["spec"]["completions"], job["spec"]["backoffLimit"]) == (3, 0)
    assert main(job)["command"][1:] == ["$(PHALANX_REPLICA_ID)", "$$(date) $$HOME"]
    first = next(e for e in main(job)["env"] if e["name"] == "PHALANX_RANK0_HOST")
    app_name = job["metadata"]["labels"]["phalanx/app"]
    assert first["value"] == f"{job['metadata']['name']}-0.{app_name}"
    jobs = request(app, (1, 20)).jobs
    assert [main(job)["command"][1] for job in jobs] == ["0", "1", "2"]
    assert [job["spec"]["template"]["spec"]["hostname"] for job in jobs] == [
        f"role-{i}" for i in range(3)
    ]
    assert all("completionMode" not in job["spec"] for job in jobs)


def test_retries_of_replicas_are_the_clusters():
    """Per index where it has that; otherwise each replica has a Job of its own."""
    app = AppDef("x", [role(num_replicas=2, max_retries=3, retry_policy=RetryPolicy.REPLICA)])
    (job,) = request(app, (1, 29)).jobs
    assert job["spec"]["backoffLimitPerIndex"] == 3
    assert job["spec"]["maxFailedIndexes"] == 0
    assert [j["spec"]["backoffLimit"] for j in request(app, (1, 26)).jobs] == [3, 3]


def test_preemption_is_no_failure_where_the_server_can_tell():
    """A pod failure policy ignores what was done to a pod."""
    app = AppDef("x", [role()])
    (rule,) = request(app, (1, 26)).jobs[0]["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "Ignore"
    assert "podFailurePolicy" not in request(app, (1, 25)).jobs[0]["spec"]
    elastic = AppDef("x", [role(num_replicas=2, min_replicas=1)])
    _, deleted = request(elastic, (1, 26)).jobs[0]["spec"]["podFailurePolicy"]["rules"]
    assert deleted == {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [143]}}


def test_a_queue_is_kueues_unless_a_gang_scheduler_is_named():
    """Kueue lets suspended Jobs begin; Volcano reads an annotation of the pods."""
    app = AppDef("x", [role()])
    (job,) = request(app, (1, 29), queue="team").jobs
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    (job,) = request(app, (1, 29), queue="team", gang_scheduler="volcano").jobs
    assert "suspend" not in job["spec"]
    template = job["spec"]["template"]
    assert template["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] == "team"
    assert template["spec"]["schedulerName"] == "volcano"


def test_resources_are_requests_and_devices_are_limits():
    """GPUs by the name of their device plugin; memory that nobody asked for is not asked for."""
    resource = Resource(2, 4, 1024)
    (job,) = request(AppDef("x", [role(resource=resource)]), gpu_resource="amd.com/gpu").jobs
    assert main(job)["resources"] == {
        "requests": {"cpu": "2000m", "amd.com/gpu": "4"},
        "limits": {"amd.com/gpu": "4"},
    }


def test_a_pod_template_is_merged_and_wins():
    """Named things by their names."""
    template = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "hostNetwork": True,
            "containers": [
                {"name": "main", "env": [{"name": "A", "value": "2"}], "tty": True},
                {"name": "side", "image": "side:1"},
            ],
            "volumes": [{"name": "own", "emptyDir": {}}],
        },
    }
    made = request(AppDef("x", [role(env={"A": "1"})]), files=RequestFiles(template=template))
    pod = made.jobs[0]["spec"]["template"]
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["labels"]["phalanx/replica"] == "0"
    assert pod["spec"]["hostNetwork"] is True
    assert [c["name"] for c in pod["spec"]["containers"]] == ["main", "side"]
    own = main(made.jobs[0])
    assert own["tty"] is True
    assert [e["value"] for e in own["env"] if e["name"] == "A"] == ["2"]
    assert {"shm", "own"} <= {v["name"] for v in pod["spec"]["volumes"]}
    assert merged({"a": [1]}, {"a": [2]}) == {"a": [2]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"image": ""}, "has no image to run in"), ({"entrypoint": ""}, "no entrypoint")],
)
def test_what_cannot_run_is_refused(fields, said):
    """Before anything is created."""
    with pytest.raises(ConfigError, match=said):
        request(AppDef("x", [role(**fields)]))
    with pytest.raises(ConfigError, match="no roles"):
        request(AppDef("x"))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"namespace": "A b"}, "not a valid name"),
        ({"tolerations": ["a:Never"]}, "must be KEY"),
        ({"shm_size": "much"}, "must be a size"),
        ({"ttl": -1}, "number of seconds"),
        ({"stop_grace": -1}, "number of seconds"),
        ({"server_version": "new"}, "such as 1.29"),
        ({"env": {"a=b": ""}}, "variable name"),
        ({"python": ""}, "program of the image"),
        ({"cpus": 0}, "more than 0"),
        ({"gpus": -1}, "0 or more"),
    ],
)
def test_options_are_checked(option, said):
    """With the name of the one that is wrong."""
    with pytest.raises(ConfigError, match=said):
        KubernetesOptions(**option)


def test_a_variable_that_no_secret_can_have_is_refused():
    """Rather than left out."""
    with pytest.raises(ConfigError, match="cannot have the variable"):
        request(AppDef("x", [role()]), environ={"A%%": "1"}, copy_env=["*"])


def test_a_project_in_an_image_takes_the_place_of_the_roles_image(tmp_path):
    """Which one is known when it has been built; no file travels otherwise."""
    (tmp_path / "a.py").write_text("")
    plan = plan_image("base:1", str(tmp_path), image_repo="registry.example.com/team/x")
    app = AppDef("x", [role("a"), role("b")])
    made = request(app, plans={"a": plan})
    assert "base:1 with 1 files" in str(made)
    first, second = (with_image(job, {"a": "registry.example.com/team/x:1"}) for job in made.jobs)
    assert main(first)["image"] == "registry.example.com/team/x:1"
    assert main(second)["image"] == "image:1"
    assert made.secrets == ()


def test_the_page_has_the_rights_that_are_printed():
    """Word for word."""
    page = Path(__file__).parents[2] / "docs" / "kubernetes.md"
    assert f"```yaml\n{RIGHTS}```" in page.read_text()


# ── files ─────────────────────────────────────────────────────────────────────


def test_files_come_out_as_they_were(tmp_path):
    """In pieces, whose order is that of their names."""
    (tmp_path / "ü").mkdir()
    (tmp_path / "ü" / "a b.py").write_text("print(1)")
    (tmp_path / "run.sh").write_text("true")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("run.sh")
    packed = PackedFiles("x", pack_project(str(tmp_path)))
    objects = packed.objects({"namespace": "ns"})
    data = b"".join(base64.b64decode(one["data"]["piece"]) for one in objects)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as tar:
        assert sorted(tar.getnames()) == ["link", "run.sh", "ü/a b.py"]
        assert tar.getmember("run.sh").mode == 0o755
    assert pack_project(str(tmp_path)) == packed.data, "the same files, the same bytes"


def test_files_are_cut_so_that_kubectl_can_apply_each_piece():
    """It notes an object in an annotation, for which there are 256 KiB."""
    packed = PackedFiles("x" * 63, bytes(1 << 20))
    labels = {f"{'l' * 60}{i}": "v" * 63 for i in range(5)}
    objects = packed.objects({"namespace": "n" * 63, "labels": labels})
    assert len(objects) == len(packed.secrets) < 10
    assert max(len(json.dumps(one)) for one in objects) < 256 << 10


def test_a_large_project_is_refused_with_its_size(tmp_path):
    """And what to do."""
    import random

    (tmp_path / "data").write_bytes(random.Random(0).randbytes(2 << 20))
    with pytest.raises(ConfigError, match=r"1 files, 2\.0 MiB, 2\.0 MiB compressed.*image_repo"):
        pack_project(str(tmp_path))
    with open(tmp_path / "data", "wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(ConfigError, match=r"65\.0 MiB; the maximum is 1 MiB"):
        pack_project(str(tmp_path))


# ── what a server says ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "message", "kind", "said"),
    [
        (404, 'jobs "x" not found', NotInCluster, 'cannot create jobs in ns: jobs "x" not found'),
        (409, "already exists", ObjectExists, "already exists"),
        (403, 'User "u" cannot', Forbidden, "missing right: create jobs in ns"),
        (403, "no such account", Forbidden, "cannot create jobs in ns: no such account"),
        (403, "forbidden: exceeded quota: q, requested: pods=1", Forbidden, "exceeded quota: q"),
        (401, "Unauthorized", SchedulerError, "does not know you"),
        (503, "busy", SchedulerUnreachable, "busy"),
        (500, "etcdserver: request timed out", SchedulerUnreachable, "request timed out"),
        (422, "spec invalid.", SchedulerError, "spec invalid"),
    ],
)
def test_refusals_name_verb_and_resource(status, message, kind, said):
    """In one sentence."""
    for text in (message, json.dumps({"message": message})):
        error = refusal(status, text, "create", "jobs", "in ns")
        assert type(error) is kind
        assert said in str(error)
        assert "create jobs" in str(error)


def test_lines_have_the_servers_times():
    """To the nanosecond, so that reading goes on where it broke off."""
    assert parse_line("2026-01-02T03:04:05.000000007Z  ü".encode()) == (1767323045000000007, " ü")
    assert parse_line(b"2026-01-02T03:04:05Z") == (1767323045000000000, "")
    assert parse_line(b"2026-01-02T04:04:05.5+01:00 x") == (1767323045500000000, "x")
    assert parse_line(b"no time") == (0, "no time")
    stamp = b"2026-01-02T03:04:05.5Z "
    long = stamp + b"a" * 16384 + stamp + b"b" * 16384 + stamp + b"c"
    assert parse_line(long)[1] == "a" * 16384 + "b" * 16384 + "c", "runtimes cut long lines"


def test_times_and_indexes():
    """As the API writes them."""
    assert moment("2026-01-02T03:04:05Z") == 1767323045
    assert moment("2026-01-02T03:04:05.123456789Z") == pytest.approx(1767323045.123456)
    assert moment(None) is moment("") is moment("soon") is None
    assert list(indexes("0,2-4,7")) == [0, 2, 3, 4, 7]
    assert list(indexes("")) == []


# ── how an app stands ─────────────────────────────────────────────────────────

AT = "2026-01-02T03:04:{:02}Z"


class FakeObjects:
    """What a server would have of a request, by hand."""

    def __init__(self, app, version=(1, 20)):
        made = request(app, version)
        self.service = json.loads(json.dumps(made.service))
        self.jobs = json.loads(json.dumps(made.jobs))
        self.pods = []
        for job in self.jobs:
            job["metadata"]["creationTimestamp"] = AT.format(0)

    def pod(self, job, second=1, *, index=None, phase="Running", code=None, **more):
        labels = dict(job["spec"]["template"]["metadata"]["labels"])
        state = {"running": {}} if phase == "Running" else {}
        if code is not None:
            ended = {"exitCode": code, "finishedAt": AT.format(second + 1), **more}
            state = {"terminated": ended}
            phase = "Failed" if code else "Succeeded"
        meta = {
            "name": f"{job['metadata']['name']}-{len(self.pods)}",
            "uid": str(len(self.pods)),
            "labels": {**labels, "job-name": job["metadata"]["name"]},
            "creationTimestamp": AT.format(second),
        }
        if index is not None:
            meta["annotations"] = {names.INDEX: str(index)}
        status = {"phase": phase}
        status["containerStatuses"] = [{"name": "main", "state": state}]
        self.pods.append({"metadata": meta, "spec": {"nodeName": "n1"}, "status": status})
        return self.pods[-1]

    def end(self, job, kind, second, **status):
        condition = {"type": kind, "status": "True", "lastTransitionTime": AT.format(second)}
        job["status"] = {"conditions": [condition], **status}

    def assess(self, now=0.0):
        record = AppAnnotation.of(self.service)
        seen = seen_objects(self.service, record, self.jobs, self.pods, now)
        return assess(seen.app("ns:x"), record.created + 1)


def test_the_annotation_says_what_the_app_is():
    """Another's Service is none."""
    made = request(everything(), (1, 29))
    assert AppAnnotation.of(made.service) == made.record
    assert AppAnnotation.of({"metadata": {}}) is None
    assert AppAnnotation.of({"metadata": {"annotations": {names.RECORD: "{}"}}}) is None


@pytest.mark.parametrize("version", [(1, 20), (1, 29)])
def test_a_failure_stops_the_others(version):
    """Of a Job for each replica it is ours to do; an Indexed Job does it by itself."""
    fake = FakeObjects(AppDef("x", [role(num_replicas=2)]), version)
    first, last = fake.jobs[0], fake.jobs[-1]
    fake.pod(first, index=0)
    fake.pod(last, index=1, code=3)
    if version == (1, 20):
        fake.end(last, "Failed", 3)
        assessed = fake.assess()
        assert [one.id for one in assessed.to_stop] == [first["metadata"]["name"]]
        assert assessed.state is AppState.RUNNING
        fake.pods[0]["status"] |= {"phase": "Failed", "reason": "DeadlineExceeded"}
        fake.pods[0]["status"]["containerStatuses"][0]["state"] = {
            "terminated": {"exitCode": 143, "finishedAt": AT.format(1)}
        }
        fake.end(first, "Failed", 4)
    else:
        fake.end(last, "Failed", 3)
        del fake.pods[0]
    assessed = fake.assess()
    assert assessed.state is AppState.FAILED
    assert assessed.lifecycle.first_failure == ("role", 1)
    assert assessed.lifecycle.states["role", 0] is AppState.CANCELLED


@pytest.mark.parametrize("version", [(1, 20), (1, 29)])
def test_an_app_succeeds_with_all_of_its_replicas(version):
    """One that has ended waits for the others."""
    fake = FakeObjects(AppDef("x", [role(num_replicas=2)]), version)
    fake.pod(fake.jobs[0], index=0, code=0)
    fake.pod(fake.jobs[-1], index=1)
    if version == (1, 20):
        fake.end(fake.jobs[0], "Complete", 3)
    else:
        fake.jobs[0]["status"] = {"completedIndexes": "0"}
    assessed = fake.assess()
    assert assessed.state is AppState.RUNNING
    assert assessed.lifecycle.states["role", 0] is AppState.SUCCEEDED
    fake.pods.pop()
    fake.pod(fake.jobs[-1], index=1, code=0)
    fake.end(fake.jobs[-1], "Complete", 5, completedIndexes="0,1")
    assert fake.assess().state is AppState.SUCCEEDED


@pytest.mark.parametrize("version", [(1, 20), (1, 29)])
def test_a_role_is_started_again_as_a_whole(version):
    """By new Jobs, made from the old ones."""
    app = AppDef("x", [role(num_replicas=2, max_retries=1, retry_policy=RetryPolicy.ROLE)])
    fake = FakeObjects(app, version)
    for index, job in enumerate(fake.jobs * 2 if version == (1, 29) else fake.jobs):
        fake.pod(job, index=index, code=1)
    for job in fake.jobs:
        fake.end(job, "Failed", 4)
    assessed = fake.assess()
    assert assessed.to_start == [(("role", 0), 1), (("role", 1), 1)]
    part = AppAnnotation.of(fake.service).roles[0]
    number = None if part.is_indexed else 1
    before = {**fake.jobs[-1], "spec": {**fake.jobs[-1]["spec"], "selector": {}}}
    made = again(before, fake.service["metadata"]["name"], part, number, 1)
    assert made["metadata"]["name"].endswith("-try2")
    assert made["spec"]["template"]["metadata"]["labels"][names.ATTEMPT] == "1"
    assert not {"selector", "status"} & {*made, *made["spec"]}
    first = next(e for e in main(made)["env"] if e["name"] == "PHALANX_RANK0_HOST")["value"]
    assert ("-try2-0." in first) == part.is_indexed


def test_a_pod_that_has_failed_may_still_run():
    """Its program has its grace."""
    fake = FakeObjects(AppDef("x", [role()]))
    pod = fake.pod(fake.jobs[0])
    pod["status"]["phase"] = "Failed"
    seen = seen_pod(pod, 0.0)
    assert not seen.has_ended
    assert seen.has_run
    pod["metadata"]["annotations"] = {names.STOPPED: "100.0"}
    pod["spec"]["terminationGracePeriodSeconds"] = 10
    assert not seen_pod(pod, 110.0).has_ended
    assert seen_pod(pod, 120.0).has_ended, "old kubelets do not say so"


def test_what_waits_in_a_queue_is_cancelled_at_once():
    """No pod of it was ever made."""
    fake = FakeObjects(AppDef("x", [role(num_replicas=2)]), (1, 29))
    fake.jobs[0]["spec"]["suspend"] = True
    assert fake.assess().state is AppState.PENDING
    fake.service["metadata"]["annotations"][names.CANCELLED] = "1.0"
    assert fake.assess().state is AppState.CANCELLED


def test_a_pod_of_a_lost_node_does_not_keep_its_app():
    """It stays for ever, being deleted; another has done its work."""
    fake = FakeObjects(AppDef("x", [role()]))
    lost = fake.pod(fake.jobs[0])
    lost["metadata"]["deletionTimestamp"] = AT.format(3)
    deadline = moment(AT.format(3))
    assert not seen_pod(lost, deadline + 5).has_ended
    assert "does not answer" in seen_pod(lost, deadline + 60).why_ended()
    fake.pod(fake.jobs[0], 5, code=0)
    fake.end(fake.jobs[0], "Complete", 7)
    assert fake.assess(deadline + 5).state is AppState.RUNNING
    assert fake.assess(deadline + 60).state is AppState.SUCCEEDED


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                             "message": "0/2 nodes are available: 2 Insufficient cpu."}]},
            "Unschedulable: 0/2 nodes are available: 2 Insufficient cpu",
        ),
        (
            {"containerStatuses": [{"name": "main", "state": {"waiting": {
                "reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}}}]},
            'ImagePullBackOff: Back-off pulling image "x"',
        ),
        (
            {"containerStatuses": [{"name": "main", "state": {"waiting": {
                "reason": "ContainerCreating"}}}]},
            "",
        ),
    ],
)  # fmt: skip
def test_a_pod_says_why_it_waits(status, said):
    """In the cluster's words."""
    fake = FakeObjects(AppDef("x", [role()]))
    pod = fake.pod(fake.jobs[0], phase="Pending")
    pod["status"] = {"phase": "Pending", **status}
    assert seen_pod(pod, 0.0).why_waiting() == said


@pytest.mark.parametrize(
    ("status", "terminated", "said"),
    [
        ({}, {"reason": "OOMKilled"}, "out of memory: its limit is 64Mi"),
        ({"reason": "Evicted", "message": "low on disk."}, {}, "evicted from n1: low on disk"),
        ({"reason": "NodeLost", "message": "gone"}, {}, "lost with its node n1: NodeLost: gone"),
        (
            {"conditions": [{"type": "DisruptionTarget", "status": "True",
                             "reason": "PreemptionByScheduler", "message": "for b"}]},
            {},
            "PreemptionByScheduler: for b",
        ),
        ({}, {"reason": "ContainerCannotRun", "message": "no x"}, "cannot start: no x"),
        ({}, {"reason": "Error"}, ""),
    ],
)  # fmt: skip
def test_a_pod_says_what_was_done_to_it(status, terminated, said):
    """Where its end was not its own."""
    fake = FakeObjects(AppDef("x", [role(resource=Resource(-1, -1, 64))]))
    pod = fake.pod(fake.jobs[0], code=137, **terminated)
    pod["spec"]["containers"] = fake.jobs[0]["spec"]["template"]["spec"]["containers"]
    pod["status"] |= status
    assert seen_pod(pod, 0.0).why_ended() == said
