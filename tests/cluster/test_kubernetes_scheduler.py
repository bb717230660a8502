"""`kubernetes` beyond the suite, on a real cluster: what goes wrong, and what is left."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import kubernetes as kubernetes_client
import pytest
import yaml

import phalanx
from phalanx.components import dist
from phalanx.errors import SchedulerError
from phalanx.schedulers import create_scheduler
from phalanx.specs import (
    AppDef,
    AppState,
    BindMount,
    DeviceMount,
    Resource,
    RetryPolicy,
    Role,
    VolumeMount,
)
from tests.cluster.conftest import use_kubeconfig
from tests.cluster.registry import PASSWORD, USER, Registry
from tests.conftest import wait_until

pytestmark = pytest.mark.timeout(300)

QUICK = {"pull": "never", "stop_grace": 1.0}
SMALL = Resource(cpu=0.1, gpu=0, memMB=256)
"""Our own processes take 60 MB; with little more than that, they wait for their own code's pages."""


class Apps:
    """Apps of one test, through the scheduler itself."""

    def __init__(self, session, cluster, namespace):
        self.scheduler = create_scheduler("kubernetes", session)
        self.cluster, self.namespace = cluster, namespace
        self.submitted = []

    def kubectl(self, *words, **more):
        return self.cluster.kubectl("--namespace", self.namespace, *words, **more)

    def app(self, command, name="app", **fields):
        fields = {"resource": SMALL, **fields}
        role = Role(
            "role", image=self.cluster.image, entrypoint="sh", args=["-c", command], **fields
        )
        return AppDef(name, [role])

    def request(self, app, **options):
        return self.scheduler.dryrun(app, self.scheduler.options(**{**QUICK, **options}))

    def submit(self, app, **options):
        self.submitted.append(self.scheduler.submit(self.request(app, **options)))
        return self.submitted[-1]

    def ended(self, app_id, timeout=80):
        final = lambda: (s := self.scheduler.describe(app_id)).state.is_final and s
        try:
            return wait_until(final, timeout)
        except AssertionError:
            status = self.scheduler.describe(app_id)
        said = {
            one.id: self.lines(app_id, role.role, one.id)[-20:]
            for role in status.roles
            for one in role.replicas
        }
        raise AssertionError(f"{app_id} has not ended: {status}, {said}")

    def run(self, app, **options):
        return self.ended(self.submit(app, **options))

    def says(self, app_id, words, timeout=90):
        found = lambda: words in self.scheduler.describe(app_id).message
        wait_until(found, timeout, f"{app_id} does not say {words!r}")

    def lines(self, app_id, role="role", replica=0, **options):
        return [line.text for line in self.scheduler.logs(app_id, role, replica, **options)]

    def pod(self, app_id, replica):
        name = app_id.rpartition(":")[2]
        chosen = f"phalanx/app={name},phalanx/replica={replica}"
        return self.kubectl("get", "pods", "-l", chosen, "-o", "name").split()

    def delete(self):
        for app_id in self.submitted:
            self.scheduler.delete(app_id)
        self.scheduler.close()


@pytest.fixture
def apps(in_kubernetes, app_namespace, tmp_path):
    made = Apps(f"session of {tmp_path.name}", in_kubernetes, app_namespace)
    yield made
    made.delete()


def test_workers_form_a_group_and_go_on_when_a_pod_is_deleted(apps, tmp_path):
    """`dist.ddp`, elastic, in an image that has nothing but Python; no output is lost."""
    (tmp_path / "t.py").write_text(
        "import os, time\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"
        "while not os.path.exists('/opt/phalanx/end'): time.sleep(0.1)\n"
    )
    app = dist.ddp(script="t.py", image=apps.cluster.image, j="1:2x1", cpu=1)
    (role,) = app.roles
    fields = {"workspace": str(tmp_path), "resource": SMALL}
    role = Role(**{**{f: getattr(role, f) for f in role.__dataclass_fields__}, **fields})
    app_id = apps.submit(AppDef("t", [role]))

    def both(count):
        found = [apps.lines(app_id, "t", i) for i in range(2)]
        return all(sum("of 2" in line for line in lines) >= n for lines, n in zip(found, count))

    wait_until(lambda: both((1, 1)), 120, "the first round")
    (before,) = apps.pod(app_id, 1)
    apps.kubectl("delete", before, "--wait=false")
    wait_until(lambda: apps.pod(app_id, 1) not in ([], [before]), 60, "another pod")
    wait_until(lambda: both((2, 1)), 120, "a round with both")
    for replica in range(2):
        (pod, *_) = [p for p in apps.pod(app_id, replica) if p != before]
        apps.kubectl("exec", pod, "--", "touch", "/opt/phalanx/end")
    assert apps.ended(app_id).state is AppState.SUCCEEDED


