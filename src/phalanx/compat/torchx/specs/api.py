"""TorchX's specs: those of ours that may be changed, and its other names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, ParamSpec

from phalanx._core.lazy import loader
from phalanx._runner.handles import ParsedAppHandle, make_app_handle, parse_app_handle
from phalanx._schedulers.torchx.dryrun_info import AppDryRunInfo
from phalanx._schedulers.torchx.interface import NONE
from phalanx._schedulers.torchx.runopts import runopt, runopts
from phalanx._specs import (
    AppDef as FrozenAppDef,
)
from phalanx._specs import (
    AppHandle,
    AppState,
    BindMount,
    CfgVal,
    DeviceMount,
    ReplicaState,
    RetryPolicy,
    RoleStatus,
    VolumeMount,
    is_started,
    is_terminal,
)
from phalanx._specs.mutable import MutableAppDef as AppDef
from phalanx._specs.mutable import MutableResource as Resource
from phalanx._specs.mutable import MutableRole, thawed
from phalanx._specs.status import AppStatus as OurAppStatus
from phalanx._specs.status import ReplicaStatus as OurReplicaStatus
from phalanx._specs.substitution import Values
from phalanx._specs.substitution import macros as our_macros
from phalanx.errors import AppStatusError
from phalanx.errors import ConfigError as InvalidRunConfigException
from phalanx.errors import ConfigError as MalformedAppHandleException
from phalanx.errors import UnknownApp as UnknownAppException
from phalanx.errors import UnknownScheduler as UnknownSchedulerException

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
    "get_type_name",
    "is_started",
    "is_terminal",
    "macros",
    "make_app_handle",
    "parse_app_handle",
    "runopt",
    "runopts",
]

ALL = "all"
MISSING = ""
"""What an entrypoint is that is not given."""

NULL_RESOURCE = Resource(cpu=-1, gpu=-1, memMB=-1)
"""A resource of which nothing is specified."""

_TERMINAL_STATES = [state for state in AppState if state.is_final]
_BEFORE_RESOURCE = 9
"""Fields of a role before its resource."""

P = ParamSpec("P")


class Role(MutableRole):
    """A role that may be changed; one without a resource has none specified."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As ours.

        Args:
            *args: The fields, in their order.
            **kwargs: The fields, by name.
        """
        if len(args) <= _BEFORE_RESOURCE:
            kwargs.setdefault("resource", Resource(cpu=-1, gpu=-1, memMB=-1))
        super().__init__(*args, **kwargs)


@dataclass(frozen=True)
class _Values(Values):
    base_img_root: str = ""


class macros(our_macros):  # noqa: N801 TorchX's name
    """The macros, to be written into arguments, environment values and metadata."""

    base_img_root: ClassVar[str] = "${base_img_root}"

    Values = _Values


class MountType(StrEnum):
    """The kinds of mount."""

    BIND = "bind"
    VOLUME = "volume"
    DEVICE = "device"


class ReplicaStatus(OurReplicaStatus):
    """One replica, made as TorchX makes it."""

    def __init__(
        self,
        id: int,  # noqa: A002 TorchX's name
        state: AppState,
        role: str,
        hostname: str = "",
        structured_error_msg: str = NONE,
    ) -> None:
        """Keep what is told.

        Args:
            id: Its number in the role.
            state: Where it stands.
            role: The role's name.
            hostname: Where it runs.
            structured_error_msg: What went wrong.
        """
        error = "" if structured_error_msg == NONE else structured_error_msg
        super().__init__(id=id, role=role, state=state, hostname=hostname, error=error)


class AppStatus(OurAppStatus):
    """An app at one moment, made as TorchX makes it."""

    def __init__(
        self,
        state: AppState,
        num_restarts: int = 0,
        msg: str = "",
        structured_error_msg: str = NONE,
        ui_url: str | None = None,
        roles: Collection[RoleStatus] = (),
    ) -> None:
        """Keep what is told.

        Args:
            state: Where it stands.
            num_restarts: How often it was started anew.
            msg: What went wrong, or is waited for.
            structured_error_msg: The first error.
            ui_url: Where a browser shows it.
            roles: Its replicas.
        """
        told = msg or ("" if structured_error_msg == NONE else structured_error_msg)
        super().__init__(
            app="job",
            state=state,
            message=told,
            num_restarts=num_restarts,
            ui_url=ui_url,
            roles=tuple(roles),
        )


def get_type_name(tp: Any) -> str:
    """The name of a type, as it is written.

    Args:
        tp: The type.
    """
    is_plain = isinstance(tp, type) and not getattr(tp, "__args__", None)
    return str(tp.__name__) if is_plain else str(tp)


def thawing(function: Callable[P, FrozenAppDef], module: str = "") -> Callable[P, AppDef]:
    """A component whose apps may be changed.

    Args:
        function: The component.
        module: The module that it is a component of; by default its own.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> AppDef:
        return thawed(function(*args, **kwargs))

    call.__module__ = module or function.__module__
    return call


__getattr__ = loader(__name__, {}, {"Workspace": "use a role's workspace, the path of a directory"})
