"""The way to a cluster's API server: the user's kubeconfig and context, or the pod's own account.

The official client is imported when a cluster is used; without it, the extra is named. It reads
kubeconfigs and makes TLS contexts; requests are ours (`Cluster.request`), so that answers stay
plain dicts, the same with every version of the client.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from phalanx._core.sanitize import sanitize_line
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._schedulers.authoring import need
from phalanx._schedulers.parallel import AT_ONCE
from phalanx.errors import ConfigError

EXTRA = "phalanx[kubernetes]"
_USUAL = "~/.kube/config"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod finds the token of its service account."""
_LONGEST = 300
_LOADING = threading.Lock()
"""The client keeps certificates in files that its threads share."""


@dataclass(frozen=True)
class Access:
    """What is needed to speak to an API server."""

    client: Any
    """A `kubernetes.client.ApiClient`."""
    server: str
    """Its address."""
    namespace: str
    """The one that the context names, or the pod's own."""
    context: str
    """The context's name; empty in a pod."""

    def headers(self) -> dict[str, str]:
        """What proves who asks; tokens that expire are renewed by the client."""
        settings = self.client.configuration.auth_settings().values()
        return {s["key"]: s["value"] for s in settings if s["in"] == "header" and s["value"]}


def find_access(context: str | None = None) -> Access:
    """By a context of the user's kubeconfig, or, in a pod that has none, by its account.

    Nothing is asked yet, unless the kubeconfig names a program that gives a token. Raises
    `ConfigError`.
    """
    need("kubernetes", EXTRA)
    with _LOADING:
        files = _kubeconfigs()
        if files:
            return _by_kubeconfig(files, context)
        if os.path.exists(f"{_ACCOUNT}/token") and "KUBERNETES_SERVICE_HOST" in os.environ:
            if context is not None:
                raise ConfigError(f"context={context}: there is no kubeconfig in this pod.")
            return _in_cluster()
    named = os.environ.get("KUBECONFIG") or _USUAL
    raise ConfigError(
        f"no cluster to use: there is no kubeconfig {named}. Get one from your cluster's "
        "administrator, or name it: export KUBECONFIG=… For a dry run without a cluster: "
        "-cfg namespace=NAME,server_version=1.29"
    )


def _kubeconfigs() -> str:
    """The files that are there, separated by colons."""
    named = os.environ.get("KUBECONFIG") or _USUAL
    return ":".join(
        path
        for part in named.split(":")
        if part and os.path.exists(path := os.path.expanduser(part))
    )


def _by_kubeconfig(files: str, context: str | None) -> Access:
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.config import kube_config
    from kubernetes.config.config_exception import ConfigException

    made = Configuration()
    try:
        contexts, current = kube_config.list_kube_config_contexts(files)
        known = {str(entry["name"]): entry for entry in contexts}
        if context is not None and context not in known:
            raise ConfigError(
                f"context={context}: {files} has no such context."
                f"{did_you_mean(closest(context, known))} See: kubectl config get-contexts"
            )
        chosen = known[context] if context is not None else current
        kube_config.load_kube_config(
            files, str(chosen["name"]), client_configuration=made, persist_config=False
        )
    except (ConfigException, OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, ConfigError):
            raise
        said = sanitize_line(str(error), _LONGEST)
        raise ConfigError(f"cannot use the kubeconfig {files}: {said}") from None
    namespace = chosen["context"].get("namespace") or "default"
    return _access(ApiClient, made, str(namespace), str(chosen["name"]))


def _in_cluster() -> Access:
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.config import load_incluster_config

    made = Configuration()
    load_incluster_config(client_configuration=made)
    namespace = "default"
    with contextlib.suppress(OSError), open(f"{_ACCOUNT}/namespace") as file:
        namespace = file.read().strip() or namespace
    return _access(ApiClient, made, namespace, "")


def _access(client: Any, made: Any, namespace: str, context: str) -> Access:
    if _is_loopback(made.host):
        made.proxy = None  # a proxy has another loopback
    made.retries = False
    made.connection_pool_maxsize = AT_ONCE  # or those beyond are dialled anew, with a warning
    return Access(client(made), made.host.rstrip("/"), namespace, context)


def _is_loopback(server: str) -> bool:
    name = urlsplit(server).hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