def test_torchrun_as_a_program_of_ones_own_needs_no_endpoint(apps):
    """Replicas meet at the first, by what they find in their environment."""
    words = ["-m", "phalanx", "torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--no-python"]
    role = Role(
        "role",
        image=apps.cluster.image,
        entrypoint="python3",
        args=[*words, "sh", "-c", "echo rank $$RANK of $$WORLD_SIZE"],
        num_replicas=2,
        resource=SMALL,
    )
    app_id = apps.submit(AppDef("app", [role]))
    assert apps.ended(app_id).state is AppState.SUCCEEDED
    found = [line for i in range(2) for line in apps.lines(app_id, "role", i)]
    assert sorted(line for line in found if "rank" in line)[-1].endswith("rank 1 of 2")


@pytest.fixture
def reserved_node(apps):
    """A node with a label, a taint and two GPUs of a kind; and what else a pod can ask for."""
    kubectl, node = apps.cluster.kubectl, apps.cluster.nodes[0].name
    status = {"status": {"capacity": {"example.com/gpu": "2"}}}
    patch = ("replace", "--raw", f"/api/v1/nodes/{node}/status", "-f", "-")
    apps.cluster.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent"},
            "value": 1000,
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "data"},
            "spec": {
                "capacity": {"storage": "1Mi"},
                "accessModes": ["ReadWriteMany"],
                "hostPath": {"path": "/tmp/data-of-tests", "type": "DirectoryOrCreate"},
                "claimRef": {"namespace": apps.namespace, "name": "data"},
            },
        },
    )
    claim = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": "data",
        "resources": {"requests": {"storage": "1Mi"}},
    }
    apps.cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trainer"}},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data"},
            "spec": claim,
        },
        namespace=apps.namespace,
    )

    def has_them():  # the kubelet writes the same object, every two seconds
        described = apps.cluster.get(f"/api/v1/nodes/{node}")
        described["status"]["capacity"] |= status["status"]["capacity"]
        return kubectl(*patch, input=json.dumps(described), check=False)

    wait_until(has_them, 30)
    kubectl("label", "node", node, "disk=fast")
    kubectl("taint", "node", node, "team=x:NoSchedule")
    yield node
    apps.delete()
    kubectl("taint", "node", node, "team-")
    kubectl("label", "node", node, "disk-")
    kubectl(
        "delete", "persistentvolumeclaim", "data", "--namespace", apps.namespace, "--wait=false"
    )
    kubectl("delete", "persistentvolume/data", "priorityclass/urgent", "--wait=false")


def test_a_pod_has_what_was_asked_for(apps, reserved_node, tmp_path):
    """Its node, account, priority, GPUs, /dev/shm and mounts; and a project of nearly a megabyte."""
    (tmp_path / "large").write_bytes(os.urandom(900_000))
    program = (
        "grep -o '/dev/shm tmpfs' /proc/mounts; ls -d /host/hostname; touch /data/written; "
        "test -c /dev/nothing && echo device; wc -c < large; test -w /host/hostname || echo read-only"
    )
    role = Role(
        "role",
        image=apps.cluster.image,
        entrypoint="sh",
        args=["-c", program],
        resource=Resource(cpu=0.1, gpu=2, memMB=64),
        workspace=str(tmp_path),
        mounts=[
            BindMount("/etc", "/host", read_only=True),
            VolumeMount("data", "/data"),
            DeviceMount("/dev/null", "/dev/nothing"),
        ],
    )
    app_id = apps.submit(
        AppDef("app", [role]),
        node_selector={"disk": "fast"},
        tolerations=["team=x"],
        service_account="trainer",
        priority_class="urgent",
        gpu_resource="example.com/gpu",
        shm_size="16Mi",
    )
    status = apps.ended(app_id)
    assert status.state is AppState.SUCCEEDED, status
    assert status.roles[0].replicas[0].hostname == reserved_node
    shown = ["/dev/shm tmpfs", "/host/hostname", "device", "900000", "read-only"]
    assert apps.lines(app_id) == shown
    (name,) = apps.pod(app_id, 0)
    spec = json.loads(apps.kubectl("get", name, "-o", "json"))["spec"]
    assert (spec["serviceAccountName"], spec["priority"]) == ("trainer", 1000)
    # From 1.22 on it is also what /dev/shm has at most; before, who takes more is evicted.
    limits = [volume.get("emptyDir", {}).get("sizeLimit") for volume in spec["volumes"]]
    assert "16Mi" in limits


