"""Pods that are lent as hosts: what they are made of, and how they stand."""

import kubernetes_validate
import pytest

from phalanx._schedulers.kubernetes.hosts import lent_pods
from phalanx._schedulers.kubernetes.options import KubernetesOptions
from phalanx._schedulers.kubernetes.hosts.lent_pods import SeenPod, seen, summary

EVERYTHING = KubernetesOptions(
    service_account="trainer",
    image_secret="registry",
    priority_class="high",
    queue="team",
    gang_scheduler="volcano",
    node_selector={"zone": "a"},
    tolerations=["gpu=yes:NoSchedule", "spot"],
    env={"A": "1"},
    shm_size="8g",
    cpus=1.5,
    mem="16g",
    gpus=2,
)


@pytest.mark.parametrize("version", ["1.27", "1.31", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("options", [KubernetesOptions(), EVERYTHING], ids=["bare", "full"])
def test_every_version_takes_the_pod(version, options):
    """By the schemas that were published."""
    made = lent_pods.pod("a-0", "a", "me", "python:3.12", options, "a")
    made = lent_pods.in_queue(made, options, "a", 4)
    kubernetes_validate.validate(made, version, strict=True)


def test_a_pod_has_what_was_asked_for():
    """Devices cannot be shared: requests and limits are the same."""
    made = lent_pods.pod("a-0", "a", "me", "python:3.12", EVERYTHING, None)
    wanted = {"cpu": "1500m", "memory": "16Gi", "nvidia.com/gpu": "2"}
    (container,) = made["spec"]["containers"]
    assert container["resources"] == {"requests": wanted, "limits": wanted}
    assert made["spec"]["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert "envFrom" not in container


def test_a_queue_is_that_of_who_schedules():
    """Kueue admits all pods of a lease together."""
    options = KubernetesOptions(queue="team")
    made = lent_pods.pod("a-0", "a", "me", "python:3.12", options, None)
    own = lent_pods.in_queue(made, options, "a", 4)["metadata"]
    assert own["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert own["annotations"] == {"kueue.x-k8s.io/pod-group-total-count": "4"}
    own = lent_pods.in_queue(made, EVERYTHING, "a", 4)["metadata"]
    assert own["annotations"] == {"scheduling.volcano.sh/queue-name": "team"}
    assert own["labels"] == made["metadata"]["labels"]


def test_the_kubelet_finds_nothing_to_replace_in_the_holder():
    """It takes one dollar from two, and replaces `$(NAME)`."""
    made = lent_pods.pod("a-0", "a", "me", "python:3.12", KubernetesOptions(), None)
    _, _, script, *_ = made["spec"]["containers"][0]["command"]
    assert script.replace("$$", "$") == lent_pods.HOLDER
    assert "$" not in script.replace("$$", "")


def known(phase, *, container=None, conditions=(), deleted=False, **status):
    statuses = [] if container is None else [{"name": "main", "state": container}]
    metadata = {"name": "a-0", **({"deletionTimestamp": "now"} if deleted else {})}
    about = {"phase": phase, "containerStatuses": statuses, "conditions": list(conditions)}
    return {"metadata": metadata, "status": {**about, **status}}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/2 nodes are available",
}


def waiting(reason, message=""):
    return {"waiting": {"reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"metadata": {"name": "a-0"}}, SeenPod("a-0", False)),
        (known("Pending"), SeenPod("a-0", False)),
        (known("Pending", container=waiting("ContainerCreating")), SeenPod("a-0", False)),
        (known("Running", container={"running": {}}), SeenPod("a-0", True)),
        (
            known("Pending", conditions=[UNSCHEDULABLE]),
            SeenPod("a-0", False, "Unschedulable: 0/2 nodes are available"),
        ),
        (
            known("Pending", container=waiting("ErrImagePull", "i/o timeout")),
            SeenPod("a-0", False, "ErrImagePull: i/o timeout"),
        ),
        (
            known("Pending", container=waiting("ErrImagePull", "manifest unknown")),
            SeenPod("a-0", False, end="ErrImagePull: manifest unknown"),
        ),
        (
            known("Pending", container=waiting("InvalidImageName", "No Such")),
            SeenPod("a-0", False, end="InvalidImageName: No Such"),
        ),
        (
            known("Running", container={"running": {}}, deleted=True),
            SeenPod("a-0", False, end="it was deleted"),
        ),
        (
            known("Failed", reason="Evicted", message="low on memory"),
            SeenPod("a-0", False, end="Evicted: low on memory"),
        ),
        (
            known("Failed", container={"terminated": {"reason": "OOMKilled", "exitCode": 137}}),
            SeenPod("a-0", False, end="OOMKilled, exit code 137"),
        ),
        (known("Succeeded"), SeenPod("a-0", False, end="it has ended (Succeeded)")),
    ],
)
def test_how_a_pod_stands(pod, expected):
    """In the cluster's own words."""
    assert seen(pod) == expected


def test_why_not_all_run_is_said_once():
    """How many do, and the first reason."""
    pods = [SeenPod("a", True), SeenPod("b", False, "Unschedulable"), SeenPod("c", False, "other")]
    assert summary(pods, 4) == "1 of 4 pods run; Unschedulable"
    assert summary([], 4) == ""
