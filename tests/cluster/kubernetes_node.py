"""A node of `tests.cluster.kubernetes`: a machine with a Docker engine and a kubelet."""

import json

from tests.cluster import kubernetes_build
from tests.cluster.docker import IMAGE, DockerMachine

API_ADDRESS, NAMES_ADDRESS = "10.96.0.1", "10.96.0.10"
CONTROL_ADDRESS = "10.255.0.1"
_PAUSE = "phalanx-tests/pause:1"
_OF_THE_WHOLE_MACHINE = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)
"""Settings that a kubelet changes. There is one kernel: it gets files to write to."""


class Node(DockerMachine):
    """One that may run already.

    Args:
        place: A directory for its files.
        number: From 1.
        keys: The cluster's.
        control: The machine with the control plane.
    """

    def __init__(self, place, number, keys, control):
        super().__init__(place)
        self.name = f"node{number}"
        self.address = f"10.255.0.{10 + number}"
        self.pods = f"10.244.{number}"
        self._keys = keys
        self._control = control

    def describe(self):
        """Write the configuration and the keys."""
        self.place.mkdir(exist_ok=True)
        server = f"https://{CONTROL_ADDRESS}:443"
        subject = f"/O=system:nodes/CN=system:node:{self.name}"
        self._keys.kubeconfig(self.place / "kubeconfig", server, self.name, subject)
        names = f"subjectAltName=IP:{self.address},DNS:{self.name}"
        certificate, key = self._keys.certificate(f"kubelet-{self.name}", f"/CN={self.name}", names)
        (self.place / "resolv.conf").write_text(f"nameserver {NAMES_ADDRESS}\n")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._keys.ca)},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDNS": [NAMES_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.place / "resolv.conf"),
            "volumePluginDir": str(self.place / "plugins"),
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "maxOpenFiles": 10000,
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            "eventRecordQPS": 0,
            "registryPullQPS": 0,
            "serializeImagePulls": False,
            "volumeStatsAggPeriod": "5s",
            "kubeAPIQPS": 50,
            "kubeAPIBurst": 100,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
            },
        }
        (self.place / "kubelet.json").write_text(json.dumps(config, indent=1))

    def begin(self):
        """Have the machine, in the cluster's network."""
        super().begin()
        # Both ends are made where the control plane is; by the network only, as the process table
        # there has other numbers.
        there = ("nsenter", f"--target={self._control.pid}", "--net", "ip", "link")
        self._run(*there, "del", self.name, check=False)
        self._run(
            *(*there, "add", self.name, "type", "veth"),
            *("peer", "name", "eth0", "netns", self.pid),
            check=True,
        )
        self._run(*there, "set", self.name, "master", "nodes", "up", check=True)
        self.inside("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.inside("ip", "link", "set", "eth0", "up")
        self.inside("ip", "route", "add", "default", "via", CONTROL_ADDRESS)
        for name in ("log", "kubelet", "sysctl"):
            (self.place / name).mkdir(exist_ok=True)
        self.inside("mount", "--bind", self.place / "log", "/var/log")
        for setting in _OF_THE_WHOLE_MACHINE:
            file = self.place / "sysctl" / setting.replace("/", "-")
            file.write_text("0\n")
            self.inside("mount", "--bind", file, f"/proc/sys/{setting}")

    def start_engine(self):
        """Start dockerd, with the images that pods need."""
        self.start(bip=f"{self.pods}.1/24")
        if not self.docker("image", "ls", "--quiet", _PAUSE):
            self.load_base()
            recipe = f'FROM {IMAGE}\nENTRYPOINT ["sleep", "infinity"]\nSTOPSIGNAL SIGKILL\n'
            self.docker("build", "--quiet", "--tag", _PAUSE, "-", input=recipe)

    def start_kubelet(self):
        """Start the kubelet; that it is ready, the API server will say."""
        self.spawn_before_others(
            *("kubelet", kubernetes_build.place() / "kubelet"),
            *("--config", self.place / "kubelet.json", "--kubeconfig", self.place / "kubeconfig"),
            *("--hostname-override", self.name, "--node-ip", self.address),
            *("--root-dir", self.place / "kubelet", "--cert-dir", self.place / "certificates"),
            *("--container-runtime", "docker", "--docker-endpoint", self.host),
            *("--docker", self.host),  # of which it asks what containers use
            *("--container-runtime-endpoint", f"unix://{self.place}/dockershim.sock"),
            *("--experimental-dockershim-root-directory", self.place / "dockershim"),
            *("--pod-infra-container-image", _PAUSE, "--network-plugin", ""),
        )

    def kubelets(self):
        """The kubelet's process, as seen from here."""
        return self.daemons("kubelet", self.place / "kubelet.json")
