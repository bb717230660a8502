"""Schedulers: one interface, one module for each, and what plugins add.

A scheduler takes an app and gives an id; from the id alone, perhaps in another process, it tells
how the app stands, what it has printed, and ends it. `phalanx.testing.SchedulerSuite` is what each
must pass.
"""

from phalanx._core.lazy import loader
from phalanx._schedulers.factories import (
    create_scheduler,
    default_scheduler,
    get_scheduler_factories,
)
from phalanx._schedulers.leases import (
    GroupCommand,
    Lease,
    LeasePhase,
    LeaseRequest,
    LeaseStatus,
    LentHost,
)
from phalanx._schedulers.scheduler import (
    Capabilities,
    LogLine,
    Scheduler,
    Stream,
    make_app_id,
    need,
    option,
    replicas,
    workspace_files,
)
from phalanx._schedulers.torchx.interface import TorchxScheduler

__all__ = [
    "Capabilities",
    "GroupCommand",
    "Lease",
    "LeasePhase",
    "LeaseRequest",
    "LeaseStatus",
    "LentHost",
    "LogLine",
    "Scheduler",
    "Stream",
    "TorchxScheduler",
    "create_scheduler",
    "default_scheduler",
    "get_scheduler_factories",
    "make_app_id",
    "need",
    "option",
    "replicas",
    "workspace_files",
]

__getattr__ = loader(
    __name__,
    {},
    {
        "DEFAULT_SCHEDULER_MODULES": "use get_scheduler_factories()",
        "SchedulerFactory": "use a function of a session's name",
        "get_default_scheduler_name": "use default_scheduler()",
        "get_schedulers": "use get_scheduler_factories()",
        **{
            f"{name}_scheduler": "use create_scheduler(NAME, SESSION); TorchX's module is "
            f"phalanx.compat.torchx.schedulers.{name}_scheduler"
            for name in ("aws_batch", "docker", "kubernetes", "local", "ray", "slurm")
        },
    },
)
