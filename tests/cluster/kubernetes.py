"""A real Kubernetes on this machine: etcd, API server (RBAC), controllers, scheduler, and nodes.

The control plane has a machine of `tests.cluster.machine` for itself, and so has each node, with a
Docker engine and a kubelet. Pods reach each other, service names and the API; nothing reaches the
outside, and from outside the API alone is reached, by a link of its own. Any number of clusters run
beside each other. Needs root.

    control: etcd, API server, controllers, scheduler, names   10.255.0.1   10.96.0.1 (API), .10 (names)
    node N: dockerd, kubelet                                   10.255.0.1N
    pods on node N                                             10.244.N.0/24
"""

import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import os
import random
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path

from tests.cluster import docker, kubernetes_build, machine
from tests.cluster.docker import IMAGE
from tests.cluster.kubernetes_control import ETCD, PARTS, daemon
from tests.cluster.kubernetes_keys import Keys
from tests.cluster.kubernetes_node import API_ADDRESS, CONTROL_ADDRESS, NAMES_ADDRESS, Node
from tests.cluster.machine import Machine, SharedPlace, read
from tests.conftest import is_alive, wait_until

TOOLS = (*docker.TOOLS, "etcd", "openssl")

_PREFIX = "kubernetes-of-"


def why_not():
    """The reason why it cannot be had here, or None."""
    if reason := machine.why_not("a Kubernetes", TOOLS):
        return reason
    if not kubernetes_build.is_built():
        reason = kubernetes_build.why_not() or "'make test SYSTEM=1' does it"
        return f"Kubernetes is not compiled; {reason}"
    return None


