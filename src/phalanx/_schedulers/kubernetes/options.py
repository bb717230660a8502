"""What can be asked of a cluster, for an app and for lent hosts. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from phalanx._core.environment import not_a_name
from phalanx._schedulers.authoring import copied_variables
from phalanx._schedulers.kubernetes.api.cluster import parse_version
from phalanx._schedulers.options import option
from phalanx.errors import ConfigError

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?([KMGTPE]i?|[kmg])?")
_TOLERATION = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^:]*))?(:(?P<effect>\w+))?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True)
class KubernetesOptions:
    """Options of `kubernetes`."""

    instead: ClassVar[Mapping[str, str]] = {
        "validate_spec": "Leave it out: the API server checks every object.",
        "reserved_millicpu": "Leave it out: what a role requests is what it gets.",
        "reserved_memmb": "Leave it out: what a role requests is what it gets.",
    }
    """What to do in place of options that others have."""

    namespace: str | None = option(None, help="namespace (default: the context's)")
    context: str | None = option(None, help="context of your kubeconfig (default: the current one)")
    service_account: str | None = option(
        None, help="service account of the pods (default: the namespace's)"
    )
    image_repo: str | None = option(
        None, help="repository to push images with your project to (default: none is built)"
    )
    image_secret: str | None = option(None, help="secret to pull images with")
    pull: Literal["always", "missing", "never"] = option(
        "missing", help="when nodes pull images: always, missing or never"
    )
    priority_class: str | None = option(None, help="priority class of the pods")
    queue: str | None = option(None, help="queue of Kueue or Volcano to wait in")
    gang_scheduler: str | None = option(
        None, help="scheduler of the pods, such as volcano (default: the cluster's)"
    )
    node_selector: dict[str, str] = option({}, help="labels that nodes must have, as a:b,c:d")
    tolerations: list[str] | None = option(
        None, help="node taints to tolerate, as KEY[=VALUE][:EFFECT]"
    )
    pod_template: str | None = option(
        None, help="YAML file of a pod whose fields are merged into every pod"
    )
    gpu_resource: str = option("nvidia.com/gpu", help="what the cluster calls GPUs")
    env: dict[str, str] = option({}, help="environment variables to set, as A:1,B:2")
    copy_env: list[str] | None = option(
        None, help="variables of this environment to pass on in a Secret; patterns such as WANDB_*"
    )
    shm_size: str | None = option(
        None, help="size of /dev/shm, such as 8Gi (default: half of the node's memory)"
    )
    ttl: float | None = option(
        None, help="seconds after which an app that has ended is deleted (default: never)"
    )
    stop_grace: float = option(
        10.0, help="seconds between SIGTERM and SIGKILL when pods are stopped"
    )
    python: str = option("python3", help="what 'python' is in the image")
    server_version: str | None = option(
        None, help="version of Kubernetes to write objects for (default: the server's)"
    )
    cpus: float | None = option(None, help="CPUs per lent host; for apps, set the role's resource")
    mem: str | None = option(
        None, help="memory per lent host, such as 16Gi; for apps, set the role's resource"
    )
    gpus: int | None = option(None, help="GPUs per lent host; for apps, set the role's resource")

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        if self.namespace is not None and not _LABEL.fullmatch(self.namespace):
            raise ConfigError(f"namespace={self.namespace}: is not a valid name of a namespace.")
        if not 0 <= self.stop_grace < math.inf:
            raise ConfigError(
                f"stop_grace={self.stop_grace}: must be a number of seconds, 0 or more."
            )
        if self.ttl is not None and not 0 <= self.ttl < math.inf:
            raise ConfigError(f"ttl={self.ttl}: must be a number of seconds, 0 or more.")
        if not self.python:
            raise ConfigError("python: must be a program of the image, such as python3.")
        for name in self.env:
            if not name or "=" in name:
                raise ConfigError(f"env: {not_a_name(name)}")
        for name in ("shm_size", "mem"):
            size = getattr(self, name)
            if size is not None and not _QUANTITY.fullmatch(size):
                raise ConfigError(f"{name}={size}: must be a size such as 512Mi or 8Gi.")
        if self.cpus is not None and not 0 < self.cpus < math.inf:
            raise ConfigError(f"cpus={self.cpus}: must be a number of CPUs, more than 0.")
        if self.gpus is not None and self.gpus < 0:
            raise ConfigError(f"gpus={self.gpus}: must be a number of GPUs, 0 or more.")
        _ = self.version, self.toleration_specs

    @property
    def version(self) -> tuple[int, int] | None:
        """The version of Kubernetes that is said, if one is."""
        if self.server_version is None:
            return None
        try:
            return parse_version(self.server_version)
        except ValueError:
            raise ConfigError(
                f"server_version={self.server_version}: must be a version such as 1.29."
            ) from None

    @property
    def toleration_specs(self) -> list[dict[str, Any]]:
        """The tolerations, as pods have them."""
        return [_toleration(text) for text in self.tolerations or ()]

    @property
    def pull_policy(self) -> str:
        """When nodes pull images, as containers have it."""
        return {"always": "Always", "missing": "IfNotPresent", "never": "Never"}[self.pull]

    @property
    def for_lent_hosts(self) -> str:
        """An option that is given, and means nothing for apps; empty if there is none."""
        given = [name for name in ("cpus", "mem", "gpus") if getattr(self, name) is not None]
        return given[0] if given else ""

    def copied(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of an environment that are passed on. Raises `ConfigError`."""
        return copied_variables(environ, self.copy_env or ())


def quantity(text: str) -> str:
    """A size as the API takes it: `8g` is meant as `8Gi`. Pure."""
    return f"{text[:-1]}{text[-1].upper()}i" if text[-1:] in ("k", "m", "g") else text


def _toleration(text: str) -> dict[str, Any]:
    if text == "*":
        return {"operator": "Exists"}
    found = _TOLERATION.fullmatch(text)
    if found is None or found["effect"] not in (None, *_EFFECTS):
        raise ConfigError(
            f"tolerations: {text!r} must be KEY[=VALUE][:EFFECT], with an effect of "
            f"{', '.join(_EFFECTS)}."
        )
    made: dict[str, Any] = {"key": found["key"]}
    if found["value"] is None:
        made["operator"] = "Exists"
    else:
        made |= {"operator": "Equal", "value": found["value"]}
    return made | ({"effect": found["effect"]} if found["effect"] else {})
