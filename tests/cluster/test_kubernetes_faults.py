"""Apps on Kubernetes when something goes wrong: pods, nodes, the API server, rights, quotas."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from phalanx.errors import SchedulerError
from phalanx.runner import get_runner
from phalanx.schedulers import create_scheduler
from phalanx.specs import AppDef, AppState, Resource, RetryPolicy, Role, macros
from tests.cluster.conftest import use_kubeconfig
from tests.conftest import is_alive, wait_until

SMALL = Resource(cpu=0.05, gpu=0, memMB=64)
COUNT = """if True:
    import time
    for number in range({lines}):
        print(f"line {{number}}", flush=True)
        time.sleep(0.1)
"""


class Apps:
    """Apps of one test, through the scheduler itself."""

    def __init__(self, cluster, namespace, session):
        self.cluster, self.namespace = cluster, namespace
        self.scheduler = create_scheduler("kubernetes", session)
        self.submitted = []

    def submit(self, app, **options):
        options = {"stop_grace": 1.0, "namespace": self.namespace, **options}
        made = self.scheduler.options(**options)
        self.submitted.append(self.scheduler.submit(self.scheduler.dryrun(app, made)))
        return self.submitted[-1]

    def status(self, app_id):
        return self.scheduler.describe(app_id)

    def until(self, app_id, condition, timeout=60):
        """The status, when a condition holds for it."""

        def holds():
            nonlocal last
            last = self.status(app_id)
            return condition(last) and last

        last = None
        try:
            return wait_until(holds, timeout)
        except AssertionError:
            raise AssertionError(f"in the end: {last}") from None

    def running(self, app_id):
        return self.until(app_id, lambda status: status.state is AppState.RUNNING)

    def ended(self, app_id, timeout=60):
        return self.until(app_id, lambda status: status.state.is_final, timeout)

    def lines(self, app_id, replica=0, **options):
        return [line.text for line in self.scheduler.logs(app_id, "role", replica, **options)]

    def pods(self):
        """All pods of the namespace that are not on their way out."""
        listed = self.cluster.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]

    def pod(self):
        """The one that runs."""

        def found():
            running = [pod for pod in self.pods() if pod["status"]["phase"] == "Running"]
            return running and running[0]

        return wait_until(found, 60, "no pod runs")

    def container(self):
        """Its container: the node, and the name there."""
        pod = self.pod()
        node = next(n for n in self.cluster.nodes if n.name == pod["spec"]["nodeName"])
        [status] = pod["status"]["containerStatuses"]
        return node, status["containerID"].removeprefix("docker://")


@pytest.fixture
def apps(request, namespace, monkeypatch, tmp_path):
    alone = "kube_alone" in request.fixturenames
    cluster = request.getfixturevalue("kube_alone" if alone else "kube")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    made = Apps(cluster, namespace, f"session-of-{tmp_path.name}")
    yield made
    cluster.heal()
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    for app_id in made.submitted:
        made.scheduler.delete(app_id)
    made.scheduler.close()


def app(apps, *command, replicas=1, **fields):
    fields = {"resource": SMALL, "image": apps.cluster.image, **fields}
    program, *words = command
    return AppDef(
        "app", [Role("role", entrypoint=program, args=words, num_replicas=replicas, **fields)]
    )


# ── pods ──────────────────────────────────────────────────────────────────────


def test_a_pod_that_is_evicted_is_replaced_and_the_app_goes_on(apps, kube, namespace):
    app_id = apps.submit(app(apps, "sleep", "infinity"))
    before = apps.pod()["metadata"]
    path = f"/api/v1/namespaces/{namespace}/pods/{before['name']}/eviction"
    eviction = {
        "apiVersion": "policy/v1beta1",
        "kind": "Eviction",
        "metadata": {"name": before["name"], "namespace": namespace},
    }
    kube.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    wait_until(lambda: apps.pod()["metadata"]["uid"] != before["uid"], 60)
    status = apps.running(app_id)
    assert [replica.state for role in status.roles for replica in role.replicas] == [
        AppState.RUNNING
    ]
    apps.scheduler.cancel(app_id)
    assert apps.status(app_id).state is AppState.CANCELLED


@pytest.mark.parametrize("policy", [RetryPolicy.APPLICATION, RetryPolicy.REPLICA])
def test_a_replica_that_the_kubelet_evicts_is_said_to_be_and_is_retried_by_policy(apps, policy):
    """It has taken more of an `emptyDir` than it may; in the kubelet's words."""
    take = "echo try; test ${replica_id} = 0 && head -c 8M /dev/zero >/dev/shm/all; sleep 600"
    retries = {"max_retries": 1, "retry_policy": policy}
    app_id = apps.submit(app(apps, "sh", "-c", take, replicas=2, **retries), shm_size="1Mi")
    status = apps.ended(app_id)
    assert status.state is AppState.FAILED
    said = r'role/0 failed: evicted from node\d: Usage of EmptyDir volume "shm" exceeds the limit'
    assert re.match(said, status.message), status.message
    evicted, other = status.roles[0].replicas
    assert (evicted.state, other.state) == (AppState.FAILED, AppState.CANCELLED)
    assert (evicted.retries, other.retries) == (1, policy is RetryPolicy.APPLICATION)
    (warning,) = status.warnings
    assert warning.startswith("role/0 was started again: evicted from node")


