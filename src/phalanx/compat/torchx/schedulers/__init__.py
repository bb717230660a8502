"""TorchX's `schedulers`."""

from __future__ import annotations

from typing import Any, Protocol

from phalanx._core.lazy import loader
from phalanx._schedulers import factories
from phalanx._schedulers.factories import default_scheduler as get_default_scheduler_name
from phalanx._schedulers.torchx.interface import TorchxScheduler as Scheduler
from phalanx.compat.torchx import absent_in
from phalanx.compat.torchx.schedulers._wrapped import wrapped

__all__ = [
    "Scheduler",
    "SchedulerFactory",
    "get_default_scheduler_name",
    "get_scheduler_factories",
]


class SchedulerFactory(Protocol):
    """What creates a scheduler."""

    def __call__(self, session_name: str, **kwargs: Any) -> Any:
        """Create one.

        Args:
            session_name: The middle part of handles.
            **kwargs: The scheduler's own.
        """


def get_scheduler_factories() -> dict[str, SchedulerFactory]:
    """What creates each scheduler, by name."""
    found = factories.get_scheduler_factories()
    return {name: wrapped(name, factory) for name, factory in found.items()}


__getattr__ = loader(
    __name__,
    {},
    {
        **absent_in("schedulers"),
        "DEFAULT_SCHEDULER_MODULES": "use get_scheduler_factories()",
        "get_schedulers": "use get_scheduler_factories()",
    },
)