def test_who_follows_a_replica_sees_its_retries(apps):
    """Every line of each, once."""
    command = "echo try $$PHALANX_RESTART_COUNT; exit 1"
    retry = {"max_retries": 1, "retry_policy": RetryPolicy.REPLICA}
    app_id = apps.submit(apps.app(command, **retry))
    assert len(apps.lines(app_id, follow=True)) == 2
    assert apps.ended(app_id).state is AppState.FAILED


def test_a_failure_is_told_with_its_error(apps):
    """An exception that was printed, a program that is not there."""
    error = "python3 -c 'raise ValueError(\"so wrong\")'"
    raised = apps.submit(apps.app(f"sleep 1; {error}", num_replicas=2))
    role = Role("role", apps.cluster.image, entrypoint="no-such-program", resource=SMALL)
    missing = apps.submit(AppDef("x", [role]))
    status = apps.ended(raised)
    assert status.state is AppState.FAILED
    assert status.exit_code == 1
    assert "ValueError: so wrong" in status.message
    assert "no-such-program" in apps.ended(missing).message


def test_an_app_that_no_node_has_room_for_says_so_and_can_be_cancelled(apps):
    """In the scheduler's words."""
    app_id = apps.submit(apps.app("true", resource=Resource(999, 0, 64)))
    apps.says(app_id, "role/0: Unschedulable: 0/2 nodes are available")
    assert apps.scheduler.describe(app_id).state is AppState.PENDING
    apps.scheduler.cancel(app_id)
    assert apps.ended(app_id).state is AppState.CANCELLED


def test_the_rights_that_are_printed_are_enough_and_less_is_named(apps, monkeypatch, tmp_path):
    """A whole life with its rights; without one, an error that says which."""
    rules = yaml.safe_load(apps.scheduler.rights)["rules"]
    few = [rule for rule in rules if "jobs" not in rule["resources"]]
    for given in (rules, few):
        kubeconfig = apps.cluster.restricted_kubeconfig(given, apps.namespace)
        use_kubeconfig(apps.cluster, apps.namespace, monkeypatch, tmp_path, kubeconfig)
        limited = Apps("limited", apps.cluster, apps.namespace)
        app = limited.app("echo hi; sleep 1; exit ${replica_id}", num_replicas=2)
        if given is few:
            with pytest.raises(SchedulerError, match="missing right: create jobs in the namespace"):
                limited.submit(app)
            with pytest.raises(SchedulerError, match="missing right: list jobs in the namespace"):
                limited.scheduler.list()
            found = apps.kubectl("get", "services", "-l", "phalanx/session=limited", "-o", "name")
            assert found == "", "nothing is left of it"
            limited.delete()
            continue
        app_id = limited.submit(app)
        assert limited.ended(app_id).state is AppState.FAILED
        assert limited.lines(app_id) == ["hi"]
        assert app_id in [one.app_id for one in limited.scheduler.list()]
        limited.scheduler.delete(app_id)
        assert limited.scheduler.describe(app_id) is None
        limited.delete()


