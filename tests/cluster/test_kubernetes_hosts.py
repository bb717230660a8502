"""Pods as hosts of launches: every way to a host, and what is special of pods."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

import phalanx
from phalanx._launcher.transport.lease import lent_target
from phalanx._schedulers.kubernetes.hosts import lease as kubernetes_lease
from phalanx._schedulers.leases import LentHost
from phalanx._system import processes
from phalanx.schedulers import LeasePhase, LeaseRequest, create_scheduler
from tests.cluster.conftest import take_turn
from tests.cluster.docker import NO_SHELL
from tests.conftest import wait_until
from tests.ways_to_hosts import HostSuite, ReconnectSuite, Way


@pytest.fixture
def in_kube(kubernetes, namespace, request, monkeypatch):
    """A namespace of that cluster is the one that clients in this process find."""
    alone = "kube_alone" in request.fixturenames
    cluster = request.getfixturevalue("kube_alone" if alone else "kube")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return cluster


@pytest.fixture
def launcher(in_kube, namespace):
    """Pods of which nothing may be left."""

    def make(num_hosts=2, **options):
        more = {"namespace": namespace, **options.pop("scheduler_options", {})}
        options = {"workers_per_host": 1, "image": in_kube.image, **options}
        return phalanx.Launcher(
            scheduler="kubernetes", num_hosts=num_hosts, scheduler_options=more, **options
        )

    yield make
    wait_until(lambda: not pods(in_kube, namespace), 30, "pods are left")


def pods(cluster, namespace):
    """What there is, by name."""
    listed = cluster.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {one["metadata"]["name"]: one for one in listed}


@pytest.fixture(scope="class")
def pod(kubernetes):
    """One for all tests of a class: each leaves it as it was."""
    with (
        pytest.MonkeyPatch.context() as patch,
        take_turn(kubernetes),
        kubernetes.namespace() as namespace,
    ):
        patch.setenv("KUBECONFIG", str(kubernetes.kubeconfig))
        scheduler = create_scheduler("kubernetes", "tests")
        options = scheduler.options(namespace=namespace)
        lease = scheduler.lend(LeaseRequest("hosts", 1, options, kubernetes.image))
        try:
            wait_until(lambda: lease.status().phase is LeasePhase.READY, 60, lease.status())
            yield lease.status().hosts[0]
        finally:
            lease.give_back()


class TestPodExec(HostSuite, ReconnectSuite):
    """A command by the API server's exec."""

    @pytest.fixture
    def way(self, pod):
        command = tuple("nowhere" if word == pod.name else word for word in pod.command)
        nowhere = lent_target(LentHost("nowhere", command), ("python3",))
        return Way(lent_target(pod, ("python3",)), nowhere, 'pods "nowhere" not found')


def test_the_command_runs_a_function_in_pods(in_kube, namespace, tmp_path):
    """As docs/kubernetes.md has it, with another image and namespace."""
    page = Path(__file__).parents[2] / "docs" / "kubernetes.md"
    command = re.search(r"^phalanx (launch .*--image .*)$", page.read_text(), re.MULTILINE)[1]
    words = command.replace("pytorch/pytorch", in_kube.image).split()
    (tmp_path / "train.py").write_text("import os\n\ndef train():\n    return os.environ['RANK']\n")
    config = tmp_path / "kubeconfig"
    config.write_bytes(in_kube.kubeconfig.read_bytes())
    chosen = ("set-context", "--current", "--namespace", namespace)
    in_kube.kubectl("config", *chosen, kubeconfig=config)
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", *words],
        cwd=tmp_path,
        env={**os.environ, "KUBECONFIG": str(config)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [f"rank {i}: '{i}'" for i in range(8)], done.stderr


def test_two_launches_at_once_share_nothing(launcher):
    """Whatever they are called."""

    def where():
        import socket

        return socket.gethostname()

    apps = [launcher(name="Ünïted & 1/2 " * 7).start(where) for _ in range(2)]
    found = [name for app in apps for name in app.result(100)]
    assert len({*found}) == 4


def test_the_environment_that_is_copied_is_in_no_description(
    launcher, in_kube, namespace, monkeypatch
):
    """It travels in a Secret, which goes with the pods."""
    monkeypatch.setenv("WORD_FOR_PODS", "xyzzy")

    def work():
        print("here", flush=True)
        threading.Event().wait(1)
        return os.environ["WORD_FOR_PODS"], os.environ["OTHER"]

    options = {"copy_env": ["WORD_FOR_*"], "env": {"OTHER": "2"}}
    app = launcher(1, scheduler_options=options).start(work)
    next(app.logs(follow=True))
    assert "xyzzy" not in json.dumps(pods(in_kube, namespace))
    assert list(app.result(60)) == [("xyzzy", "2")]
    left = in_kube.get(f"/api/v1/namespaces/{namespace}/secrets")["items"]
    assert not [one for one in left if "phalanx/lease" in one["metadata"].get("labels", {})]


def restarting():
    """Work that waits for ever in the first round; made here, since pods do not have this module."""

    def work():
        import socket

        print("on", socket.gethostname(), flush=True)
        if phalanx.context().restart_count == 0:
            threading.Event().wait(300)
        return socket.gethostname()

    return work


def delete(cluster, namespace, pod):
    cluster.kubectl("delete", "pod", pod, "-n", namespace, "--wait=false")


def delete_hard(cluster, namespace, pod):
    hard = ("--force", "--grace-period=0", "--wait=false")
    cluster.kubectl("delete", "pod", pod, "-n", namespace, *hard)


def evict(cluster, namespace, pod):
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    about = {"name": pod, "namespace": namespace}
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": about}
    cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))


