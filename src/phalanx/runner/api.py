"""The names of `phalanx.runner`, in the module where TorchX has them."""

from phalanx._core.lazy import loader
from phalanx._logs.lines import Stream
from phalanx._runner.runner import AppDryRunInfo, Runner, get_runner

__all__ = ["AppDryRunInfo", "Runner", "Stream", "get_runner"]

__getattr__ = loader(
    __name__,
    {},
    {"get_configured_trackers": "set what a tracker needs in a role's env"},
)
