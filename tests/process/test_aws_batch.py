"""AWS Batch: the real client against moto_server, which answers as the service and runs nothing."""

import dataclasses
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from phalanx._schedulers.aws_batch.options import AwsBatchOptions
from phalanx._schedulers.aws_batch.scheduler import AwsBatchScheduler, _why
from phalanx._schedulers.options import make
from phalanx._specs import AppDef, AppState, Role
from phalanx.components import dist
from phalanx.errors import ConfigError, SchedulerError
from phalanx.testing import SchedulerSuite
from tests.conftest import wait_until
from tests.process.commands import phalanx

pytest.importorskip("moto.server", reason="moto[server] is not installed")

KEYS = {
    "AWS_ACCESS_KEY_ID": "key-of-the-tests",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_CONFIG_FILE": "/nowhere",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    "AWS_EC2_METADATA_DISABLED": "true",
}
ROLE = Role("role", image="image", entrypoint="echo", args=["hi"])
APP = AppDef("app", [ROLE])


def post(url, body):
    data = json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method="POST")) as answer:
        assert answer.status in (200, 201)


@pytest.fixture(scope="module")
def moto(tmp_path_factory):
    """The service, with a queue."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("moto") / "log"
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        # No engine is there for it: jobs that it would run fail.
        env = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
        server = subprocess.Popen(words, stdout=output, stderr=output, env=env)
    try:
        wait_until(lambda: _answers(port), message="moto_server did not start")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in KEYS.items():
                patch.setenv(name, value)
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            _make_queue()
            yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def _answers(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _client(kind):
    import boto3

    return boto3.client(kind)


def _make_queue():
    role = _client("iam").create_role(RoleName="batch", AssumeRolePolicyDocument="{}")
    batch = _client("batch")
    made = batch.create_compute_environment(
        computeEnvironmentName="hosts",
        type="UNMANAGED",
        state="ENABLED",
        serviceRole=role["Role"]["Arn"],
    )
    order = [{"order": 1, "computeEnvironment": made["computeEnvironmentArn"]}]
    for name in ("queue", "other"):
        batch.create_job_queue(
            jobQueueName=name, state="ENABLED", priority=1, computeEnvironmentOrder=order
        )


@pytest.fixture
def ended(moto):
    """Jobs succeed at once."""
    post(f"{moto}/moto-api/config", {"batch": {"use_docker": False}})
    yield
    post(f"{moto}/moto-api/config", {"batch": {"use_docker": True}})


@pytest.fixture
def waiting(moto):
    """Jobs stay where they are; `slowly`: a second in each state."""

    def stay(seconds):
        later = {"progression": "time", "seconds": seconds}
        where = {"model_name": "batch::job", "transition": later}
        post(f"{moto}/moto-api/state-manager/set-transition", where)

    def go_on():
        post(f"{moto}/moto-api/state-manager/unset-transition", {"model_name": "batch::job"})

    stay(3600)
    go_on.slowly = lambda: stay(1)
    yield go_on
    go_on()


@pytest.fixture
def scheduler(moto):
    made = AwsBatchScheduler("session")
    yield made
    made.close()


def options(**given):
    return make("aws_batch", AwsBatchOptions, {"queue": "queue", **given})


def submit(scheduler, app=APP, **given):
    return scheduler.submit(scheduler.dryrun(app, options(**given)))


# ── jobs ──────────────────────────────────────────────────────────────────────


def test_an_app_is_found_by_its_id_and_listed_by_its_tags(ended, scheduler):
    """By another object, and not in another session."""
    app_id = submit(scheduler, tags="cost:me", region="eu-west-1")
    assert re.fullmatch(r"queue:app-[0-9a-f]{8}:eu-west-1", app_id)
    status = AwsBatchScheduler("session").describe(app_id)
    assert (status.state, status.exit_code, status.app) == (AppState.SUCCEEDED, 0, app_id)
    assert AwsBatchScheduler("other").describe(app_id) is None
    other = submit(scheduler, queue="other")
    listed = scheduler.list()
    assert [app.app_id for app in listed][-2:] == [app_id.removesuffix(":eu-west-1"), other]
    assert (listed[-1].name, listed[-1].state) == ("app", AppState.SUCCEEDED)
    assert listed[-1].app_handle == f"aws_batch://session/{other}"
    assert AwsBatchScheduler("other").list() == []


def test_a_definition_is_registered_once(ended, scheduler):
    """For all runs that differ in command and environment alone."""
    image = "only-here"
    for words in (["a"], ["b"]):
        submit(scheduler, AppDef("app", [dataclasses.replace(ROLE, image=image, args=words)]))
    known = _client("batch").describe_job_definitions()["jobDefinitions"]
    (own,) = [one for one in known if one["containerProperties"]["image"] == image]
    assert own["revision"] == 1


def test_the_replicas_of_an_array(ended, scheduler):
    """Each by its number."""
    role = dataclasses.replace(ROLE, num_replicas=3)
    app_id = submit(scheduler, AppDef("array", [role]), job_type="array")
    (found,) = scheduler.describe(app_id).roles
    assert [replica.state for replica in found.replicas] == [AppState.SUCCEEDED] * 3
    put_events(scheduler, app_id, "two", child=":2")
    (line,) = scheduler.logs(app_id, "role", 2)
    assert (line.role, line.replica, line.text) == ("role", 2, "two")


def test_a_multi_node_job(ended, scheduler):
    """As far as moto has one: its children are known to AWS alone."""
    role = dataclasses.replace(ROLE, num_replicas=2)
    app_id = submit(scheduler, AppDef("nodes", [role]))
    status = scheduler.describe(app_id)
    assert (status.state, len(status.roles[0].replicas)) == (AppState.SUCCEEDED, 2)
    assert list(scheduler.logs(app_id, "role", 1, follow=True)) == []


def test_cancelling_and_deleting(waiting, scheduler):
    """A job that waits says so; one that was cancelled is not there once it is deleted."""
    app_id = submit(scheduler)
    wait_until(lambda: scheduler.describe(app_id).state is not AppState.UNKNOWN)
    assert not scheduler.describe(app_id).state.is_final
    scheduler.cancel(app_id)
    scheduler.cancel(app_id)
    waiting()  # moto ends a job in its next state
    wait_until(lambda: scheduler.describe(app_id).state.is_final)
    assert scheduler.describe(app_id).state is AppState.CANCELLED
    scheduler.delete(app_id)
    assert scheduler.describe(app_id) is None
    assert app_id not in [app.app_id for app in scheduler.list()]
    scheduler.delete(app_id)


def test_why_a_job_waits(waiting, scheduler):
    """By its queue, as it stands now."""
    waiting.slowly()
    app_id = submit(scheduler)
    why = "waits for a host in the queue queue"
    wait_until(lambda: scheduler.describe(app_id).message == why)
    service = scheduler._service()
    job = {"status": "RUNNABLE", "jobQueue": "other"}
    assert _why(service, job) == "waits for a host in the queue other"
    _client("batch").update_job_queue(jobQueue="other", state="DISABLED")
    assert _why(service, job) == "the queue other is disabled"
    _client("batch").update_job_queue(jobQueue="other", state="ENABLED")


# ── logs ──────────────────────────────────────────────────────────────────────


def put_events(scheduler, app_id, *texts, child="", start=None):
    job_id = _job_id(app_id) + child
    job = _client("batch").describe_jobs(jobs=[job_id])["jobs"][0]
    logs = _client("logs")
    stream = job["container"]["logStreamName"]
    for make_one, given in (
        (logs.create_log_group, {"logGroupName": "/aws/batch/job"}),
        (logs.create_log_stream, {"logGroupName": "/aws/batch/job", "logStreamName": stream}),
    ):
        try:
            make_one(**given)
        except logs.exceptions.ResourceAlreadyExistsException:
            continue
    begin = round((start or time.time()) * 1000)
    events = [{"timestamp": begin + i, "message": text} for i, text in enumerate(texts)]
    logs.put_log_events(logGroupName="/aws/batch/job", logStreamName=stream, logEvents=events)


def _job_id(app_id):
    filters = [{"name": "JOB_NAME", "values": [app_id.split(":")[1]]}]
    found = _client("batch").list_jobs(jobQueue="queue", filters=filters)["jobSummaryList"]
    return next(job["jobId"] for job in found if ":" not in job["jobId"])


def test_all_pages_of_a_log_between_two_times(ended, scheduler):
    """In order, each line once."""
    app_id = submit(scheduler)
    assert list(scheduler.logs(app_id, "role", 0)) == []  # there is no stream yet
    start = time.time() - 60
    texts = [f"line {i} ü" + " " * 100 for i in range(9000)]
    for begin in range(0, 9000, 3000):
        put_events(scheduler, app_id, *texts[begin : begin + 3000], start=start + begin / 1000)
    lines = list(scheduler.logs(app_id, "role", 0, follow=True))
    assert [line.text for line in lines] == texts
    middle = (lines[4000].time, lines[4002].time)
    chosen = scheduler.logs(app_id, "role", 0, since=middle[0], until=middle[1])
    assert [line.text.strip() for line in chosen] == ["line 4000 ü", "line 4001 ü", "line 4002 ü"]
    with pytest.raises(LookupError, match="has no role 'other'"):
        scheduler.logs(app_id, "other", 0)
    with pytest.raises(LookupError, match="has 1 replicas, no 1"):
        scheduler.logs(app_id, "role", 1)


# ── what goes wrong ───────────────────────────────────────────────────────────


@pytest.fixture
def gate(moto):
    """A server before moto that answers the first requests itself."""
    answers, seen = [], []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append(self.path)
            if answers:
                code, kind = answers.pop(0)
                said = {"message": "No.", "__type": kind}  # where one API has it, or the other
                text, headers = json.dumps(said).encode(), {"x-amzn-ErrorType": kind}
            else:
                kept = {k: v for k, v in self.headers.items() if k.lower() != "host"}
                sent = urllib.request.Request(moto + self.path, body, kept, method="POST")
                with urllib.request.urlopen(sent) as answer:
                    code, text, headers = answer.status, answer.read(), {}
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers, seen
    server.shutdown()
    server.server_close()
    thread.join()


def test_throttling_is_waited_out(ended, scheduler, gate):
    """With one request after another, later each time."""
    url, answers, seen = gate
    answers += [(429, "TooManyRequestsException")] * 2
    app_id = submit(scheduler, endpoint=url)
    assert seen[:3] == ["/v1/describejobdefinitions"] * 3
    assert scheduler.describe(app_id).state is AppState.SUCCEEDED
    scheduler.close()


def test_who_follows_a_log_asks_now_and_then(ended, scheduler, gate):
    """Lines that come late are there, each once; a throttled request is sent again."""
    url, answers, seen = gate
    app_id = submit(scheduler, endpoint=url)
    put_events(scheduler, app_id, "first")
    began, asked = time.monotonic(), len(seen)
    lines = scheduler.logs(app_id, "role", 0, follow=True)
    assert next(lines).text == "first"
    answers.append((400, "ThrottlingException"))
    put_events(scheduler, app_id, "second")
    assert [line.text for line in lines] == ["second"]
    # Each look is at the job, and at its log until nothing new comes.
    assert len(seen) - asked <= 3 * (time.monotonic() - began + 1) + 1
    scheduler.close()


def test_a_profile_has_credentials_and_a_region(ended, scheduler, moto, monkeypatch, tmp_path):
    """Whoever has the app's id finds it by the same."""
    (tmp_path / "config").write_text("[profile team]\nregion = eu-west-1\n")
    keys = "aws_access_key_id = other-key\naws_secret_access_key = other-secret\n"
    (tmp_path / "credentials").write_text(f"[team]\n{keys}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    app_id = submit(scheduler, profile="team")
    assert app_id.endswith(":team")
    assert AwsBatchScheduler("session").describe(app_id).state is AppState.SUCCEEDED


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (403, "ExpiredTokenException", "your token has expired. Log in again"),
        (403, "AccessDeniedException", "denies you batch:DescribeJobDefinitions: No."),
        (403, "UnrecognizedClientException", "does not know your credentials"),
        (400, "ClientException", "refuses DescribeJobDefinitions: No."),
    ],
)
def test_a_refusal_is_one_sentence(scheduler, gate, code, kind, said):
    """That names what is missing, and no credentials."""
    url, answers, _ = gate
    answers.append((code, kind))
    with pytest.raises(SchedulerError, match=re.escape(said)) as raised:
        submit(scheduler, endpoint=url)
    assert "\n" not in str(raised.value)
    assert "of-the-tests" not in str(raised.value)
    scheduler.close()