def test_kubectl_takes_what_a_dry_run_prints(apps):
    """With Phalanx itself; the app is one like any other; who deletes the Service deletes all."""
    program = "echo hi; python3 -m phalanx version >&2 || exit 1"
    request = apps.request(apps.app(program, name="A nämé/with everything " * 12))
    apps.kubectl("apply", "-f", "-", input=str(request))
    applied = str(request.app)
    assert apps.ended(applied).state is AppState.SUCCEEDED
    assert apps.lines(applied)[0] == "hi"
    apps.scheduler.delete(applied)
    submitted = apps.submit(apps.app("sleep 600"))
    name = submitted.rpartition(":")[2]
    apps.kubectl("delete", "service", name)
    found = lambda: apps.kubectl(
        "get", "jobs,pods,secrets", "-l", f"phalanx/app={name}", "-o", "name"
    )
    wait_until(lambda: found() == "", 90, "the end of everything that the Service owns")


def test_a_project_is_unpacked_by_python_where_there_is_no_tar(apps, tmp_path):
    """Nothing else is needed of an image."""
    (tmp_path / "file").write_text("found")
    link = "for p in sh cat mkdir python3; do ln -s $(command -v $p) /opt/phalanx/$p; done"
    setup = {
        "name": "tools",
        "image": apps.cluster.image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", link],
        "volumeMounts": [{"name": "phalanx", "mountPath": "/opt/phalanx"}],
    }
    main = {"name": "main", "env": [{"name": "PATH", "value": "/opt/phalanx"}]}
    template = tmp_path / "pod.yaml"
    template.write_text(yaml.safe_dump({"spec": {"initContainers": [setup], "containers": [main]}}))
    app = apps.app("cat file; command -v tar", workspace=str(tmp_path))
    app_id = apps.submit(app, pod_template=str(template))
    apps.ended(app_id)
    assert apps.lines(app_id) == ["found"]


@pytest.fixture
def registries(apps, tmp_path):
    """A private registry that two nodes reach, by the address that engines trust without TLS."""
    here, there = apps.cluster.nodes[:2]
    first = Registry(here, tmp_path / "registry", private=True)
    second = Registry(there, tmp_path / "mirror", private=True, mirrors=first)
    yield first
    first.close()
    second.close()


