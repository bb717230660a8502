"""What a container's labels say: the only record of an app. Pure.

No value of the environment is in them: whoever may use the engine reads labels in every listing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx._schedulers.supervised.lifecycle import RoleLifecycle
from phalanx._specs import RetryPolicy

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
SINCE = "phalanx.since"
CANCELLED = "phalanx.cancelled"
"""On the volume that says that an app was cancelled: when."""


@dataclass(frozen=True)
class LifecycleRecord:
    """What an app's end depends on; the same on each of its containers."""

    roles: tuple[RoleLifecycle, ...]
    stop_grace: float
    created: float
    """When it was submitted, in seconds since 1970."""

    def to_text(self) -> str:
        """As a label."""
        roles = [[r.name, r.replicas, r.max_retries, r.policy.value] for r in self.roles]
        return json.dumps({"roles": roles, "grace": self.stop_grace, "created": self.created})

    @classmethod
    def from_text(cls, text: str) -> LifecycleRecord:
        """From a label. Raises `ValueError`, `KeyError` or `TypeError` for another's."""
        known = json.loads(text)
        roles = tuple(
            RoleLifecycle(str(name), int(count), int(retries), RetryPolicy(policy))
            for name, count, retries, policy in known["roles"]
        )
        return cls(roles, float(known["grace"]), float(known["created"]))

    @property
    def num_replicas(self) -> int:
        """Of all roles."""
        return sum(role.replicas for role in self.roles)

    @property
    def needs_supervisor(self) -> bool:
        """Something is to be done when a container ends: others are stopped, or it starts again."""
        return self.num_replicas > 1 or any(role.max_retries for role in self.roles)


def container_name(base: str, attempt: int) -> str:
    """The name of a replica's container: each attempt has one of its own, with its logs."""
    return f"{base}-try{attempt + 1}" if attempt else base


def lifecycle_record(labels: Mapping[str, str]) -> LifecycleRecord | None:
    """What an app's containers say of it; None where it is not ours."""
    try:
        return LifecycleRecord.from_text(labels[LIFECYCLE])
    except (KeyError, ValueError, TypeError):
        return None