class Cluster:
    """Running from the beginning.

    Parts are "apiserver", "etcd", "controller-manager", "scheduler", "names", and of every node
    "kubelet1", "engine1" and "node1", which is the whole machine.

    Args:
        nodes: How many.
        shared: A name. Of those who give the same, in whatever process, the first starts the
            cluster, and the last to close it ends it.
    """

    image = IMAGE
    """An image that every node has; it must not be pulled (`imagePullPolicy`: not `Always`)."""

    def __init__(self, nodes=2, shared=None):
        self._shared = SharedPlace(_PREFIX, shared, _end)
        self.place = self._shared.path
        self.programs = kubernetes_build.place()
        self.kubeconfig = self.place / "kubeconfig"
        self.link = _link(self.place)
        self._faults = []
        self._keys = Keys(self.place / "keys")
        self._control = Machine(self.place / "control")
        self.nodes = [
            Node(self.place / f"node{number}", number, self._keys, self._control)
            for number in range(1, nodes + 1)
        ]
        try:
            with self._shared.alone():
                if not (self.place / "ready").exists():
                    self._begin()
                    (self.place / "ready").touch()
            self._http = self._client()
        except BaseException:
            self.close()
            raise

    def close(self):
        """Let go of it; the last to do so ends it."""
        self._shared.close()

    # ── what is asked of it ───────────────────────────────────────────────────

    def kubectl(self, *arguments, check=True, kubeconfig=None, **kwargs):
        """Run a command of kubectl's, as administrator unless told; gives what it printed."""
        done = subprocess.run(
            [
                *(self.programs / "kubectl", "--kubeconfig", kubeconfig or self.kubeconfig),
                *map(str, arguments),
            ],
            capture_output=True,
            text=True,
            check=False,
            **kwargs,
        )
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout

    def apply(self, *objects, namespace=None):
        """Have objects, which are dictionaries."""
        where = ("--namespace", namespace) if namespace else ()
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", *where, "-f", "-", input=json.dumps(listed))

    def get(self, path, timeout=10):
        """What the API server says about a path, such as /api/v1/nodes/node1."""
        return json.loads(self._read(path, timeout))

    def _read(self, path, timeout=5):
        try:
            with self._http.open(f"https://{self._address()}{path}", timeout=timeout) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            error.close()  # or the connection is there until the error is forgotten
            raise

    @contextlib.contextmanager
    def namespace(self):
        """A namespace for a test, empty, and gone afterwards with all that it has."""
        name = f"test-{uuid.uuid4().hex[:8]}"
        self._revive()
        self.kubectl("create", "namespace", name)
        try:
            # Until there is an account for its pods, none is accepted.
            try:
                wait_until(lambda: self._has_account(name), 60)
            except AssertionError:
                said = self.log("controller-manager")[-2000:]
                raise RuntimeError(f"no service account in {name}: {said}") from None
            yield name
        finally:
            # Nobody waits for pods that do not heed SIGTERM.
            self.kubectl("delete", "namespace", name, "--wait=false", check=False)
            hard = ("--all", "--force", "--grace-period=0", "--wait=false")
            self.kubectl("delete", "pods", "--namespace", name, *hard, check=False)

    def _revive(self):
        """Start what has ended by itself, as the nodes of a real cluster do."""
        with self._shared.alone():
            for part in PARTS:
                if part not in self._faults and not self._processes(part):
                    self._start(part)
                    self._wait_for(part)

    def restricted_kubeconfig(self, rules, namespace):
        """The kubeconfig of a new user with these rights in a namespace, and no others.

        Args:
            rules: As in a Role: apiGroups, resources, verbs.
            namespace: Where they hold.
        """
        user = f"user-{uuid.uuid4().hex[:8]}"
        about = {"name": user, "namespace": namespace}
        group = "rbac.authorization.k8s.io"
        head = {"apiVersion": f"{group}/v1", "metadata": about}
        self.apply(
            {"kind": "Role", **head, "rules": list(rules)},
            {
                "kind": "RoleBinding",
                **head,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": user},
                "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
            },
        )
        file = self.place / f"{user}.conf"
        server = f"https://{self._address()}"
        return self._keys.kubeconfig(file, server, user, f"/CN={user}", namespace)

    @contextlib.contextmanager
    def turn(self, *, alone=False):
        """Use it beside others, or, where parts of it are to fail, when nobody else does."""
        with open(self.place / "queue", "w") as queue, open(self.place / "turn", "w") as turn:
            fcntl.flock(queue, fcntl.LOCK_EX)  # in the order of arrival: nobody is passed over
            fcntl.flock(turn, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            fcntl.flock(queue, fcntl.LOCK_UN)
            yield

    def _has_account(self, namespace):
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        return any(account.get("secrets") for account in self.get(path)["items"])

    # ── faults ────────────────────────────────────────────────────────────────

    def crash(self, part):
        """Kill a part. Containers live on, unless it is a node."""
        self._faults.append(part)
        if part.startswith("node"):
            self._node(part).end()
            return
        for pid in self._processes(part):
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not is_alive(pid), 30, f"{part} does not end")

    def stop(self, part):
        """Have a part stand still (SIGSTOP): connections to it stay open."""
        self._faults.append(part)
        for pid in self._processes(part):
            os.kill(pid, signal.SIGSTOP)

    def cont(self, part):
        """Have a part that was stopped go on."""
        for pid in self._processes(part):
            os.kill(pid, signal.SIGCONT)

    def cut(self, node):
        """Take a node ("node1") off the network: silence, in both directions."""
        self._faults.append(node)
        self._control.inside("ip", "link", "set", node, "down")

    def mend(self, node):
        """Have a node on the network again."""
        self._control.inside("ip", "link", "set", node, "up")

    @contextlib.contextmanager
    def unreachable(self):
        """Meanwhile nothing goes from here to the API, or back: to it, all here are lost."""
        _ip("link", "set", self.link, "down")
        try:
            yield
        finally:
            _ip("link", "set", self.link, "up")

    def heal(self, part=None):
        """Have a part as it was, or all that failed; returns when it answers."""
        if part is not None:
            self._heal(part)
            return
        for failed in sorted(set(self._faults), key=_healing_order):
            self._heal(failed)
        if self._faults:
            for node in self.nodes:
                self._wait_for(node.name.replace("node", "kubelet"))
        self._faults.clear()

    def _heal(self, part):
        if part.startswith("node"):
            node = self._node(part)
            if node.is_up():
                self.mend(part)
            else:
                node.begin()
                self._routes(node)
                node.start_engine()
                self._start(part.replace("node", "kubelet"))
            self._wait_for(part.replace("node", "kubelet"))
            return
        self.cont(part)
        if not self._processes(part):
            self._start(part)
        self._wait_for(part)

    def log(self, part):
        """What a part wrote."""
        name = part.rstrip("0123456789")
        if name in ("kubelet", "engine"):
            name = {"engine": "dockerd"}.get(name, name)
            return read(self._node(part).place / f"{name}.log")
        return read(self._control.place / f"{name}.log")

    def _node(self, part):
        return self.nodes[int(part.lstrip("abcdefghijklmnopqrstuvwxyz")) - 1]

    def _processes(self, part):
        if part.startswith("kubelet"):
            return self._node(part).kubelets()
        if part.startswith("engine"):
            node = self._node(part)
            return node.daemons("dockerd", node.place / "daemon.json")
        program, word, _ = daemon(part, self._control.place, self._keys.place)
        return self._control.daemons(os.path.basename(program), word)

    # ── the start ─────────────────────────────────────────────────────────────

    def _begin(self):
        """Start all; what takes long, at the same time."""
        for each in (self._control, *self.nodes):
            each.end()
        (self.place / "address").unlink(missing_ok=True)
        self._control.begin()
        self._have_network()
        self._keys.begin()
        self._have_keys()
        self._http = self._client()
        for node in self.nodes:
            node.describe()
            node.begin()
        for node in self.nodes:
            self._routes(node)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            engines = [threads.submit(node.start_engine) for node in self.nodes]
            first, rest = PARTS[:2], PARTS[2:]
            for part in first:
                self._start(part)
                self._wait_for(part)
            for part in rest:
                self._start(part)
            for engine in engines:
                engine.result()
            for node in self.nodes:
                node.start_kubelet()
            for part in (*rest, *(node.name.replace("node", "kubelet") for node in self.nodes)):
                self._wait_for(part)

    def _have_network(self):
        inside = lambda *words: self._control.inside("ip", *words)
        for address in (API_ADDRESS, NAMES_ADDRESS):
            inside("addr", "add", f"{address}/32", "dev", "lo")
        inside("link", "add", "nodes", "type", "bridge", "forward_delay", "0")
        inside("addr", "add", f"{CONTROL_ADDRESS}/24", "dev", "nodes")
        inside("link", "set", "nodes", "up")
        near, far = _free_addresses()
        outside = ("peer", "outside", "netns", self._control.pid)
        _ip("link", "add", self.link, "type", "veth", *outside)
        _ip("addr", "add", f"{near}/30", "dev", self.link)
        _ip("link", "set", self.link, "up")
        inside("addr", "add", f"{far}/30", "dev", "outside")
        inside("link", "set", "outside", "up")
        (self.place / "address").write_text(far)

    def _routes(self, node):
        """Tell all of the way to a node's pods, and the node of those to others'."""
        far = lambda other: (f"{other.pods}.0/24", "via", other.address)
        self._control.inside("ip", "route", "replace", *far(node))
        for other in self.nodes:
            if other is not node and other.is_up():
                node.inside("ip", "route", "replace", *far(other))
                other.inside("ip", "route", "replace", *far(node))

    def _have_keys(self):
        server = f"https://{self._address()}"
        addresses = ("127.0.0.1", CONTROL_ADDRESS, API_ADDRESS, self._address())
        name = "kubernetes.default.svc.cluster.local"
        names = ["localhost", *(".".join(name.split(".")[:count]) for count in (1, 2, 3, 5))]
        allowed = [*(f"IP:{address}" for address in addresses), *(f"DNS:{name}" for name in names)]
        extension = f"subjectAltName={','.join(allowed)}"
        self._keys.certificate("apiserver", "/CN=kube-apiserver", extension)
        self._keys.kubeconfig(self.kubeconfig, server, "admin", "/O=system:masters/CN=admin")
        for part in ("controller-manager", "scheduler"):
            file = self._control.place / f"{part}.conf"
            local = f"https://{CONTROL_ADDRESS}:443"
            self._keys.kubeconfig(file, local, part, f"/CN=system:kube-{part}")

    def _address(self):
        return read(self.place / "address")

    def _client(self):
        context = ssl.create_default_context(cafile=self._keys.ca)
        context.load_cert_chain(self._keys.place / "admin.crt", self._keys.place / "admin.key")
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def _start(self, part):
        if part.startswith("kubelet"):
            self._node(part).start_kubelet()
        elif part.startswith("engine"):
            self._node(part).start_engine()
        else:
            program, _, arguments = daemon(part, self._control.place, self._keys.place)
            self._control.spawn_before_others(part, program, *arguments)

    def _wait_for(self, part):
        try:
            wait_until(lambda: self._answers(part), 90)
        except AssertionError:
            raise RuntimeError(f"{part} does not answer: {self.log(part)[-2000:]}") from None

    def _answers(self, part):
        """Whether a part does its work; ask the API server, where it is the one to know."""
        if part == "etcd":
            check = f"import urllib.request; urllib.request.urlopen('{ETCD}/health', timeout=2)"
            no_proxy = {**os.environ, "no_proxy": "*"}
            command = [*self._control._enter(), sys.executable, "-IS", "-c", check]
            done = subprocess.run(command, env=no_proxy, capture_output=True, check=False)
            return done.returncode == 0
        if part.startswith("engine"):
            return bool(self._node(part).docker("version", check=False))
        try:
            if part.startswith("kubelet"):
                return self._is_ready(self._node(part).name)
            if part == "apiserver":
                return self._read("/readyz") == b"ok"
            if part == "controller-manager":
                return self._has_account("default")
        except OSError:
            return False
        return bool(self._processes(part))

    def _is_ready(self, name):
        node = self.get(f"/api/v1/nodes/{name}")
        states = {each["type"]: each["status"] for each in node["status"].get("conditions", ())}
        if states.get("Ready") != "True" or node["spec"].get("taints"):
            return False
        return self._read(f"/api/v1/nodes/{name}/proxy/healthz") == b"ok"


def _healing_order(part):
    """What others need comes first."""
    return (part != "etcd", part != "apiserver", not part.startswith("node"), part)


def _link(place):
    """The name of the outer end of the link to a cluster: 15 characters at most."""
    return f"pk{hashlib.sha256(place.name.encode()).hexdigest()[:10]}"


def _free_addresses():
    """Two for the ends of the link, which no other link has."""
    taken = _ip("-o", "addr")
    while True:
        third, fourth = random.randrange(256), random.randrange(0, 256, 4)
        if f"10.198.{third}.{fourth + 1}/" not in taken:
            return f"10.198.{third}.{fourth + 1}", f"10.198.{third}.{fourth + 2}"


def _ip(*words, check=True):
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"ip {words}: {done.stderr}")
    return done.stdout


def _end(place):
    """End a cluster that nobody uses."""
    for each in sorted(place.glob("*/init.pid")):
        Machine(each.parent).end()
    _ip("link", "del", _link(place), check=False)
