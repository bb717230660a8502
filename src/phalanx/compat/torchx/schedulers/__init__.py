"""TorchX's `schedulers`."""

from phalanx._schedulers.factories import default_scheduler as get_default_scheduler_name
from phalanx._schedulers.factories import get_scheduler_factories
from phalanx._schedulers.torchx_interface import TorchxScheduler as Scheduler

__all__ = ["Scheduler", "get_default_scheduler_name", "get_scheduler_factories"]
