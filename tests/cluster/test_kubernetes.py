"""The cluster that the other tests stand on."""

import subprocess

import pytest

from tests.cluster.kubernetes import Cluster, why_not
from tests.conftest import is_alive, wait_until

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def pod(name, *command, image, **fields):
    container = {"name": "main", "image": image, "command": list(command)}
    spec = {"containers": [container], "restartPolicy": "Never", **fields}
    labels = {"app": "test"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def phase(kube, namespace, name):
    return kube.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]["phase"]


def test_pods_on_every_node_find_each_other_by_name_and_their_logs_and_exec_work(kube, namespace):
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "group"},
        "spec": {"clusterIP": "None", "selector": {"app": "test"}},
    }
    code = (
        "import socket, threading, http.server\n"
        "server = http.server.ThreadingHTTPServer(('', 8000), http.server.SimpleHTTPRequestHandler)\n"
        "print('serving', flush=True)\n"
        "server.serve_forever()"
    )
    pods = [
        pod(
            node.name,
            *("python3", "-c", code),
            image=kube.image,
            nodeName=node.name,
            hostname=node.name,
            subdomain="group",
        )
        for node in kube.nodes
    ]
    kube.apply(service, *pods, namespace=namespace)
    for node in kube.nodes:
        wait_until(lambda: phase(kube, namespace, node.name) == "Running", 60)
        logs = lambda: kube.kubectl("logs", "--namespace", namespace, node.name, check=False)
        wait_until(lambda: logs() == "serving\n", 60)
    first, last = kube.nodes[0].name, kube.nodes[-1].name
    ask = (
        f"import urllib.request; print(urllib.request.urlopen('http://{last}.group:8000/').status)"
    )
    inside = ("exec", "--namespace", namespace, first, "--", "python3", "-c", ask)
    wait_until(lambda: kube.kubectl(*inside, check=False) == "200\n", 30)


def test_programs_in_pods_speak_with_the_api_as_their_service_account(kube, namespace):
    code = """if True:
        import json, ssl, urllib.error, urllib.request
        place = "/var/run/secrets/kubernetes.io/serviceaccount"
        token = open(f"{place}/token").read()
        request = urllib.request.Request(
            "https://kubernetes.default.svc/api/v1/nodes", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            urllib.request.urlopen(request, context=ssl.create_default_context(cafile=f"{place}/ca.crt"))
        except urllib.error.HTTPError as error:
            print(json.load(error)["message"])
    """
    kube.apply(pod("one", "python3", "-c", code, image=kube.image), namespace=namespace)
    wait_until(lambda: phase(kube, namespace, "one") == "Succeeded", 60)
    said = kube.kubectl("logs", "--namespace", namespace, "one")
    assert f'"system:serviceaccount:{namespace}:default" cannot list resource "nodes"' in said


def test_a_user_may_do_what_the_rules_say_and_no_more(kube, namespace):
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    config = kube.restricted_kubeconfig(rules, namespace)
    assert kube.kubectl("get", "pods", kubeconfig=config) == ""
    with pytest.raises(RuntimeError, match='cannot list resource "services"'):
        kube.kubectl("get", "services", kubeconfig=config)


def test_parts_crash_stand_still_and_heal(kube_alone, namespace):
    kube = kube_alone
    kube.apply(pod("one", "sleep", "infinity", image=kube.image), namespace=namespace)
    wait_until(lambda: phase(kube, namespace, "one") == "Running", 60)
    for part in ("etcd", "apiserver"):
        kube.crash(part)
        with pytest.raises(RuntimeError):
            kube.kubectl("get", "pods", "--request-timeout=3s")
        kube.heal(part)
        assert phase(kube, namespace, "one") == "Running"
    kube.stop("apiserver")
    with pytest.raises(OSError, match="timed out"):
        kube.get("/version", timeout=1)
    kube.cont("apiserver")
    assert kube.get("/version")["gitVersion"].startswith("v1.")


def test_a_node_that_lost_its_power_is_not_ready_and_comes_back_empty(kube_alone, namespace):
    kube = kube_alone
    last = kube.nodes[-1].name
    sleeper = pod("one", "sleep", "infinity", image=kube.image, nodeName=last)
    kube.apply(sleeper, namespace=namespace)
    wait_until(lambda: phase(kube, namespace, "one") == "Running", 60)
    kube.crash(last)

    def ready():
        conditions = kube.get(f"/api/v1/nodes/{last}")["status"]["conditions"]
        return next(each["status"] for each in conditions if each["type"] == "Ready")

    wait_until(lambda: ready() == "Unknown", 60)
    kube.heal(last)
    assert ready() == "True"
    kube.apply(pod("two", "true", image=kube.image, nodeName=last), namespace=namespace)
    wait_until(lambda: phase(kube, namespace, "two") == "Succeeded", 60)


def test_clusters_run_beside_each_other_and_the_last_to_close_one_leaves_nothing(kube, tmp_path):
    one = Cluster(nodes=0, shared=f"test-{tmp_path.name}")
    other = Cluster(nodes=0, shared=f"test-{tmp_path.name}")
    first = one._control.pid
    one.close()
    assert other.get("/api/v1/nodes")["items"] == []
    assert len(kube.get("/api/v1/nodes")["items"]) == len(kube.nodes)
    other.close()
    assert not is_alive(first)
    assert not other.place.exists()
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    assert other.link not in links.stdout