@pytest.mark.parametrize(
    ("num_hosts", "end"),
    [(2, delete), (1, delete_hard), (2, evict)],
    ids=["deleted", "the only one, by force", "evicted"],
)
def test_a_pod_that_is_deleted_is_replaced(launcher, in_kube, namespace, num_hosts, end):
    """With elastic options, at once: nobody waits for it."""
    app = launcher(num_hosts, max_restarts=3).start(restarting())
    lines = app.logs(follow=True)
    first = min(next(lines).text.split()[1] for _ in range(num_hosts))
    end(in_kube, namespace, first)
    found = set(app.result(kubernetes_lease.RECONNECT_TIMEOUT))
    assert first not in found
    assert len(found) == num_hosts


def test_a_pod_that_the_kubelet_evicts_is_replaced(launcher):
    """It has taken more of /dev/shm than it may."""

    def work():
        import socket

        if phalanx.context().restart_count == 0:
            Path("/dev/shm/all").write_bytes(bytes(8 << 20))  # noqa: S108
            threading.Event().wait(300)
        return socket.gethostname()

    app = launcher(1, max_restarts=3, scheduler_options={"shm_size": "1Mi"}).start(work)
    (found,) = app.result(kubernetes_lease.RECONNECT_TIMEOUT)
    first, second = app.status().rounds
    assert second.hosts == (found,) != first.hosts


def test_a_worker_that_takes_more_memory_than_its_pod_has_is_said_to_have_done_so(launcher):
    """As the kernel has counted it."""
    made = launcher(1, scheduler_options={"mem": "96Mi"})
    with pytest.raises(phalanx.WorkerFailed, match="killed by SIGKILL: out of memory"):
        made.run(bytearray, args=(400 << 20,))


@pytest.mark.parametrize(
    ("lacks", "says"),
    [(NO_SHELL, "/bin/sh"), ("rm /usr/bin/python3*", "no python3")],
    ids=["no shell", "no Python"],
)
def test_an_image_without_a_shell_or_python_is_one_sentence(launcher, in_kube, lacks, says):
    """Both are needed for functions."""
    name = f"phalanx-tests/without-{len(lacks)}:1"
    for node in in_kube.nodes:
        node.docker("build", "-t", name, "-", input=f"FROM {in_kube.image}\nRUN {lacks}\n")
    with pytest.raises((phalanx.SchedulerError, phalanx.StartFailed), match=says) as caught:
        launcher(1, image=name).run(int)
    assert "\n" not in str(caught.value)


def test_another_user_and_a_read_only_root(launcher, tmp_path):
    """As a template has it; something must be left to write to."""
    context = {"runAsUser": 12345, "readOnlyRootFilesystem": True}
    main = {"name": "main", "securityContext": context}
    template = tmp_path / "pod.yaml"
    template.write_text(yaml.safe_dump({"spec": {"containers": [main]}}))
    options = {"pod_template": str(template), "env": {"TMPDIR": "/dev/shm"}}  # noqa: S108
    made = launcher(1, scheduler_options=options)
    assert list(made.run(lambda: (os.getuid(), os.access("/", os.W_OK)))) == [(12345, False)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"image": None}, "needs an image"),
        ({"image": "no/such:1", "scheduler_options": {"pull": "never"}}, "ErrImageNeverPull"),
        ({"image": "No Such"}, "InvalidImageName"),
        ({"scheduler_options": {"service_account": "nobody"}}, "nobody"),
        ({"scheduler_options": {"namespace": "nowhere"}}, "nowhere"),
        ({"scheduler_options": {"context": "nowhere"}}, "nowhere"),
        ({"scheduler_options": {"priority_class": "first"}}, "first"),
    ],
)
def test_what_cannot_be_had_is_said_in_a_sentence(launcher, options, says):
    """At once, and nothing is left."""
    with pytest.raises((phalanx.SchedulerError, phalanx.ConfigError), match=says) as caught:
        launcher(**options).run(time.time)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scheduler_options": {"gpus": 1}}, "Insufficient nvidia.com/gpu"),
        ({"image": "127.0.0.1:1/no/such:1"}, "ImagePull"),
    ],
)
def test_why_pods_wait_is_said_and_the_wait_has_an_end(launcher, options, says):
    """In the cluster's own words."""
    with pytest.raises(phalanx.QueueTimeout, match=says):
        launcher(1, queue_timeout=8.0, **options).run(time.time)


