"""Schedulers for these tests."""

import contextlib
import os
import signal

import pytest

from tests.cluster import docker as docker_box
from tests.cluster import etcd as etcd_box
from tests.cluster import kubernetes as kubernetes_box
from tests.cluster import podman as podman_box
from tests.cluster import ray as ray_box
from tests.cluster import registry as registry_box
from tests.cluster import slurm as slurm_box
from tests.conftest import service_of

_SERVICES = {"kubernetes": "kubernetes", "ray": "ray_cluster"}
"""Those that take processors also while nobody uses them, and their fixtures."""
_BOXES = {
    "slurm": slurm_box,
    "docker": docker_box,
    "podman": podman_box,
    "kubernetes": kubernetes_box,
    "ray_cluster": ray_box,
    "registry": registry_box,
    "private": registry_box,
}


def pytest_collection_modifyitems(items):
    """Skip the tests of a scheduler that cannot be had, with the reason."""
    for name, box in _BOXES.items():
        if reason := box.why_not():
            for item in items:
                if name in getattr(item, "fixturenames", ()):
                    item.add_marker(pytest.mark.skip(reason=reason))
    if reason := etcd_box.why_not():
        for item in items:
            if item.path.name == "test_etcd.py":
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """End a service after the last test that uses it: others need the processors."""
    service = service_of(item.nodeid)
    if service and (nextitem is None or service_of(nextitem.nodeid) != service):
        for fixture in item.session._fixturemanager.getfixturedefs(_SERVICES[service], item):
            fixture.finish(item._request)


def need(request, name):
    """A service by its fixture's name; the test is skipped, with the reason, where it is absent."""
    if reason := _BOXES[name].why_not():
        pytest.skip(reason)
    return request.getfixturevalue(name)


@pytest.fixture(scope="session")
def slurm():
    cluster = slurm_box.Slurm(4)
    yield cluster
    cluster.close()


@pytest.fixture
def in_slurm(slurm, monkeypatch):
    """The commands of that Slurm are this process's."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environ[name])
    return slurm


@pytest.fixture(scope="session")
def docker():
    """One engine for all processes that run tests: remove only what the test has made."""
    engine = docker_box.Engine(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
    yield engine
    engine.close()


@pytest.fixture
def in_docker(docker, monkeypatch):
    """That engine is the one that clients in this process find."""
    for name in ("PATH", "DOCKER_HOST", "DOCKER_CONFIG"):
        monkeypatch.setenv(name, docker.environ[name])
    for name in ("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return docker


@pytest.fixture(scope="session")
def ray_cluster():
    """Four nodes, of which one has two GPUs."""
    with _waiting():
        cluster = ray_box.RayCluster(4, gpus=2, autoscaled={"spot": 1, "app": 1})
    yield cluster
    cluster.close()


@pytest.fixture
def other_ray():
    """A cluster of one node with an earlier Ray, from an environment of its own."""
    with _waiting():
        try:
            python = ray_box.other_python()
        except RuntimeError as error:
            pytest.skip(str(error))
        cluster = ray_box.RayCluster(1, python)
    yield cluster
    cluster.close()


@pytest.fixture
def guarded_ray():
    """A cluster of one node that wants a token."""
    with _waiting():
        cluster = ray_box.RayCluster(1, token="a-token-of-these-tests" * 2)
    yield cluster
    cluster.close()


@pytest.fixture
def small_ray():
    """A cluster of one node, on a disk of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    with _waiting():
        cluster = ray_box.RayCluster(1, disk="300m")
    yield cluster
    cluster.close()


@pytest.fixture
def in_ray(ray_cluster, monkeypatch):
    """That cluster is the one that clients in this process find."""
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.dashboard)
    return ray_cluster


@pytest.fixture(scope="session")
def kubernetes():
    """One cluster for all processes that run tests, which take turns by `kube` and `kube_alone`."""
    with _waiting():
        cluster = kubernetes_box.Cluster(shared=os.environ.get("PYTEST_XDIST_TESTRUNUID"))
    yield cluster
    cluster.close()


@contextlib.contextmanager
def _waiting():
    """What others do meanwhile does not count for the test's own limit of time."""
    limit, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, limit)


@contextlib.contextmanager
def take_turn(cluster, *, alone=False):
    """Use a cluster beside others, or alone; waiting for it does not count."""
    with contextlib.ExitStack() as stack:
        with _waiting():
            stack.enter_context(cluster.turn(alone=alone))
        yield cluster


@pytest.fixture
def kube(kubernetes):
    """That cluster, whole, while others use it too."""
    with take_turn(kubernetes):
        yield kubernetes


@pytest.fixture
def kube_alone(kubernetes):
    """That cluster for this test alone: parts of it may fail, and are healed afterwards."""
    with take_turn(kubernetes, alone=True):
        yield kubernetes
        kubernetes.heal()


@pytest.fixture
def namespace(request, kubernetes):  # which must be there before the test begins
    """A namespace of the test's own, in the cluster that it uses."""
    alone = "kube_alone" in request.fixturenames
    cluster = request.getfixturevalue("kube_alone" if alone else "kube")
    with cluster.namespace() as name:
        yield name
        if alone:
            cluster.heal()


@pytest.fixture(scope="session")
def app_namespace(kubernetes):
    """A namespace for the apps of many tests, each of which deletes its own."""
    with kubernetes.namespace() as name:
        yield name


@pytest.fixture
def in_kubernetes(kube, app_namespace, monkeypatch, tmp_path):
    """That cluster and namespace are those that clients in this process find."""
    use_kubeconfig(kube, app_namespace, monkeypatch, tmp_path)
    return kube


def use_kubeconfig(cluster, namespace, monkeypatch, tmp_path, kubeconfig=None):
    """Have a kubeconfig whose context names a namespace."""
    path = tmp_path / "kubeconfig"
    path.write_bytes((kubeconfig or cluster.kubeconfig).read_bytes())
    change = ("config", "set-context", "--current", "--namespace", namespace)
    cluster.kubectl(*change, kubeconfig=path)
    monkeypatch.setenv("KUBECONFIG", str(path))
