"""TorchX's interface of schedulers."""

from phalanx.compat.torchx.specs.api import (
    NONE,
    NULL_RESOURCE,
    AppDef,
    AppDryRunInfo,
    AppState,
    Role,
    RoleStatus,
    runopts,
)
from phalanx.schedulers.api import (
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    Stream,
    filter_regex,
    split_lines,
    split_lines_iterator,
)

__all__ = [
    "NONE",
    "NULL_RESOURCE",
    "AppDef",
    "AppDryRunInfo",
    "AppState",
    "DescribeAppResponse",
    "ListAppResponse",
    "Role",
    "RoleStatus",
    "Scheduler",
    "Stream",
    "filter_regex",
    "runopts",
    "split_lines",
    "split_lines_iterator",
]
