"""TorchX's `specs`."""

from __future__ import annotations

from phalanx._specs import get_named_resources as _get_named_resources
from phalanx._specs import resource as _resource
from phalanx._specs.mutable import thawed_resource as _thawed
from phalanx._specs.resources import NamedResources as _NamedResources
from phalanx.compat.torchx.specs.api import (
    ALL,
    MISSING,
    NONE,
    NULL_RESOURCE,
    AppDef,
    AppDryRunInfo,
    AppHandle,
    AppState,
    AppStatus,
    AppStatusError,
    BindMount,
    CfgVal,
    DeviceMount,
    InvalidRunConfigException,
    MalformedAppHandleException,
    MountType,
    ParsedAppHandle,
    ReplicaState,
    ReplicaStatus,
    Resource,
    RetryPolicy,
    Role,
    RoleStatus,
    UnknownAppException,
    UnknownSchedulerException,
    VolumeMount,
    get_type_name,
    is_started,
    is_terminal,
    macros,
    make_app_handle,
    parse_app_handle,
    runopt,
    runopts,
)
from phalanx.compat.torchx.specs.builders import materialize_appdef, parse_mounts

GiB = 1024
"""Megabytes."""

__all__ = [
    "ALL",
    "MISSING",
    "NONE",
    "NULL_RESOURCE",
    "AppDef",
    "AppDryRunInfo",
    "AppHandle",
    "AppState",
    "AppStatus",
    "AppStatusError",
    "BindMount",
    "CfgVal",
    "DeviceMount",
    "GiB",
    "InvalidRunConfigException",
    "MalformedAppHandleException",
    "MountType",
    "ParsedAppHandle",
    "ReplicaState",
    "ReplicaStatus",
    "Resource",
    "RetryPolicy",
    "Role",
    "RoleStatus",
    "UnknownAppException",
    "UnknownSchedulerException",
    "VolumeMount",
    "get_named_resources",
    "get_type_name",
    "is_started",
    "is_terminal",
    "macros",
    "make_app_handle",
    "materialize_appdef",
    "named_resources",
    "parse_app_handle",
    "parse_mounts",
    "resource",
    "runopt",
    "runopts",
]


class _Library(_NamedResources):
    def __getitem__(self, name: str) -> Resource:
        """A resource that may be changed."""
        if name in ("NULL", "MISSING"):
            return _thawed(NULL_RESOURCE)
        return _thawed(super().__getitem__(name))

    def __contains__(self, name: object) -> bool:
        return name in ("NULL", "MISSING") or super().__contains__(name)


named_resources = _Library()
"""All named resources."""


def resource(
    cpu: int | None = None,
    gpu: int | None = None,
    memMB: int | None = None,  # noqa: N803 TorchX's name
    h: str | None = None,
) -> Resource:
    """A resource by its parts, or by name.

    Args:
        cpu: Processors; by default 2.
        gpu: GPUs; by default 0.
        memMB: Megabytes of memory; by default 1024.
        h: The name of a resource, which wins over the parts.
    """
    return _thawed(_resource(cpu, gpu, memMB, h))


def get_named_resources(res: str) -> Resource:
    """A resource by its name.

    Args:
        res: The name.
    """
    return _thawed(_get_named_resources(res))
