"""The pure parts of the `ray` scheduler: ids, resources, the log of a job, requests and statuses."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx._logs.lines import Stream
from phalanx._schedulers.replicas.lifecycle_record import LifecycleRecord
from phalanx._schedulers.ray import job_log
from phalanx._schedulers.ray.api.addresses import DEFAULT, dashboard_of
from phalanx._schedulers.ray.apps.names import JobMetadata, RayApp
from phalanx._schedulers.ray.options import RayOptions
from phalanx._schedulers.ray.apps.request import make_request
from phalanx._schedulers.ray.resources import bundle_of, strictly_placed, why_waiting
from phalanx._schedulers.ray.apps.status import SeenRayApp
from phalanx._schedulers.replicas.lifecycle import RoleLifecycle
from phalanx.errors import ConfigError
from phalanx.specs import AppDef, AppState, Resource, RetryPolicy, Role

RECORD = LifecycleRecord((RoleLifecycle("role", 2, 0, RetryPolicy.APPLICATION),), 10.0, 1.0)
METADATA = JobMetadata("session", "user", "name", RECORD)


@pytest.mark.parametrize(
    "address", ["http://head:8265", "https://ray.example.org:443", "http://[::1]:8265/a/b"]
)
def test_an_id_has_all_that_is_needed_to_find_the_app(address):
    """Without a slash, whatever the address."""
    app = RayApp(address, "train-1a2b")
    assert RayApp.parse(str(app)) == app
    assert not {"/", " "} & {*str(app)}


@pytest.mark.parametrize("text", ["", "train", ":train", "head:"])
def test_what_is_no_id_is_none(text):
    """Rather than an error."""
    assert RayApp.parse(text) is None


def test_metadata_of_other_jobs_is_not_ours():
    """Whatever they have in it."""
    assert JobMetadata.parse(METADATA.to_dict()) == METADATA
    for other in ({}, {"a": "b"}, {**METADATA.to_dict(), "phalanx/lifecycle": "{}"}):
        assert JobMetadata.parse(other) is None


def test_a_bundle_is_what_was_asked_for():
    """Not the memory that components ask for where the user said nothing."""
    assert bundle_of(Resource(2, 1, 1024), {}) == {"CPU": 2.0, "GPU": 1.0}
    assert bundle_of(Resource(-1, 0, 2048), {"TPU": 4.0}) == {"memory": 2048 << 20, "TPU": 4.0}
    assert bundle_of(Resource(0, 0, -1), {}) == {"CPU": 0.001}
    assert RayOptions(cpus=2, mem="1.5g").host_bundle == {"CPU": 2.0, "memory": 1536 << 20}


NODES = [{"CPU": 4, "GPU": 1}, {"CPU": 8}]


@pytest.mark.parametrize(
    ("bundles", "free", "reason"),
    [
        ([{"GPU": 2}], {}, "no node has 2 GPU (the largest: 1 GPU)"),
        ([{"CPU": 1, "TPU": 1}], {}, "no node has 1 CPU, 1 TPU (the largest: 8 CPU, 0 TPU)"),
        ([{"CPU": 8}] * 2, {}, "needs 16 CPU; the cluster has 12 CPU"),
        ([{"CPU": 8}], {"CPU": 3.0}, "needs 8 CPU; free: 3 CPU"),
        ([{"CPU": 1}], {"CPU": 4}, "needs 1 CPU"),
        ([{"memory": 2 << 30}], {}, "no node has 2.0 GiB memory (the largest: 0.0 GiB memory)"),
    ],
)
def test_what_is_missing_is_named(bundles, free, reason):
    """A node that is large enough, resources in all, or free ones."""
    assert why_waiting(bundles, NODES, free) == reason


@pytest.mark.parametrize(
    ("bundles", "strategy", "reason"),
    [
        (
            [{"CPU": 1}] * 3,
            "STRICT_SPREAD",
            "needs 3 nodes, for STRICT_SPREAD; the cluster has 2 that are large enough",
        ),
        (
            [{"CPU": 8}, {"CPU": 6}],
            "STRICT_SPREAD",
            "needs 2 nodes, for STRICT_SPREAD; the cluster has 1 that are large enough",
        ),
        ([{"CPU": 1}, {"CPU": 6}], "STRICT_SPREAD", ""),
        ([{"CPU": 1}] * 3, "SPREAD", ""),
        ([{"CPU": 16}] * 3, "STRICT_SPREAD", ""),  # which is said of any strategy
        (
            [{"CPU": 5}] * 2,
            "STRICT_PACK",
            "no node has 10 CPU, for STRICT_PACK (the largest: 8 CPU)",
        ),
        ([{"CPU": 4}] * 2, "STRICT_PACK", ""),
    ],
)
def test_a_strict_strategy_says_what_it_wants(bundles, strategy, reason):
    """Nodes to themselves, or one for all."""
    assert strictly_placed(bundles, NODES, strategy) == reason


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.text()), max_size=5))
def test_what_replicas_print_is_read_back(lines):
    """Every character, among what others print into the same log."""
    log = "ray says hello\n"
    for stream, text in lines:
        log += job_log.output("role", 0, stream, 5.0, text)
        log += job_log.output("role", 1, stream, 5.0, "another's") + "noise\n"
    streams = {1: Stream.STDOUT, 2: Stream.STDERR}
    found = [(line.stream, line.text) for line in job_log.lines_of(log, "role", 0)]
    assert found == [(streams[stream], text) for stream, text in lines]
    assert "another" not in job_log.last_words(log)


def test_a_record_that_is_still_written_is_not_read():
    """Its beginning may be there already."""
    log = job_log.output("role", 0, 1, 5.0, "one") + job_log.output("role", 0, 1, 5.0, "two")[:-9]
    assert [line.text for line in job_log.lines_of(log, "role", 0)] == ["one"]


@given(st.lists(st.binary(max_size=9), max_size=6))
def test_lines_are_whole(pieces):
    """However they arrive."""
    splitter = job_log.LineSplitter()
    found = [line for piece in pieces for line in splitter.take(piece)] + splitter.end()
    whole = b"".join(pieces)
    wanted = whole.split(b"\n")
    wanted = wanted[:-1] if not wanted[-1] else wanted
    assert found == [line.removesuffix(b"\r").decode("utf-8", "replace") for line in wanted]


def make(app, **options):
    made = RayOptions(**options)
    return make_request(app, "http://head:8265", "s", "u", made, "RANK0", {}, {"role": "/p"}, [])


def test_a_request_is_plain_data_without_the_environment_in_its_job():
    """Everybody on a cluster sees jobs."""
    role = Role("role", entrypoint="python", args=["${app_id}"], env={"A": "secret"})
    role = role.with_env(PHALANX_JOB_ID="ray://s/${app_id}")
    request = make(AppDef("a", [role]), stop_grace=3.0)
    assert "secret" not in json.dumps(request.job)
    assert request.job["runtime_env"]["env_vars"] == {"RAY_JOB_STOP_WAIT_TIME_S": "8"}
    (told,) = request.driver["replicas"]
    assert told["argv"] == ["python", request.app.name]
    assert told["env"]["PHALANX_JOB_ID"] == f"ray://s/{request.app}"
    assert told["env"]["A"] == "secret"
    json.loads(str(request))


def test_replicas_beyond_the_least_are_extra():
    """They are placed on their own."""
    role = Role("role", entrypoint="x", num_replicas=3, min_replicas=1)
    told = make(AppDef("a", [role])).driver["replicas"]
    assert [one["is_extra"] for one in told] == [False, True, True]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"resources": {"A": 0.0}}, "more than 0"),
        ({"cpus": -1.0}, "cpus must be 0 or more"),
        ({"mem": "16000"}, "mem=16000: must be a size such as 512m or 8g"),
        ({"mem": "much"}, "mem=much: must be a size"),
        ({"relay_port": 99999}, "not a port"),
        ({"cluster": "ray://head:10001"}, "Ray Client"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, says):
    """With the value that was seen."""
    with pytest.raises(ConfigError, match=says):
        RayOptions(**options)


def test_where_the_dashboard_is():
    """What is said first counts."""
    named = RayOptions(dashboard_address="head:1234")
    assert dashboard_of(named, {"RAY_ADDRESS": "http://other:1"}) == "http://head:1234"
    assert dashboard_of(RayOptions(), {"RAY_ADDRESS": "http://other:1/"}) == "http://other:1"
    assert dashboard_of(RayOptions(cluster="https://c"), {}) == "https://c"
    with pytest.raises(ConfigError, match="Ray Client"):
        dashboard_of(RayOptions(), {"RAY_ADDRESS": "ray://head:10001"})
    assert DEFAULT.startswith("http://")


def replica(number, state, **facts):
    own = {"exit_code": None, "signal": None, "error": "", "worker": "", "traceback": ""}
    own |= {"hostname": "n", "retries": 0, **facts}
    return {"role": "role", "id": number, "state": state, **own}


def said(*replicas, **facts):
    return {
        "final": None,
        "restarts": 0,
        "cause": None,
        "waiting": "",
        "replicas": replicas,
    } | facts


@pytest.mark.parametrize(
    ("job", "told", "log", "state", "message"),
    [
        ({"status": "PENDING"}, None, "", AppState.PENDING, ""),
        (
            {"status": "RUNNING"},
            said(replica(0, "PENDING"), replica(1, "PENDING"), waiting="needs 1 GPU"),
            "",
            AppState.PENDING,
            "needs 1 GPU",
        ),
        (
            {"status": "RUNNING"},
            said(replica(0, "RUNNING"), replica(1, "PENDING")),
            "",
            AppState.RUNNING,
            "",
        ),
        ({"status": "STOPPED"}, said(replica(0, "RUNNING")), "", AppState.CANCELLED, ""),
        (
            {"status": "FAILED", "driver_exit_code": 3},
            said(replica(0, "CANCELLED"), replica(1, "FAILED", exit_code=3), cause=["role", 1]),
            "",
            AppState.FAILED,
            "role/1 exited with code 3",
        ),
        (
            {"status": "FAILED", "message": "runtime_env setup failed: no package x"},
            None,
            "",
            AppState.FAILED,
            "the job on Ray failed: runtime_env setup failed: no package x",
        ),
        (
            {"status": "FAILED", "message": "Job entrypoint command failed"},
            None,
            "noise\nthe cluster's Python has no Ray\n",
            AppState.FAILED,
            "the job on Ray failed: the cluster's Python has no Ray",
        ),
    ],
)
def test_how_an_app_stands(job, told, log, state, message):
    """By its job, and by what its driver has said."""
    status = SeenRayApp("id", METADATA, job, told, log).status(2.0)
    assert (status.state, status.message) == (state, message)
    (role,) = status.roles
    assert len(role.replicas) == 2
    if state.is_final:
        assert all(one.state.is_final for one in role.replicas)