def test_what_is_missing_here_is_one_sentence(scheduler, monkeypatch):
    """A profile, a region, credentials, a server, a queue."""
    with pytest.raises(ConfigError, match="profile: .*nobody"):
        submit(scheduler, profile="nobody")
    with pytest.raises(SchedulerError, match="cannot reach AWS Batch: .*127.0.0.1:1/"):
        monkeypatch.setattr("phalanx._schedulers.aws_batch.service._ATTEMPTS", 1)
        submit(scheduler, endpoint="http://127.0.0.1:1")
    with pytest.raises(SchedulerError, match="Job queue nothing does not exist"):
        submit(scheduler, queue="nothing")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match="no credentials were found"):
        submit(AwsBatchScheduler("session"))
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ConfigError, match="no region is set"):
        submit(AwsBatchScheduler("session"))


def test_a_project_travels_in_an_image(scheduler, tmp_path):
    """Or not at all, and that is said."""
    (tmp_path / "a.py").touch()
    app = AppDef("app", [dataclasses.replace(ROLE, workspace=str(tmp_path))])
    with pytest.raises(ConfigError, match="-cfg image_repo=…, or run the image as it is"):
        scheduler.dryrun(app, options())
    request = scheduler.dryrun(app, options(image_repo="registry.example.com/team/app"))
    assert "image with 1 files" in str(request)


