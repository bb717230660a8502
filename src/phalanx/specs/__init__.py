"""What an app is and how it stands, as data. Pure, but for named resources, which plugins add to.

An `AppDef` is made of roles, a `Role` of replicas that run the same thing. All of it is frozen, is
checked when it is made, with errors that name the field, and goes through JSON unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx._core.lazy import loader
from phalanx._specs import (
    NULL_RESOURCE,
    AppDef,
    AppHandle,
    BindMount,
    CfgVal,
    DeviceMount,
    Resource,
    RetryPolicy,
    Role,
    VolumeMount,
    from_dict,
    from_json,
    from_yaml,
    get_named_resources,
    macros,
    named_resources,
    parse_mounts,
    resource,
    to_dict,
    to_json,
    to_yaml,
)

if TYPE_CHECKING:
    from phalanx._runner.builders import materialize_appdef
    from phalanx._runner.handles import ParsedAppHandle, make_app_handle, parse_app_handle
    from phalanx._schedulers.torchx.dryrun_info import AppDryRunInfo
    from phalanx._schedulers.torchx.runopts import runopt, runopts
    from phalanx._specs import (
        AppState,
        AppStatus,
        AppSummary,
        HostState,
        HostStatus,
        RankState,
        ReplicaState,
        ReplicaStatus,
        RoleStatus,
        RoundStatus,
        StepStatus,
        WorkerStatus,
        is_started,
        is_terminal,
    )
    from phalanx.errors import AppStatusError
    from phalanx.errors import UnknownApp as UnknownAppException

__all__ = [
    "NULL_RESOURCE",
    "AppDef",
    "AppDryRunInfo",
    "AppHandle",
    "AppState",
    "AppStatus",
    "AppStatusError",
    "AppSummary",
    "BindMount",
    "CfgVal",
    "DeviceMount",
    "HostState",
    "HostStatus",
    "ParsedAppHandle",
    "RankState",
    "ReplicaState",
    "ReplicaStatus",
    "Resource",
    "RetryPolicy",
    "Role",
    "RoleStatus",
    "RoundStatus",
    "StepStatus",
    "UnknownAppException",
    "VolumeMount",
    "WorkerStatus",
    "from_dict",
    "from_json",
    "from_yaml",
    "get_named_resources",
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
    "ReplicaState",
    "ReplicaStatus",
    "RoleStatus",
    "RoundStatus",
    "StepStatus",
    "WorkerStatus",
    "is_started",
    "is_terminal",
)
_LATER = {
    **dict.fromkeys(_OF_STATUS, "phalanx._specs"),
    "AppDryRunInfo": "phalanx._schedulers.torchx.dryrun_info",
    "AppStatusError": "phalanx.errors",
    "ParsedAppHandle": "phalanx._runner.handles",
    "UnknownAppException": "phalanx.errors:UnknownApp",
    "make_app_handle": "phalanx._runner.handles",
    "materialize_appdef": "phalanx._runner.builders",
    "parse_app_handle": "phalanx._runner.handles",
    "runopt": "phalanx._schedulers.torchx.runopts",
    "runopts": "phalanx._schedulers.torchx.runopts",
}

_ABSENT = {
    "ALL": "name the roles",
    "AWS_NAMED_RESOURCES": "use phalanx.specs.named_resources",
    "GENERIC_NAMED_RESOURCES": "use phalanx.specs.named_resources",
    "GiB": "write 1024 (megabytes)",
    "InvalidRunConfigException": "catch phalanx.ConfigError",
    "MISSING": "use '' or None for what is not given",
    "MalformedAppHandleException": "catch phalanx.ConfigError",
    "MountType": "use the classes BindMount, VolumeMount and DeviceMount",
    "NONE": "use '' or None for what is not given",
    "UnknownSchedulerException": "catch phalanx.UnknownScheduler",
    "Workspace": "use a role's workspace, the path of a directory",
    "get_type_name": "use the __name__ of the type",
}
"""Names of TorchX's that are missing here, and what to use instead."""

__getattr__ = loader(__name__, _LATER, _ABSENT)


def __dir__() -> list[str]:
    return sorted(__all__)
