"""Schedulers: one interface, one module for each, and what plugins add.

A scheduler takes an app and gives an id; from the id alone, perhaps in another process, it tells
how the app stands, what it has printed, and ends it. `phalanx.testing.SchedulerSuite` is what each
must pass.
"""

from phalanx._schedulers.scheduler import (
    Capabilities,
    Lease,
    LeasePhase,
    LeaseRequest,
    LeaseStatus,
    LentHost,
    LogLine,
    Scheduler,
    Stream,
    create_scheduler,
    default_scheduler,
    get_scheduler_factories,
    make_app_id,
    need,
    option,
    replicas,
    workspace_files,
)

__all__ = [
    "Capabilities",
    "Lease",
    "LeasePhase",
    "LeaseRequest",
    "LeaseStatus",
    "LentHost",
    "LogLine",
    "Scheduler",
    "Stream",
    "create_scheduler",
    "default_scheduler",
    "get_scheduler_factories",
    "make_app_id",
    "need",
    "option",
    "replicas",
    "workspace_files",
]
