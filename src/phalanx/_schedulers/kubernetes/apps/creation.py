"""What is made of a request: the Service first, which owns the rest."""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping
from typing import Any

from phalanx._channel import tokens
from phalanx._rendezvous.tcp.tokens import VARIABLE as RENDEZVOUS_TOKEN
from phalanx._schedulers.kubernetes import names
from phalanx._schedulers.kubernetes.api.cluster import Cluster
from phalanx._schedulers.kubernetes.apps.request import KubernetesRequest
from phalanx._schedulers.kubernetes.manifest import MAIN
from phalanx._schedulers.parallel import for_all


def build_images(request: KubernetesRequest) -> dict[str, str]:
    """Build and push the images of roles with a workspace, by the word of their role."""
    if not request.plans:
        return {}
    from phalanx._images.builder import provide
    from phalanx._schedulers.docker.engine import Engine

    with Engine() as engine:
        return {word: provide(plan, engine.api) for word, plan in request.plans.items()}


def create_objects(cluster: Cluster, request: KubernetesRequest, images: Mapping[str, str]) -> None:
    """Everything that an app consists of. Raises `SchedulerError`."""
    service = cluster.create("services", request.service)
    owner = {
        "apiVersion": "v1",
        "kind": "Service",
        "name": request.app.name,
        "uid": service["metadata"]["uid"],
    }
    secrets = [*request.secrets, _env(request)]
    for_all(lambda one: cluster.create("secrets", _owned(one, owner)), secrets)
    jobs = [with_image(_owned(job, owner), images) for job in request.jobs]
    for_all(lambda one: cluster.create("jobs", one), jobs)


def _owned(one: Mapping[str, Any], owner: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, "metadata": {**one["metadata"], "ownerReferences": [dict(owner)]}}


def with_image(job: dict[str, Any], images: Mapping[str, str]) -> dict[str, Any]:
    """A Job with the image that was built for its role, if one was. Pure."""
    image = images.get(job["metadata"]["labels"][names.ROLE])
    if image is None:
        return job
    made = copy.deepcopy(job)
    for container in made["spec"]["template"]["spec"]["containers"]:
        if container["name"] == MAIN:
            container["image"] = image
    return made


def _env(request: KubernetesRequest) -> dict[str, Any]:
    values = {RENDEZVOUS_TOKEN: tokens.make_token(), **request.hidden_env}
    meta = request.service["metadata"]
    own = {name: meta[name] for name in ("namespace", "labels")}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**own, "name": request.env_secret},
        "type": "Opaque",
        "data": {
            name: base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()
            for name, value in values.items()
        },
    }