def test_a_program_that_takes_more_memory_than_it_may_is_said_to_have_done_so(apps):
    app_id = apps.submit(app(apps, "python3", "-c", "x = bytearray(512 << 20)"))
    status = apps.ended(app_id)
    assert status.state is AppState.FAILED
    assert "out of memory: its limit is 64Mi" in status.message


def test_a_replica_that_fails_again_and_again_is_said_to_do_so(apps):
    """While its Job waits, longer each time, before it starts another pod."""
    policy = {"max_retries": 3, "retry_policy": RetryPolicy.REPLICA}
    app_id = apps.submit(app(apps, "sh", "-c", "exit 3", **policy))
    said = "role/0: failed 2 times (exit code 3), starts again"
    status = apps.until(app_id, lambda status: said in status.message, 100)
    assert not status.state.is_final


def test_an_image_that_cannot_be_pulled_is_named_while_the_app_waits(apps):
    app_id = apps.submit(app(apps, "true", image="127.0.0.1:1/no/such:1"))
    status = apps.until(app_id, lambda status: "no/such:1" in status.message)
    assert status.state is AppState.PENDING
    assert "ImagePull" in status.message
    apps.scheduler.cancel(app_id)
    assert apps.status(app_id).state is AppState.CANCELLED


@pytest.mark.timeout(300)
def test_fifty_replicas(apps, caplog):
    app_id = apps.submit(app(apps, "echo", macros.replica_id, replicas=50))
    assert apps.ended(app_id, timeout=240).state is AppState.SUCCEEDED
    assert [apps.lines(app_id, number) for number in range(50)] == [[str(n)] for n in range(50)]
    assert not caplog.records


def test_names_of_every_kind(apps, kube, namespace, monkeypatch, tmp_path):
    """The server takes what becomes of them, and users find them as they wrote them."""
    odd = 'Ümläut "quoted" $HOME `id` \\ ; & | <> ! 字 😀 \' ' * 7
    names = ["字字 😀 $$x ‘q’", "字字 😀 $$y ‘q’", "-" * 200, "A.b_c"]
    roles = [
        Role(name, image=apps.cluster.image, entrypoint="echo", args=[str(i)], resource=SMALL)
        for i, name in enumerate(names)
    ]
    app_id = apps.submit(AppDef(odd[:300], roles))
    assert apps.ended(app_id).state is AppState.SUCCEEDED
    for number, name in enumerate(names):
        assert [line.text for line in apps.scheduler.logs(app_id, name, 0)] == [str(number)]
    use_kubeconfig(kube, namespace, monkeypatch, tmp_path)  # apps are listed by namespace
    again = create_scheduler("kubernetes", apps.scheduler.session_name)
    (listed,) = again.list()
    again.close()
    assert listed.name == odd[:300]


def test_a_killed_supervisor_is_replaced_by_whoever_looks_next(
    apps, kube, namespace, monkeypatch, tmp_path
):
    """By status, list or log; and again by one that goes on looking."""
    use_kubeconfig(kube, namespace, monkeypatch, tmp_path)  # apps are listed by namespace
    fails = "until test -e /tmp/told; do sleep 0.1; done; exit 3"
    policy = {"max_retries": 5, "retry_policy": RetryPolicy.APPLICATION}
    app_id = apps.submit(app(apps, "sh", "-c", fails, **policy))
    several = [create_scheduler("kubernetes", apps.scheduler.session_name) for _ in range(4)]
    by_status, by_list, by_log, twice = several
    looks = [
        lambda: by_status.describe(app_id),
        lambda: by_list.list(),
        lambda: list(by_log.logs(app_id, "role", 0)),
        lambda: twice.describe(app_id),
        lambda: twice.describe(app_id),
    ]
    for look in looks:
        before = apps.pod()["metadata"]["uid"]
        [supervisor] = wait_until(lambda: supervisors(app_id), 60, "no supervisor")
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: not supervisors(app_id))
        node, container = apps.container()
        node.docker("exec", "-d", container, "touch", "/tmp/told")  # it may not see its own end
        wait_until(lambda: (look(), supervisors(app_id))[1], 60, "nobody has started another")
        wait_until(lambda: apps.pod()["metadata"]["uid"] != before, 60, "no retry")
    assert apps.running(app_id).num_restarts == len(looks)
    for scheduler in several:
        scheduler.close()


