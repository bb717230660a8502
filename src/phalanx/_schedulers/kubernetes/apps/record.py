"""What an app is, as its Service's annotation says it. Pure.

No value of the environment is in it: whoever may read services reads annotations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx._core.json_text import parse_json
from phalanx._schedulers.kubernetes import names
from phalanx._schedulers.replicas.lifecycle import RoleLifecycle
from phalanx._schedulers.replicas.lifecycle_record import LifecycleRecord
from phalanx._specs import RetryPolicy


@dataclass(frozen=True)
class RoleAnnotation:
    """A role."""

    name: str
    word: str
    """What its objects are called by."""
    replicas: int
    max_retries: int
    policy: RetryPolicy
    is_indexed: bool
    """It is one Indexed Job; otherwise each replica has a Job."""

    @property
    def is_retried_by_cluster(self) -> bool:
        """The Job itself starts what fails again."""
        return self.policy is RetryPolicy.REPLICA

    @property
    def lifecycle(self) -> RoleLifecycle:
        """What is left to do for us."""
        retries = 0 if self.is_retried_by_cluster else self.max_retries
        return RoleLifecycle(self.name, self.replicas, retries, self.policy)


@dataclass(frozen=True)
class AppAnnotation:
    """An app."""

    name: str
    """As the user calls it."""
    session: str
    user: str
    created: float
    """Seconds since 1970."""
    stop_grace: float
    ttl: float | None
    roles: tuple[RoleAnnotation, ...]

    def to_text(self) -> str:
        """As an annotation."""
        roles = [
            [r.name, r.word, r.replicas, r.max_retries, r.policy.value, r.is_indexed]
            for r in self.roles
        ]
        return json.dumps(
            {
                "name": self.name,
                "session": self.session,
                "user": self.user,
                "created": self.created,
                "grace": self.stop_grace,
                "ttl": self.ttl,
                "roles": roles,
            }
        )

    @classmethod
    def of(cls, service: Mapping[str, Any]) -> AppAnnotation | None:
        """From a Service; None for one that is not an app of ours."""
        try:
            known = parse_json(service["metadata"]["annotations"][names.RECORD])
            roles = tuple(
                RoleAnnotation(
                    str(name), str(word), int(count), int(retries), RetryPolicy(policy), is_indexed
                )
                for name, word, count, retries, policy, is_indexed in known["roles"]
            )
            ttl = None if known["ttl"] is None else float(known["ttl"])
            return cls(
                str(known["name"]),
                str(known["session"]),
                str(known["user"]),
                float(known["created"]),
                float(known["grace"]),
                ttl,
                roles,
            )
        except (KeyError, ValueError, TypeError):
            return None

    @property
    def lifecycle_record(self) -> LifecycleRecord:
        """What its end depends on."""
        parts = tuple(role.lifecycle for role in self.roles)
        return LifecycleRecord(parts, self.stop_grace, self.created)

    @property
    def needs_supervisor(self) -> bool:
        """Something is to be done by us when a Job ends: others are stopped, or it starts again."""
        num_jobs = sum(1 if role.is_indexed else role.replicas for role in self.roles)
        return num_jobs > 1 or any(role.lifecycle.max_retries for role in self.roles)
