"""The names of `phalanx.runner`, in the module where TorchX has them."""

from phalanx._core.lazy import loader
from phalanx._logs.lines import Stream
from phalanx._runner.builders import materialize_appdef
from phalanx._runner.handles import make_app_handle, parse_app_handle
from phalanx._runner.runner import AppDryRunInfo, Runner, get_runner
from phalanx._specs import AppDef, AppHandle, AppStatus, CfgVal
from phalanx.errors import UnknownApp as UnknownAppException

__all__ = [
    "AppDef",
    "AppDryRunInfo",
    "AppHandle",
    "AppStatus",
    "CfgVal",
    "Runner",
    "Stream",
    "UnknownAppException",
    "get_runner",
    "make_app_handle",
    "materialize_appdef",
    "parse_app_handle",
]

__getattr__ = loader(
    __name__,
    {},
    {"get_configured_trackers": "set what a tracker needs in a role's env"},
)