# ── the command line ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "option", "replicas", "has"),
    [
        ("container", "auto", "1", "containerOverrides"),
        ("multinode", "auto", "2", "nodeOverrides"),
        ("container", "array", "2", "arrayProperties"),
    ],
)
def test_a_dry_run_prints_what_the_service_takes(monkeypatch, kind, option, replicas, has):
    """Of each kind of job, by the validator of the service's own client; nobody is asked."""
    from botocore.session import Session
    from botocore.validate import ParamValidator

    for name, value in {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    words = ("--workspace", "", "-s", "aws_batch", "-cfg", f"queue=queue,job_type={option}")
    echo = ("utils.echo", "--image", "i", "--num_replicas", replicas)
    done = phalanx("run", "--dryrun", *words, *echo)
    assert done.returncode == 0, done.stderr
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in done.stdout + done.stderr
    shown = json.loads(done.stdout.partition("=== SCHEDULER REQUEST ===")[2])
    model = Session().get_service_model("batch")
    for operation in ("RegisterJobDefinition", "SubmitJob"):
        shape = model.operation_model(operation).input_shape
        report = ParamValidator().validate(shown[operation], shape)
        assert not report.has_errors(), report.generate_report()
    assert shown["RegisterJobDefinition"]["type"] == kind
    assert has in shown["SubmitJob"]


def test_commands(ended, moto, own_state):
    """An app from its start to its end, from the shell."""
    words = ("--workspace", "", "-s", "aws_batch", "-cfg", "queue=queue")
    done = phalanx("run", "--wait", *words, "utils.echo", "--image", "i", "--msg", "hi")
    assert done.returncode == 0, done.stderr
    handle = done.stdout.strip()
    assert re.fullmatch(r"aws_batch://phalanx/queue:echo-[0-9a-f]{8}", handle)
    assert "SUCCEEDED" in phalanx("status", handle).stdout
    files = [path for path in own_state.parent.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in path.read_bytes(), path
    lent = phalanx("launch", "json:dumps", "-s", "aws_batch", "--num-hosts", "2")
    assert lent.returncode != 0
    assert "aws_batch" in lent.stderr
    assert "lend" in lent.stderr


# ── what replicas run ─────────────────────────────────────────────────────────


def test_ddp_on_two_nodes_meets_at_the_main_one(scheduler, tmp_path):
    """The very commands of the nodes, with the variables that the service sets."""
    (tmp_path / "reduce.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "value = torch.ones(1)\n"
        "dist.all_reduce(value)\n"
        "print('sum', int(value), 'replica', os.environ['PHALANX_REPLICA_ID'], flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    app = dist.ddp(script="reduce.py", image="image", j="2x1", rdzv_port=port)
    job = scheduler.dryrun(app, options()).submission("definition", {})
    (group,) = job["nodeOverrides"]["nodePropertyOverrides"]
    own = {one["name"]: one["value"] for one in group["containerOverrides"]["environment"]}
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    nodes = []
    for index in range(2):
        service = {"AWS_BATCH_JOB_NODE_INDEX": str(index)}
        if index:
            service["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "127.0.0.1"
        nodes.append(
            subprocess.Popen(
                group["containerOverrides"]["command"],
                env={**os.environ, **own, **service, "PATH": path},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    for index, node in enumerate(nodes):
        output, _ = node.communicate(timeout=90)
        assert f"sum 2 replica {index}" in output, output
        assert node.returncode == 0, output


# ── the suite ─────────────────────────────────────────────────────────────────

RUNS = "moto_server has no Docker engine here to run a program, which would have to "
NEEDS_AWS = {
    "test_submitting_does_not_wait_for_the_end": "go on meanwhile",
    "test_submitting_takes_none_of_our_streams_along": "print",
    "test_a_failed_replica_fails_the_app": "fail",
    "test_a_failed_app_has_ended": "fail while another goes on",
    "test_what_cannot_be_started_fails_the_app_at_once": "be one that cannot be started",
    "test_all_roles_run": "print",
    "test_words_arrive_as_they_were_given": "print its arguments",
    "test_replicas_run_with_the_workspace": "read the files of its image",
    "test_replicas_know_who_they_are": "print its variables",
    "test_no_line_is_lost": "print",
    "test_following_goes_on_until_the_end": "print",
    "test_without_follow_it_returns_at_once": "print, and go on",
    "test_lines_have_times": "print",
    "test_following_ends_with_a_cancelled_app": "print, and be ended",
    "test_cancelling_ends_an_app": "be ended",
    "test_cancelling_at_once": "be ended",
    "test_cancelling_ends_what_ignores_it": "ignore SIGTERM",
    "test_retries_start_again": "fail, and start again",
}


class TestSuite(SchedulerSuite):
    """What a service that runs nothing can show of the suite of schedulers."""

    image = "image"

    @pytest.fixture(autouse=True)
    def there(self, request, ended):
        if reason := NEEDS_AWS.get(request.node.originalname):
            pytest.skip(RUNS + reason)

    def create_scheduler(self, session_name):
        return AwsBatchScheduler(session_name)

    def scheduler_options(self):
        return {"queue": "queue"}

    lease_options = scheduler_options