def test_an_app_outlives_the_machine_that_has_submitted_it(
    apps, kube, namespace, monkeypatch, tmp_path
):
    """Another sees it, follows it through its retries, and deletes it, by its handle alone."""
    use_kubeconfig(kube, namespace, monkeypatch, tmp_path)

    def command(home, *words):
        places = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        return subprocess.Popen(
            [sys.executable, "-m", "phalanx", *words],
            env={**os.environ, **places},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    say = lambda home, *words: command(home, *words).communicate(timeout=120)[0]
    lost, other = tmp_path / "lost", tmp_path / "other"
    for home in (lost, other):
        home.mkdir()
    program = "echo try; until test -e /tmp/told; do sleep 0.1; done; exit 3"
    options = ("--image", kube.image, "--max_retries", "1", "--memMB", "64")
    run = ("run", "-s", "kubernetes", "-cfg", "pull=never,stop_grace=1", "--workspace", "")
    said = say(lost, *run, "utils.sh", *options, program)
    (handle,) = re.findall(r"kubernetes://\S+", said)
    app_id = handle.rpartition("/")[2]
    [supervisor] = wait_until(lambda: supervisors(app_id), 60, "no supervisor")
    os.kill(supervisor, signal.SIGKILL)
    shutil.rmtree(lost)

    assert app_id in say(other, "list", "-s", "kubernetes")
    follower = command(other, "log", "--follow", handle)
    before = None
    for _ in range(2):
        wait_until(lambda: apps.pod()["metadata"]["uid"] != before, 60, "no retry")
        before = apps.pod()["metadata"]["uid"]
        node, container = apps.container()
        node.docker("exec", container, "touch", "/tmp/told")
    followed = follower.communicate(timeout=120)[0]
    assert followed.count("sh/0 try\n") == 2
    assert "exited with code 3" in say(other, "status", handle)
    say(other, "delete", handle)
    kinds = "services,jobs,pods,secrets"
    chosen = ("--namespace", namespace, "-l", "phalanx/app", "-o", "name")
    wait_until(lambda: not kube.kubectl("get", kinds, *chosen), 60, "something is left of it")


def supervisors(app_id):
    """The processes that see to an app."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if b"apps.supervisor" in words and app_id.encode() in words.split(b"\0"):
            found.append(int(entry))
    return [pid for pid in found if is_alive(pid)]


# ── rights and quotas ─────────────────────────────────────────────────────────


def test_a_log_that_may_not_be_read(apps, kube, namespace, monkeypatch):
    app_id = apps.submit(app(apps, "echo", "something"))
    apps.ended(app_id)
    rules = [
        {"apiGroups": ["", "batch"], "resources": ["services", "jobs", "pods"], "verbs": ["*"]},
    ]
    monkeypatch.setenv("KUBECONFIG", str(kube.restricted_kubeconfig(rules, namespace)))
    few = create_scheduler("kubernetes", apps.scheduler.session_name)
    with pytest.raises(SchedulerError, match="missing right: get pods/log in the namespace"):
        list(few.logs(app_id, "role", 0))
    few.close()


def quota(namespace, **hard):
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": namespace},
        "spec": {"hard": {name.replace("_", "."): value for name, value in hard.items()}},
    }


def test_a_quota_that_leaves_no_room_for_all_pods_is_named_while_they_wait(apps, kube, namespace):
    kube.apply(quota(namespace, pods="1"))
    used = lambda: kube.get(f"/api/v1/namespaces/{namespace}/resourcequotas/few")["status"]
    wait_until(lambda: used().get("hard"), 30)
    app_id = apps.submit(app(apps, "sleep", "infinity", replicas=2))
    status = apps.until(app_id, lambda status: "exceeded quota: few" in status.message)
    assert "pods=1" in status.message
    assert not status.state.is_final
    kube.kubectl("delete", "resourcequota", "few", "--namespace", namespace)
    both = lambda status: all(r.state is AppState.RUNNING for r in status.roles[0].replicas)
    apps.until(app_id, both, timeout=100)


# ── secrets ───────────────────────────────────────────────────────────────────


def test_what_is_copied_of_the_environment_is_in_no_command_and_no_annotation(
    apps, kube, namespace, monkeypatch
):
    word = f"secret-{os.urandom(8).hex()}"
    monkeypatch.setenv("TEST_KEY", word)
    code = "import os, time; print(os.environ['TEST_KEY'][:7], flush=True); time.sleep(600)"
    app_id = apps.submit(app(apps, "python3", "-c", code), copy_env=["TEST_*"])
    wait_until(lambda: apps.lines(app_id) == ["secret-"], 60)
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            assert word.encode() not in Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue  # it has ended
    kinds = "services,jobs,pods,configmaps,events,endpoints"
    told = kube.kubectl("get", kinds, "--namespace", namespace, "-o", "json")
    assert word not in told
    assert app_id.rpartition("/")[2].split(":")[-1] in told


# ── the cluster itself ────────────────────────────────────────────────────────


@pytest.mark.timeout(300)
def test_a_replica_on_a_node_whose_kubelet_is_dead_is_started_on_another(apps, kube_alone):
    kube = kube_alone
    app_id = apps.submit(app(apps, "sleep", "infinity"))
    before = apps.pod()
    lost = before["spec"]["nodeName"]
    kube.crash(lost.replace("node", "kubelet"))
    elsewhere = lambda: apps.pod()["spec"]["nodeName"] != lost
    # While the other node, too, is late with a word, the cluster moves nothing.
    wait_until(elsewhere, 200, "no pod on another node")
    status = apps.running(app_id)
    assert status.roles[0].replicas[0].hostname == apps.pod()["spec"]["nodeName"]
    said = f"role/0 was started again: lost with its node {lost}, which does not answer"
    apps.until(app_id, lambda status: status.warnings == (said,))
    kube.heal(lost.replace("node", "kubelet"))
    apps.scheduler.cancel(app_id)
    assert apps.status(app_id).state is AppState.CANCELLED


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("fault", "seconds"), [("crash apiserver", 20), ("stop apiserver", 5), ("crash etcd", 10)]
)
def test_who_follows_an_app_while_the_control_plane_is_away_gets_every_line_once(
    apps, kube_alone, fault, seconds
):
    """And who waits for its end goes on waiting."""
    kube = kube_alone
    how, part = fault.split()
    lines = 10 * seconds + 40
    program = COUNT.format(lines=lines)
    app_id = apps.submit(app(apps, "python3", "-c", program))
    got, waited, failed = [], [], []

    def follow():
        scheduler = create_scheduler("kubernetes", apps.scheduler.session_name)
        try:
            for line in scheduler.logs(app_id, "role", 0, follow=True):
                got.append(line.text)
        except BaseException as error:
            failed.append(error)
        finally:
            scheduler.close()

    def wait():
        with get_runner(apps.scheduler.session_name) as runner:
            handle = f"kubernetes://{apps.scheduler.session_name}/{app_id}"
            try:
                waited.append(runner.wait(handle).state)
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=one) for one in (follow, wait)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(got) > 10 or failed, 60, "nothing was followed")
        node, container = apps.container()
        printed = lambda: node.docker("logs", container).count("\n")
        first = printed()
        getattr(kube, how)(part)
        if fault == "crash apiserver":
            for ask in (apps.status, lambda _: apps.submit(app(apps, "true"))):
                with pytest.raises(SchedulerError, match="does not answer .*kubectl cluster-info"):
                    ask(app_id)
        # The program goes on meanwhile.
        missed = lambda: printed() >= min(first + 10 * seconds, lines)
        wait_until(missed, 60, "the program stands still")
        kube.heal(part)
    finally:
        kube.heal(part)
        for thread in threads:
            thread.join(90)
    assert not failed
    assert got == [f"line {number}" for number in range(lines)]
    assert waited == [apps.ended(app_id).state] == [AppState.SUCCEEDED]


@pytest.mark.timeout(240)
def test_a_replica_that_fails_while_the_api_server_is_away_is_retried_afterwards(apps, kube_alone):
    told = "until test -e /tmp/told; do sleep 0.1; done; exit 3"
    policy = RetryPolicy.APPLICATION
    app_id = apps.submit(app(apps, "sh", "-c", told, max_retries=1, retry_policy=policy))
    before = apps.pod()["metadata"]["uid"]
    node, container = apps.container()
    kube_alone.crash("apiserver")
    node.docker("exec", container, "touch", "/tmp/told")
    runs = lambda: node.docker("inspect", "--format", "{{.State.Running}}", container)
    wait_until(lambda: runs() == "false\n", 30)
    kube_alone.heal("apiserver")
    wait_until(lambda: apps.pod()["metadata"]["uid"] != before, 60)
    node, container = apps.container()
    node.docker("exec", container, "touch", "/tmp/told")
    status = apps.ended(app_id)
    assert status.state is AppState.FAILED
    assert status.message == "role/0 exited with code 3"
    assert status.num_restarts == 1
