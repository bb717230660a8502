"""A role as the properties of a container. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from phalanx._schedulers.aws_batch.options import DEFAULT_LOG_GROUP, AwsBatchOptions
from phalanx._specs import Role
from phalanx._specs.instances import DEVICE_FILES, EFA
from phalanx._specs.mounts import BindMount, DeviceMount, VolumeMount
from phalanx.errors import ConfigError

_EFS = re.compile(r"(?P<id>fs-[0-9a-f]+)(?::(?P<root>/[^@]*))?(?:@(?P<point>fsap-[0-9a-f]+))?")
_PERMISSIONS = {"r": "READ", "w": "WRITE", "m": "MKNOD"}
_LEAST_MEMORY = 4
_DEFAULT_MEMORY = 1024
_MEMLOCK = {"name": "memlock", "softLimit": -1, "hardLimit": -1}
"""Network adapters that write into a program's memory want it locked."""


def container_properties(role: Role, image: str, options: AwsBatchOptions) -> dict[str, Any]:
    """All that a container has but its command and environment. Raises `ConfigError`."""
    devices = list(_devices(role, options))
    linux: dict[str, Any] = {
        # A first process that passes signals on and buries orphans.
        "initProcessEnabled": True,
        "sharedMemorySize": options.shm_mib,
        "devices": devices,
    }
    ulimits = options.ulimit_specs
    if _num_efa(role, options) and not any(limit["name"] == "memlock" for limit in ulimits):
        ulimits = [*ulimits, _MEMLOCK]
    volumes, mounts = _mounts(role)
    found: dict[str, Any] = {
        "image": image,
        "resourceRequirements": _resources(role),
        "jobRoleArn": options.job_role_arn,
        "executionRoleArn": options.execution_role_arn,
        "user": options.user,
        "privileged": options.privileged or None,
        "ulimits": ulimits,
        "volumes": volumes,
        "mountPoints": mounts,
        "linuxParameters": {key: value for key, value in linux.items() if value},
        "secrets": [
            {"name": name, "valueFrom": source} for name, source in sorted(options.secrets.items())
        ],
    }
    if options.log_group != DEFAULT_LOG_GROUP:
        group = {"awslogs-group": options.log_group}
        found["logConfiguration"] = {"logDriver": "awslogs", "options": group}
    return {key: value for key, value in found.items() if value}


def _resources(role: Role) -> list[dict[str, str]]:
    resource = role.resource
    # The service takes no job without processors and memory.
    memory = resource.memMB if resource.memMB > 0 else _DEFAULT_MEMORY
    found = {
        "VCPU": max(1, math.ceil(resource.cpu)),
        "MEMORY": max(_LEAST_MEMORY, memory),
        "GPU": max(0, resource.gpu),
    }
    return [{"type": kind, "value": str(value)} for kind, value in found.items() if value]


def _num_efa(role: Role, options: AwsBatchOptions) -> int:
    if options.efa is False:
        return 0
    return max(role.resource.devices.get(EFA, 0), 1 if options.efa else 0)


def _devices(role: Role, options: AwsBatchOptions) -> Iterator[dict[str, Any]]:
    counts = {**role.resource.devices, EFA: _num_efa(role, options)}
    for name, count in counts.items():
        if name not in DEVICE_FILES:
            raise ConfigError(
                f"role {role.name!r}: aws_batch does not know the device {name!r}. Mount its "
                "file: type=device,src=/dev/…"
            )
        for number in range(count):
            path = DEVICE_FILES[name].format(number)
            yield _device(path, path, "rwm")
    for mount in role.mounts:
        if isinstance(mount, DeviceMount):
            yield _device(mount.src_path, mount.dst_path, mount.permissions)


def _device(source: str, target: str, permissions: str) -> dict[str, Any]:
    return {
        "hostPath": source,
        "containerPath": target,
        "permissions": [_PERMISSIONS[letter] for letter in "rwm" if letter in permissions],
    }


def _mounts(role: Role) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    volumes: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for number, mount in enumerate(role.mounts):
        match mount:
            case BindMount(source, target, read_only):
                volume: dict[str, Any] = {"host": {"sourcePath": source}}
            case VolumeMount(source, target, read_only):
                volume = {"efsVolumeConfiguration": _efs(role, source)}
            case DeviceMount():
                continue
        name = f"mount-{number}"
        volumes.append({"name": name, **volume})
        points.append({"containerPath": target, "readOnly": read_only, "sourceVolume": name})
    return volumes, points


def _efs(role: Role, source: str) -> dict[str, Any]:
    found = _EFS.fullmatch(source)
    if found is None:
        raise ConfigError(
            f"role {role.name!r}: the volume {source!r} must be an EFS file system, as "
            "src=fs-0123abcd, src=fs-0123abcd:/directory or src=fs-0123abcd@fsap-4567."
        )
    made: dict[str, Any] = {"fileSystemId": found["id"], "transitEncryption": "ENABLED"}
    if found["root"]:
        made["rootDirectory"] = found["root"]
    if found["point"]:
        made["authorizationConfig"] = {"accessPointId": found["point"], "iam": "ENABLED"}
    return made
