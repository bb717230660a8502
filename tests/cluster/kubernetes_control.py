"""The programs of the control plane of `tests.cluster.kubernetes`, as they are started."""

import sys
from pathlib import Path

from tests.cluster import kubernetes_build
from tests.cluster.kubernetes_node import API_ADDRESS, CONTROL_ADDRESS, NAMES_ADDRESS

PARTS = ("etcd", "apiserver", "controller-manager", "scheduler", "names")
ETCD = "http://127.0.0.1:2379"
_FEATURES = "TTLAfterFinished=true"


def daemon(part, place, keys):
    """A program of the control plane, a word that only its command has, and its arguments.

    Args:
        part: One of `PARTS`.
        place: A directory for its files.
        keys: The directory of the cluster's keys.
    """
    programs = kubernetes_build.place()
    match part:
        case "etcd":
            data, peers = f"--data-dir={place}/etcd", "http://127.0.0.1:2380"
            arguments = {
                "listen-client-urls": ETCD,
                "advertise-client-urls": ETCD,
                "listen-peer-urls": peers,
                "initial-advertise-peer-urls": peers,
                "initial-cluster": f"default={peers}",
            }
            return "etcd", data, (data, *_options(arguments))
        case "apiserver":
            key = f"--tls-private-key-file={keys}/apiserver.key"
            arguments = {
                "etcd-servers": ETCD,
                "secure-port": 443,
                "advertise-address": CONTROL_ADDRESS,
                "endpoint-reconciler-type": "none",
                "cert-dir": place / "certificates",
                "tls-cert-file": keys / "apiserver.crt",
                "client-ca-file": keys / "ca.crt",
                "authorization-mode": "Node,RBAC",
                "enable-admission-plugins": "NodeRestriction",
                "service-account-key-file": keys / "tokens.pub",
                "service-account-signing-key-file": keys / "tokens.key",
                "service-account-issuer": "https://kubernetes.default.svc",
                "service-cluster-ip-range": "10.96.0.0/16",
                "allow-privileged": "true",
                "kubelet-preferred-address-types": "InternalIP",
                "kubelet-certificate-authority": keys / "ca.crt",
                "kubelet-client-certificate": keys / "admin.crt",
                "kubelet-client-key": keys / "admin.key",
                "default-not-ready-toleration-seconds": 5,
                "default-unreachable-toleration-seconds": 5,
                "feature-gates": _FEATURES,
            }
            return programs / "kube-apiserver", key, (key, *_options(arguments))
        case "controller-manager":
            config = f"--kubeconfig={place}/{part}.conf"
            arguments = {
                "port": 0,
                "secure-port": 0,
                "leader-elect": "false",
                "root-ca-file": keys / "ca.crt",
                "service-account-private-key-file": keys / "tokens.key",
                "use-service-account-credentials": "true",
                "flex-volume-plugin-dir": place / "plugins",
                "node-monitor-period": "2s",
                "node-monitor-grace-period": "12s",
                "kube-api-qps": 100,
                "kube-api-burst": 200,
                "feature-gates": _FEATURES,
            }
            program = programs / f"kube-{part}"
            return program, config, (config, *_options(arguments))
        case "scheduler":
            config = f"--kubeconfig={place}/{part}.conf"
            arguments = {
                "port": 0,
                "secure-port": 0,
                "leader-elect": "false",
                "kube-api-qps": 100,
                "kube-api-burst": 200,
            }
            program = programs / f"kube-{part}"
            return program, config, (config, *_options(arguments))
        case "names":
            script = str(Path(__file__).with_name("kubernetes_names.py"))
            server = f"https://{CONTROL_ADDRESS}:443"
            arguments = (NAMES_ADDRESS, server, API_ADDRESS, keys)
            return sys.executable, keys, ("-IS", script, *arguments)
    raise ValueError(f"no part {part!r}")


def _options(values):
    return [f"--{name}={value}" for name, value in values.items()]