def test_a_missing_right_is_named(launcher, in_kube, namespace, monkeypatch):
    """By verb and resource: to create pods, and to enter them."""
    listing = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "delete"]}
    creating = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    for rules, says in (([listing], "create pods"), ([listing, creating], "pods/exec")):
        config = in_kube.restricted_kubeconfig(rules, namespace)
        monkeypatch.setenv("KUBECONFIG", str(config))
        with pytest.raises(phalanx.PhalanxError, match=says):
            launcher(1).run(time.time)


def test_the_documented_role_is_enough(launcher, in_kube, namespace, monkeypatch):
    """With a variable that travels in a Secret."""
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    (role,) = re.findall(r"^```yaml\n(apiVersion: rbac.*?)^```$", page, re.MULTILINE | re.DOTALL)
    config = in_kube.restricted_kubeconfig(yaml.safe_load(role)["rules"], namespace)
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.setenv("WORD_FOR_PODS", "xyzzy")
    made = launcher(1, scheduler_options={"copy_env": ["WORD_FOR_*"]})
    assert list(made.run(lambda: os.environ["WORD_FOR_PODS"])) == ["xyzzy"]


def test_a_quota_is_named(launcher, in_kube, namespace):
    """And what was created before it is gone."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    in_kube.apply({**quota, "spec": {"hard": {"pods": "1"}}}, namespace=namespace)
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/few"
    wait_until(lambda: in_kube.get(path).get("status", {}).get("hard"), 30)
    with pytest.raises(phalanx.SchedulerError, match="exceeded quota: few"):
        launcher(2).run(time.time)


@pytest.mark.parametrize("place", ["waiting", "running"])
def test_a_killed_launcher_leaves_no_pod(script, in_kube, namespace, place):
    """Nor does one that was interrupted; wherever it is."""
    more = {"namespace": namespace, **({"gpus": 1} if place == "waiting" else {})}
    text = f"""
        import time, phalanx
        phalanx.Launcher(
            scheduler="kubernetes", num_hosts=2, image={in_kube.image!r}, workers_per_host=1,
            name="killed", scheduler_options={more!r},
        ).run(time.sleep, args=(600,))
        """
    for number in (signal.SIGINT, signal.SIGKILL):
        started = script.start(text)
        wait_until(lambda: len(pods(in_kube, namespace)) == 2, 60)
        if place == "running":
            wait_until(
                lambda: all(
                    map(_has_worker, [in_kube] * 2, [namespace] * 2, pods(in_kube, namespace))
                ),
                60,
            )
        started.send_signal(number)
        started.communicate()
        wait_until(lambda: not pods(in_kube, namespace), 60)


def _has_worker(cluster, namespace, pod):
    shown = ("exec", pod, "-n", namespace, "--", "ps", "-eo", "args")
    return "rank" in cluster.kubectl(*shown, check=False)


def test_a_pod_in_which_nobody_is_any_more_ends(in_kube, namespace, monkeypatch):
    """By itself: the launcher's machine may be lost with all that is on it."""
    monkeypatch.setattr(kubernetes_lease.lent_pods, "IDLE", 1)
    scheduler = create_scheduler("kubernetes", "tests")
    options = scheduler.options(namespace=namespace)
    lease = scheduler.lend(LeaseRequest("idle", 1, options, in_kube.image))
    try:
        wait_until(lambda: lease.status().phase is LeasePhase.ENDED, 60, lease.status())
        assert "ended" in lease.status().reason
    finally:
        lease.give_back()


# ── parts of the cluster that fail ────────────────────────────────────────────


def counting():
    """Work that tells the time it has come through."""

    def work(seconds):
        for number in range(seconds * 10):
            print(number, flush=True)
            time.sleep(0.1)
        return "whole"

    return work


@pytest.mark.parametrize(("how", "seconds"), [("crash", 60), ("stop", 0)])
def test_a_function_does_not_notice_that_the_api_server_is_away(
    kube_alone, launcher, how, seconds, caplog
):
    """For a minute: every line comes once; nothing is restarted."""
    app = launcher(2, host_timeout=3.0).start(counting(), {"seconds": seconds + 8})
    logs = app.logs(follow=True)
    lines = [next(logs) for _ in range(3)]
    getattr(kube_alone, how)("apiserver")
    began = time.monotonic()
    wait_until(lambda: caplog.text.count("broke") >= 2, 60)
    wait_until(lambda: time.monotonic() - began >= seconds, 60)
    kube_alone.heal("apiserver")
    lines += list(logs)
    assert list(app.result(60)) == ["whole", "whole"]
    for rank in (0, 1):
        numbers = [int(line.text) for line in lines if line.rank == rank]
        assert numbers == list(range(10 * seconds + 80))


