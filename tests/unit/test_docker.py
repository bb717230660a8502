"""How an app in containers stands, from what an engine says of them; no engine is asked."""

import pytest

from phalanx._schedulers.replicas.assessment import SeenApp, SeenContainer, assess
from phalanx._schedulers.docker import labels
from phalanx._schedulers.docker.engine import explain, moment
from phalanx._schedulers.docker.gpus import choose
from phalanx._schedulers.docker.options import DockerOptions
from phalanx._schedulers.docker.request import ContainerRequest, make_request, role_words
from phalanx._schedulers.replicas.lifecycle_record import LifecycleRecord
from phalanx._schedulers.replicas.lifecycle import RoleLifecycle
from phalanx._specs import AppDef, AppState, RetryPolicy, Role
from phalanx.errors import ConfigError, SchedulerError


def seen(number, attempt=0, code=None, at=0.0, **fields):
    """A replica's container: it runs, or has ended with a code at a time."""
    known = {"state": "running"} if code is None else {"state": "exited", "finished": at}
    known |= {"exit_code": code or 0, "started": 1.0, **fields}
    return SeenContainer(("role", number), attempt, f"{number}-{attempt}", **known)


def app(*containers, replicas=2, retries=0, policy=RetryPolicy.REPLICA, cancelled=None):
    record = LifecycleRecord((RoleLifecycle("role", replicas, retries, policy),), 1.0, created=0.0)
    return SeenApp("app", "app", "session", "user", record, containers, cancelled)


def test_the_first_that_failed_is_the_cause_and_others_are_to_be_stopped():
    found = assess(app(seen(0), seen(1, code=3, at=5.0)), 6.0)
    assert (found.state, [c.id for c in found.to_stop]) == (AppState.RUNNING, ["0-0"])
    found = assess(app(seen(0, code=143, at=6.0), seen(1, code=3, at=5.0)), 7.0)
    assert (found.state, found.lifecycle.first_failure) == (AppState.FAILED, ("role", 1))
    assert found.lifecycle.states["role", 0] is AppState.CANCELLED


def test_retries_are_containers_that_are_not_there_yet():
    found = assess(app(seen(0), seen(1, code=3, at=5.0), retries=1), 6.0)
    assert found.to_start == [(("role", 1), 1)]
    found = assess(app(seen(0), seen(1, code=3, at=5.0), seen(1, 1), retries=1), 6.0)
    assert not found.is_due
    again = app(
        *(seen(0, code=0, at=9.0), seen(1, code=3, at=5.0), seen(1, 1, code=0, at=8.0)), retries=1
    )
    assert (assess(again, 9.0).state, assess(again, 9.0).lifecycle.restarts) == (
        AppState.SUCCEEDED,
        1,
    )


def test_what_was_cancelled_before_it_ended_is_cancelled():
    ended = (seen(0, code=143, at=6.0), seen(1, code=0, at=4.0))
    assert assess(app(*ended, cancelled=5.0), 7.0).state is AppState.CANCELLED
    assert assess(app(*ended, cancelled=8.0), 9.0).state is AppState.FAILED


def test_an_app_that_is_being_submitted_waits_and_one_that_never_was_has_failed():
    made = seen(0, state="created", started=None)
    assert assess(app(made), 1.0).state is AppState.PENDING
    assert assess(app(made), 1000.0).state is AppState.FAILED


def test_a_course_is_read_as_it_was_written():
    record = app(retries=2).lifecycle_record
    assert LifecycleRecord.from_text(record.to_text()) == record


def test_words_for_roles_differ():
    words = role_words(["a b", "a-b", "字", "ä", "x" * 200])
    assert len(set(words.values())) == 5
    assert all(len(word) < 50 for word in words.values())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01.5Z", 1.5),
        ("1970-01-01T00:00:01.123456789Z", 1.123456789),
        ("1970-01-01T01:00:01+01:00", 1.0),
        ("1970-01-01T00:00:02Z", 2.0),
        ("0001-01-01T00:00:00Z", None),
    ],
)
def test_times_of_an_engine(text, seconds):
    assert moment(text) == seconds


