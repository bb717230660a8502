"""What an app is and how it stands, as data. Pure, but for named resources, which plugins add to.

An `AppDef` is made of roles, a `Role` of replicas that run the same thing. All of it is frozen, is
checked when it is made, with errors that name the field, and goes through JSON unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx._core.lazy import loader
from phalanx._specs.app_def import NULL_RESOURCE, AppDef, Resource, RetryPolicy, Role
from phalanx._specs.mounts import BindMount, DeviceMount, VolumeMount, parse_mounts
from phalanx._specs.resources import get_named_resources, named_resources, resource
from phalanx._specs.serialization import from_dict, from_json, from_yaml, to_dict, to_json, to_yaml
from phalanx._specs.substitution import macros

if TYPE_CHECKING:
    from phalanx._specs.status import (
        AppState,
        AppStatus,
        AppSummary,
        HostState,
        HostStatus,
        RankState,
        ReplicaStatus,
        RoleStatus,
        RoundStatus,
        StepStatus,
        WorkerStatus,
        is_started,
        is_terminal,
    )
    from phalanx._specs.status import AppState as ReplicaState

AppHandle = str
"""What names an app to everybody: `{scheduler}://{session}/{app_id}`."""

CfgVal = str | int | float | bool | list[str] | dict[str, str] | None
"""What a scheduler's option may be."""


__all__ = [
    "NULL_RESOURCE",
    "AppDef",
    "AppHandle",
    "AppState",
    "AppStatus",
    "AppSummary",
    "BindMount",
    "CfgVal",
    "DeviceMount",
    "HostState",
    "HostStatus",
    "RankState",
    "ReplicaState",
    "ReplicaStatus",
    "Resource",
    "RetryPolicy",
    "Role",
    "RoleStatus",
    "RoundStatus",
    "StepStatus",
    "VolumeMount",
    "WorkerStatus",
    "from_dict",
    "from_json",
    "from_yaml",
    "get_named_resources",
    "is_started",
    "is_terminal",
    "macros",
    "named_resources",
    "parse_mounts",
    "resource",
    "to_dict",
    "to_json",
    "to_yaml",
]

_OF_STATUS = (
    "AppState",
    "AppStatus",
    "AppSummary",
    "HostState",
    "HostStatus",
    "RankState",
    "ReplicaStatus",
    "RoleStatus",
    "RoundStatus",
    "StepStatus",
    "WorkerStatus",
    "is_started",
    "is_terminal",
)
"""Not loaded by who only makes apps."""

__getattr__ = loader(
    __name__,
    {
        **dict.fromkeys(_OF_STATUS, "phalanx._specs.status"),
        "ReplicaState": "phalanx._specs.status:AppState",
    },
)
