"""A job definition and a job, as `RegisterJobDefinition` and `SubmitJob` take them. Pure.

The definition has what stays the same from run to run (image, resources, mounts, roles) and is
named by its content, so that it is registered once. Command and environment come with the job.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx._images.plan import ImagePlan
from phalanx._schedulers.authoring import check_text, make_app_id
from phalanx._schedulers.aws_batch.command import make_command
from phalanx._schedulers.aws_batch.container import container_properties
from phalanx._schedulers.aws_batch.names import AppTags, BatchAppId, JobKind, role_tags
from phalanx._schedulers.aws_batch.options import RESERVED, AwsBatchOptions
from phalanx._specs import AppDef, RetryPolicy, Role
from phalanx._specs.app_def import HOSTS
from phalanx._specs.instances import INSTANCE_TYPE
from phalanx.errors import ConfigError

_PREFIX = "phalanx-"
_DIGEST = 24
_MOST_GROUPS = 5
_MOST_CHILDREN = 10_000
_MOST_ATTEMPTS = 10
_LARGEST = 8192
"""Characters of a role's command and environment that the service takes."""
_HIDDEN = 256
"""Characters of them that are added when a job is submitted."""
_HOST_LOST = [
    {"onStatusReason": "Host EC2*", "action": "RETRY"},
    {"onReason": "*", "action": "EXIT"},
]
"""Start again when the instance was taken away, and for no other end."""


@dataclass(frozen=True)
class AwsBatchRequest:
    """What is registered and submitted."""

    app: BatchAppId
    kind: JobKind
    definition: Mapping[str, Any]
    """Without its name, which depends on the images."""
    job: Mapping[str, Any]
    """Without the definition."""
    plans: Mapping[int, ImagePlan] = field(default_factory=dict)
    """Images that are built first, by the number of their role."""

    def with_images(self, images: Mapping[int, str]) -> dict[str, Any]:
        """The definition with the images that were built for roles, and its name."""
        made = copy.deepcopy(dict(self.definition))
        for number, image in images.items():
            if self.kind is JobKind.NODES:
                groups = made["nodeProperties"]["nodeRangeProperties"]
                groups[number]["container"]["image"] = image
            else:
                made["containerProperties"]["image"] = image
        return {"jobDefinitionName": definition_name(made), **made}

    def submission(self, definition: str, env: Mapping[str, str]) -> dict[str, Any]:
        """The job, with a definition, and variables that are not shown."""
        made = copy.deepcopy(dict(self.job))
        for overrides in _overrides(made):
            overrides["environment"] += environment(env)
        return {**made, "jobDefinition": definition}

    def __str__(self) -> str:
        """Both requests as JSON."""
        definition = self.with_images({})
        shown: dict[str, Any] = {"app_id": str(self.app)}
        if self.plans:
            shown["images"] = [
                f"{plan.base} with {plan.num_files} files of {plan.project}, pushed to "
                f"{plan.repository}"
                for plan in self.plans.values()
            ]
        shown["RegisterJobDefinition"] = definition
        shown["SubmitJob"] = self.submission(definition["jobDefinitionName"], {})
        return json.dumps(shown, indent=2, ensure_ascii=False)


def definition_name(definition: Mapping[str, Any]) -> str:
    """The name of a definition, by its content."""
    text = json.dumps(definition, sort_keys=True)
    return _PREFIX + hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def environment(env: Mapping[str, str]) -> list[dict[str, str]]:
    """Variables, as containers have them."""
    return [{"name": name, "value": value} for name, value in env.items()]


def _overrides(job: dict[str, Any]) -> list[dict[str, Any]]:
    if "containerOverrides" in job:
        return [job["containerOverrides"]]
    groups = job["nodeOverrides"]["nodePropertyOverrides"]
    return [group["containerOverrides"] for group in groups]


def job_kind(app: AppDef, options: AwsBatchOptions) -> JobKind:
    """What an app is to the service.

    One replica is a container: it needs no group of instances. Several are a multi-node job,
    since components such as `dist.ddp` have replicas that meet; that the
    replicas do not need each other, which lets them start one by one, only the user knows.
    """
    replicas = sum(role.num_replicas for role in app.roles)
    if options.job_type == "nodes":
        return JobKind.NODES
    if options.job_type == "array":
        if len(app.roles) > 1:
            raise ConfigError("job_type=array: an array job has one role. Use job_type=nodes.")
        if replicas > _MOST_CHILDREN:
            raise ConfigError(f"job_type=array: {replicas} replicas, and at most 10000 can be.")
        return JobKind.ARRAY if replicas > 1 else JobKind.CONTAINER
    return JobKind.CONTAINER if replicas == 1 else JobKind.NODES