def test_complaints_are_sentences():
    text = 'could not select device driver "" with capabilities: [[gpu]]'
    assert "nvidia-ctk" in explain(text)
    text = "nvidia-container-cli: device error: 4: unknown device: unknown"
    assert explain(text) == "there is no GPU 4"
    assert explain("something else.") == "something else"


@pytest.mark.parametrize(
    ("counts", "used", "total", "given"),
    [
        ([2, 1], {}, None, [["0", "1"], ["2"]]),
        ([0, 0], {"all": "app"}, 1, [[], []]),
        ([1], {"0": "app"}, None, [["1"]]),
        ([1, 1], {"0": "app", "2": "app"}, 4, [["1"], ["3"]]),
        ([1, 0, 2], {"1": "app"}, 4, [["0"], [], ["2", "3"]]),
    ],
)
def test_gpus_are_those_that_nobody_else_has(counts, used, total, given):
    assert choose(counts, used, total) == given


@pytest.mark.parametrize(
    ("counts", "used", "total", "says"),
    [
        ([4, 1], {}, 4, "it needs 5 GPUs, but the engine's machine has 4."),
        ([1], {"0": "app-1"}, 1, "needs 1 GPU, and none is free: app-1 uses the others"),
        ([2], {"0": "one", "1": "two"}, 3, "1 of 3 is free: one, two use the others"),
        ([1], {"all": "launch-1"}, None, "none is free: launch-1 uses"),
    ],
)
def test_who_has_the_gpus_that_are_missing_is_said(counts, used, total, says):
    with pytest.raises(SchedulerError, match=says):
        choose(counts, used, total)


@pytest.mark.parametrize("size", ["", "8", "1x", "-1g"])
def test_sizes_that_are_none(size):
    with pytest.raises(ConfigError, match="shm_size"):
        DockerOptions(shm_size=size)
    assert DockerOptions(shm_size="8g").shm_bytes == 8 << 30


def test_a_container_asks_for_its_own_gpus_by_number():
    """A request for one would be a request for the first; the label tells the next who has them."""
    config = {"HostConfig": {"ShmSize": 1}, "Labels": {"a": "b"}}
    made = ContainerRequest("role", 0, "name", "image", None, config, 2).with_gpus(["3", "5"])
    (asked,) = made["HostConfig"].pop("DeviceRequests")
    assert (asked["DeviceIDs"], asked["Capabilities"]) == (["3", "5"], [["gpu"]])
    assert made == {"HostConfig": {"ShmSize": 1}, "Labels": {"a": "b", labels.GPUS: "3,5"}}


BYTES = "secret-\udcff"
"""What Python makes of bytes that are no text."""


@pytest.mark.parametrize(
    ("fields", "environ", "env", "said"),
    [
        ({}, {"TOKEN": BYTES}, {}, "copy_env: the variable 'TOKEN' is not UTF-8"),
        ({}, {}, {"A": BYTES}, "role 'role': the variable 'A' is not UTF-8"),
        ({"env": {"B": BYTES}}, {}, {}, "role 'role': the variable 'B' is not UTF-8"),
        ({"args": [BYTES]}, {}, {}, "role 'role': the argument 'secret-.udcff' is not UTF-8"),
    ],
)
def test_what_is_no_text_is_refused(fields, environ, env, said):
    """It would arrive as something else; values of variables are not told."""
    given = AppDef("app", [Role("role", image="image", entrypoint="true", **fields)])
    options = DockerOptions(copy_env=["TO*"], env=env)
    with pytest.raises(ConfigError, match=said) as refused:
        make_request(given, "session", options, "FIRST", {}, environ)
    assert "variable" not in said or BYTES not in str(refused.value)