def test_a_project_goes_by_a_private_registry_to_the_nodes(apps, registries, monkeypatch, tmp_path):
    """`image_repo` and `image_secret`: built and pushed with one engine, pulled by another node."""
    here, there = apps.cluster.nodes[:2]
    address = registries.address
    both = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    for place in ("docker", "project"):
        (tmp_path / place).mkdir()
    config = {"auths": {address: {"auth": both}}}
    (tmp_path / "docker" / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("DOCKER_HOST", here.host)
    (tmp_path / "project" / "main.py").write_text(f"print('from {tmp_path.name}')\n")
    role = Role(
        "role",
        image=apps.cluster.image,
        entrypoint="python3",
        args=["main.py"],
        workspace=str(tmp_path / "project"),
        resource=SMALL,
    )
    options = {
        "image_repo": f"{address}/project",
        "pull": "missing",
        "node_selector": {"kubernetes.io/hostname": there.name},
    }
    without = apps.submit(AppDef("without", [role]), **options)
    apps.says(without, f"{address}/project")
    apps.says(without, "ImagePull")
    file = f"--from-file=.dockerconfigjson={tmp_path}/docker/config.json"
    kind = "--type=kubernetes.io/dockerconfigjson"
    apps.kubectl("create", "secret", "generic", "pulls", file, kind)
    app_id = apps.submit(AppDef("app", [role]), **options, image_secret="pulls")  # noqa: S106
    assert apps.ended(app_id).state is AppState.SUCCEEDED
    assert apps.lines(app_id) == [f"from {tmp_path.name}"]
    apps.kubectl("delete", "secret", "pulls")
    for node in (here, there):
        images = node.docker("images", "-q", f"{address}/project").split()
        node.docker("rmi", "-f", *images, check=False)


def test_an_app_is_deleted_when_its_time_is_over(apps):
    """By the cluster; it is not listed any more."""
    app_id = apps.submit(apps.app("true"), ttl=1)
    gone = lambda: apps.scheduler.describe(app_id) is None
    wait_until(gone, 90, "the end of its time")
    assert app_id not in [one.app_id for one in apps.scheduler.list()]


def test_an_app_that_is_just_being_submitted_is_not_taken_for_one_whose_time_is_over(apps):
    """By whoever lists: its Jobs are still to come."""
    request = apps.request(apps.app("true"), ttl=1)
    apps.cluster.apply(request.service)
    assert apps.scheduler.list() == []
    assert request.app.name in apps.kubectl("get", "services", "-o", "name")
    apps.kubectl("delete", "service", request.app.name)


def test_an_app_is_submitted_from_a_pod_by_its_service_account(apps, tmp_path):
    """With the rights that are printed and no kubeconfig."""
    if sys.version_info[:2] != _python_of_pods():
        pytest.skip("the pods' Python cannot load the packages of this one")
    apps.kubectl("apply", "-f", "-", input=apps.scheduler.rights)
    account = f"--serviceaccount={apps.namespace}:default"
    apps.kubectl("create", "rolebinding", "phalanx", "--role=phalanx", account)
    places = [Path(module.__file__).parents[1] for module in (phalanx, kubernetes_client)]
    volumes = [{"name": f"own-{i}", "hostPath": {"path": str(p)}} for i, p in enumerate(places)]
    mounts = [{"name": f"own-{i}", "mountPath": f"/own/{i}"} for i in range(len(places))]
    main = {"name": "main", "volumeMounts": mounts}
    template = tmp_path / "pod.yaml"
    template.write_text(yaml.safe_dump({"spec": {"volumes": volumes, "containers": [main]}}))
    words = "--wait --log utils.echo --msg from-below --image"
    command = f"python3 -m phalanx run -s kubernetes -cfg pull=never {words} {apps.cluster.image}"
    app = apps.app(
        f"cd /tmp; {command} 2>&1",
        env={"PYTHONPATH": "/own/0:/own/1", "HOME": "/tmp"},
        resource=Resource(cpu=0.1, gpu=0, memMB=512),
    )
    app_id = apps.submit(app, pod_template=str(template))
    status = apps.ended(app_id)
    printed = apps.lines(app_id)
    assert status.state is AppState.SUCCEEDED, printed
    assert "echo/0 from-below" in printed
    (handle,) = [line for line in printed if line.startswith("kubernetes://")]
    apps.submitted.append(handle.rpartition("/")[2])


def _python_of_pods():
    """That of this machine's own packages."""
    shown = ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2])"]
    done = subprocess.run(shown, capture_output=True, text=True, check=True)
    return tuple(map(int, done.stdout.split()))


def test_an_app_of_another_context_is_found_by_its_id(apps, monkeypatch, tmp_path):
    """Whatever the current one is, also by its supervisor."""
    path = tmp_path / "contexts"
    path.write_bytes(Path(os.environ["KUBECONFIG"]).read_bytes())
    config = lambda *words: apps.cluster.kubectl("config", *words, kubeconfig=path)
    config("rename-context", config("current-context").strip(), "team/a b")
    config("set-cluster", "nowhere", "--server", "https://127.0.0.1:1")
    config("set-context", "nowhere", "--cluster", "nowhere", "--namespace", apps.namespace)
    config("use-context", "nowhere")
    monkeypatch.setenv("KUBECONFIG", str(path))
    app = apps.app("echo $$OTHER; exit 3", max_retries=1)
    app_id = apps.submit(app, context="team/a b", env={"OTHER": "open"})
    status = apps.ended(app_id)
    assert (status.message, status.num_restarts) == ("role/0 exited with code 3: open", 1)
    assert apps.lines(app_id) == ["open", "open"]
    apps.scheduler.delete(app_id)
    assert apps.scheduler.describe(app_id) is None


def test_commands_work_from_another_process(apps):
    """By the handle alone."""
    app_id = apps.submit(apps.app("echo hi; sleep 600"))
    handle = f"kubernetes://{apps.scheduler.session_name}/{app_id}"
    command = [sys.executable, "-m", "phalanx"]

    def say(*words):
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120)
        return done.stdout

    wait_until(lambda: apps.lines(app_id) == ["hi"], 90, "the first line")
    assert "hi" in say("log", handle)
    say("cancel", handle)
    assert "CANCELLED" in say("status", handle)