def make_request(
    app: AppDef,
    session: str,
    user: str,
    options: AwsBatchOptions,
    rank0_env: str,
    plans: Mapping[str, ImagePlan],
) -> AwsBatchRequest:
    """The definition and the job of an app. Raises `ConfigError`."""
    _check(app)
    check_text(app, options.env)
    kind = job_kind(app, options)
    name = make_app_id(app.name)
    app_id = BatchAppId(options.queue, name, options.region, options.profile, options.endpoint)
    tags = AppTags(
        app.name,
        session,
        user,
        kind,
        role_tags([(role.name, role.num_replicas) for role in app.roles]),
    )
    containers = []
    overrides = []
    for number, role in enumerate(app.roles):
        plan = plans.get(role.name)
        image = role.image if plan is None else f"{plan.repository}:latest"
        containers.append(container_properties(role, image, options))
        command = make_command(role, kind, app_id, rank0_env, options.python, tags.first(number))
        env = environment({**options.env, **command.env})
        overrides.append({"command": list(command.argv), "environment": env})
        _check_size(role, overrides[-1])
    retries = _retry_strategy(app, kind, options)
    shared: dict[str, Any] = {
        "retryStrategy": retries,
        "timeout": {"attemptDurationSeconds": options.timeout} if options.timeout else None,
    }
    job: dict[str, Any] = {
        "jobName": name,
        "jobQueue": options.queue,
        "shareIdentifier": options.share_id,
        "schedulingPriorityOverride": options.priority,
        "propagateTags": True if options.tags else None,
        "tags": {**options.tags, **tags.to_tags()},
        **shared,
    }
    if kind is JobKind.NODES:
        groups = [
            f"{tags.first(i)}:{tags.first(i) + role.replicas - 1}"
            for i, role in enumerate(tags.roles)
        ]
        definition = _multi_node(app, tags.num_replicas, groups, containers)
        job["nodeOverrides"] = {
            "nodePropertyOverrides": [
                {"targetNodes": group, "containerOverrides": own}
                for group, own in zip(groups, overrides, strict=True)
            ]
        }
    else:
        definition = {"type": "container", "containerProperties": containers[0]}
        job["containerOverrides"] = overrides[0]
        if kind is JobKind.ARRAY:
            job["arrayProperties"] = {"size": tags.num_replicas}
    job = {key: value for key, value in job.items() if value is not None}
    numbered = {i: plans[role.name] for i, role in enumerate(app.roles) if role.name in plans}
    return AwsBatchRequest(app_id, kind, definition, job, numbered)


def _check(app: AppDef) -> None:
    if not app.roles:
        raise ConfigError(f"app {app.name!r} has no roles.")
    if len(app.roles) > _MOST_GROUPS:
        raise ConfigError(f"app {app.name!r} has {len(app.roles)} roles; AWS Batch runs five.")
    for role in app.roles:
        if not role.entrypoint:
            raise ConfigError(f"role {role.name!r} of {app.name!r} has no entrypoint.")
        if not role.image:
            raise ConfigError(
                f"role {role.name!r} has no image to run in. Name one, such as --image python:3.12"
            )
        if role.metadata.get(HOSTS, 1) != 1:
            raise ConfigError("aws_batch runs each replica on one host.")
        for name in role.env:
            if name.startswith(RESERVED):
                raise ConfigError(f"role {role.name!r}: env: AWS Batch sets {name} itself.")


def _check_size(role: Role, overrides: Mapping[str, Any]) -> None:
    size = len(json.dumps(overrides)) + _HIDDEN
    if size > _LARGEST:
        raise ConfigError(
            f"role {role.name!r}: its command and environment have {size} characters; AWS Batch "
            f"takes {_LARGEST}. Put some of it into a file of the project."
        )


def _multi_node(
    app: AppDef, replicas: int, groups: list[str], containers: list[dict[str, Any]]
) -> dict[str, Any]:
    """A group of nodes for each role; the app's first replica is the main node."""
    types = {_instance_type(role) for role in app.roles}
    if len(types) > 1:
        names = ", ".join(sorted(name or "none" for name in types))
        raise ConfigError(
            f"all roles of a multi-node job must have the same instance type, not {names}."
        )
    kind = types.pop()
    own = {"instanceType": kind} if kind else {}
    return {
        "type": "multinode",
        "nodeProperties": {
            "numNodes": replicas,
            "mainNode": 0,
            "nodeRangeProperties": [
                {"targetNodes": group, "container": {**container, **own}}
                for group, container in zip(groups, containers, strict=True)
            ],
        },
    }


def _instance_type(role: Role) -> str:
    found = role.resource.capabilities.get(INSTANCE_TYPE)
    return found if isinstance(found, str) else ""


def _retry_strategy(app: AppDef, kind: JobKind, options: AwsBatchOptions) -> dict[str, Any] | None:
    """What the service does by itself when a job fails: a multi-node one starts anew as a whole."""
    retries = max(role.max_retries for role in app.roles)
    if retries:
        wanted = {role.retry_policy for role in app.roles if role.max_retries}
        if kind is JobKind.NODES and RetryPolicy.REPLICA in wanted:
            raise ConfigError(
                "a multi-node job starts again as a whole: use retry_policy=APPLICATION."
            )
        if kind is JobKind.ARRAY and wanted != {RetryPolicy.REPLICA}:
            raise ConfigError(
                "an array job starts its replicas again one by one: use retry_policy=REPLICA."
            )
        if options.spot_retries:
            raise ConfigError(
                "max_retries starts again after a lost host as well: leave spot_retries out."
            )
        if retries >= _MOST_ATTEMPTS:
            raise ConfigError(f"max_retries={retries}: AWS Batch starts again 9 times at most.")
        return {"attempts": retries + 1}
    if options.spot_retries:
        return {"attempts": options.spot_retries + 1, "evaluateOnExit": _HOST_LOST}
    return None
