"""What an app's end depends on, as it is written down where its containers are. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from phalanx._core.json_text import parse_json
from phalanx._schedulers.replicas.lifecycle import RoleLifecycle
from phalanx._specs import RetryPolicy


@dataclass(frozen=True)
class LifecycleRecord:
    """What an app's end depends on; the same on each of its containers."""

    roles: tuple[RoleLifecycle, ...]
    stop_grace: float
    created: float
    """When it was submitted, in seconds since 1970."""

    def to_text(self) -> str:
        """As a label or annotation."""
        roles = [[r.name, r.replicas, r.max_retries, r.policy.value] for r in self.roles]
        return json.dumps({"roles": roles, "grace": self.stop_grace, "created": self.created})

    @classmethod
    def from_text(cls, text: str) -> LifecycleRecord:
        """From one. Raises `ValueError`, `KeyError` or `TypeError` for another's."""
        known = parse_json(text)
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
