"""What a container's labels say: the only record of an app. Pure.

No value of the environment is in them: whoever may use the engine reads labels in every listing.
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx._schedulers.replicas.lifecycle_record import LifecycleRecord

APP = "phalanx.app"
SESSION = "phalanx.session"
USER = "phalanx.user"
NAME = "phalanx.name"
ROLE = "phalanx.role"
REPLICA = "phalanx.replica"
ATTEMPT = "phalanx.attempt"
LIFECYCLE = "phalanx.lifecycle"
ALIAS = "phalanx.alias"
GPUS = "phalanx.gpus"
LEASE = "phalanx.lease"
"""On containers that are hosts of a launch, and their network, instead of an app."""
FILLING = "phalanx.filling"
"""On a container that never runs, through which the app's volume is filled: its app."""
CANCELLED = "phalanx.cancelled"
"""On the volume that says that an app was cancelled: when."""


def container_name(base: str, attempt: int) -> str:
    """The name of a replica's container: each attempt has one of its own, with its logs."""
    return f"{base}-try{attempt + 1}" if attempt else base


def lifecycle_record(labels: Mapping[str, str]) -> LifecycleRecord | None:
    """What an app's containers say of it; None where it is not ours."""
    try:
        return LifecycleRecord.from_text(labels[LIFECYCLE])
    except (KeyError, ValueError, TypeError):
        return None