def test_a_lost_node_is_replaced(kube_alone, launcher, namespace):
    """The app goes on, on the other."""
    app = launcher(2, max_restarts=3, host_timeout=3.0, reconnect_timeout=2.0).start(restarting())
    with cancelled_at_the_end(app):
        lines = app.logs(follow=True)
        names = {next(lines).text.split()[1] for _ in range(2)}
        placed = {name: node_of(one) for name, one in pods(kube_alone, namespace).items()}
        lost = placed[min(names)]
        kube_alone.cut(lost)
        found = set(app.result(200))
    assert not [name for name in found if placed.get(name) == lost]
    assert len(found) == 2


def node_of(pod):
    return pod["spec"].get("nodeName")


@contextlib.contextmanager
def cancelled_at_the_end(app):
    """Whatever a test finds: otherwise it would have other pods for as long as there are tests."""
    try:
        yield
    finally:
        app.cancel(0.0)
        app.wait(60)


def test_a_replacement_that_never_runs_is_replaced(kube_alone, launcher, namespace):
    """It was evicted, or its node died, while it waited: no launch knew of it."""
    app = launcher(1, max_restarts=3).start(restarting())
    with cancelled_at_the_end(app):
        first = next(app.logs(follow=True)).text.split()[1]
        here = node_of(pods(kube_alone, namespace)[first])
        names = [node.name for node in kube_alone.nodes]
        kube_alone.kubectl("cordon", *names)
        try:
            kube_alone.kubectl("delete", "pod", first, "-n", namespace, "--wait=false")
            waiting = lambda: {*pods(kube_alone, namespace)} - {first}
            (second,) = wait_until(waiting, 60, "no replacement")
            wishes = pods(kube_alone, namespace)[second]["spec"]["affinity"]["nodeAffinity"]
            kube_alone.kubectl("delete", "pod", second, "-n", namespace, "--wait=false")
            wait_until(lambda: waiting() - {second}, 60, "no other replacement")
        finally:
            kube_alone.kubectl("uncordon", *names)
        (found,) = app.result(200)
        assert found not in (first, second)
    (wish,) = wishes["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["preference"]["matchExpressions"][0]["values"] == [here]


def test_a_launch_whose_machine_is_lost_leaves_nothing_that_runs(
    script, kube_alone, launcher, namespace, monkeypatch
):
    """Nobody hears of its end, and none of its processes is left; the next launch tidies up."""
    monkeypatch.setenv("WORD_FOR_PODS", "xyzzy")
    options = {"namespace": namespace, "copy_env": ["WORD_FOR_*"]}
    started = script.start(
        f"""
        import time, phalanx
        phalanx.Launcher(
            scheduler="kubernetes", num_hosts=2, image={kube_alone.image!r}, workers_per_host=1,
            host_timeout=3.0, orphan_timeout=4.0, reconnect_timeout=1.0,
            scheduler_options={options!r},
        ).run(time.sleep, args=(600,))
        """
    )
    run = lambda: [
        name
        for node in kube_alone.nodes
        for name in node.docker("ps", "--format", "{{.Names}}", "--filter", "name=k8s_main").split()
        if namespace in name
    ]
    names = wait_until(lambda: len(found := pods(kube_alone, namespace)) == 2 and list(found), 60)
    wait_until(lambda: all(_has_worker(kube_alone, namespace, name) for name in names), 60)
    assert len(run()) == 2
    with kube_alone.unreachable():
        for pid in (*processes.descendants(started.pid), started.pid):
            os.kill(pid, signal.SIGKILL)
        started.communicate()
        wait_until(lambda: not run(), 60, "its pods run on")
    monkeypatch.setattr(kubernetes_lease, "_OLD", 0.0)
    assert list(launcher(1).run(int)) == [0]
    left = kube_alone.get(f"/api/v1/namespaces/{namespace}/secrets")["items"]
    assert not [one for one in left if "phalanx/lease" in one["metadata"].get("labels", {})]


def test_what_cannot_be_given_back_now_is_deleted_later(kube_alone, launcher, namespace):
    """The launch ends meanwhile."""
    app = launcher(1, reconnect_timeout=1.0, host_timeout=2.0).start(
        counting(), kwargs={"seconds": 1}
    )
    next(app.logs(follow=True))
    kube_alone.crash("apiserver")
    with pytest.raises(phalanx.AgentLost):
        app.result(100)
    kube_alone.heal("apiserver")
    wait_until(lambda: not pods(kube_alone, namespace), 60)
