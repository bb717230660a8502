"""What is submitted to the schedulers that run processes themselves: every replica in full."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx._core.lazy import attribute_hints
from phalanx._schedulers.replicas.lifecycle import RoleLifecycle
from phalanx._specs import AppDef, RetryPolicy

STREAMS = ("stdout", "stderr")
ROLE = "PHALANX_ROLE"
"""The variable in which a replica finds its role."""
RANK0_PORT = "PHALANX_RANK0_PORT"
"""The variable in which replicas find a port of the first one's host that is free to meet at."""


def times_file(directory: Path, role: str, replica: int, stream: str) -> Path:
    """Where, below an app's directory, the times of a replica's lines are."""
    return directory / "times" / f"{role}-{replica}-{stream}"


@dataclass(frozen=True)
class ReplicaRequest:
    """One process to start."""

    role: str
    id: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """What is set on top of the environment that it finds."""
    cwd: str
    hostname: str
    gpus: int
    logs: Mapping[str, str]
    """The file of each stream."""
    script: str | None = None
    """The Python file that it runs, relative to `cwd`, where it must be there."""
    files: tuple[str, ...] = ()
    """What is sent to its host of a `cwd` that is nobody's project."""

    @property
    def key(self) -> tuple[str, int]:
        """Its role, and its number in it."""
        return self.role, self.id

    @property
    def error_file(self) -> str:
        """Where what it has reported as its error is, in torch's format."""
        return os.path.join(os.path.dirname(self.logs["stdout"]), "error.json")


@dataclass(frozen=True)
class RoleRequest:
    """The replicas of one role, and what happens when one fails."""

    name: str
    max_retries: int
    retry_policy: str
    replicas: tuple[ReplicaRequest, ...]
    min_replicas: int | None = None

    @property
    def part(self) -> RoleLifecycle:
        """The role, as far as its lifecycle is concerned."""
        policy = RetryPolicy(self.retry_policy)
        count, least = len(self.replicas), self.min_replicas
        return RoleLifecycle(self.name, count, self.max_retries, policy, least)


@dataclass(frozen=True)
class AppRequest:
    """An app, ready to be started."""

    app_id: str
    name: str
    scheduler: str
    session: str
    starter: str
    """`module:class` of who starts the replicas."""
    stop_grace: float
    roles: tuple[RoleRequest, ...]
    starter_options: Mapping[str, Any] = field(default_factory=dict)
    """What it needs besides."""

    if not TYPE_CHECKING:  # its fields are known
        __getattr__ = attribute_hints(
            {
                "log_dir": "replicas[0].logs has the files of its streams",
                "role_log_dirs": "replicas have logs, the files of their streams",
                "role_params": "replicas have argv, env, cwd and logs: "
                "[r for r in request.replicas if r.role == 'trainer']",
            }
        )

    @property
    def replicas(self) -> list[ReplicaRequest]:
        """All of them."""
        return [replica for role in self.roles for replica in role.replicas]

    @classmethod
    def roles_of(cls, app: AppDef, replicas: Iterable[ReplicaRequest]) -> tuple[RoleRequest, ...]:
        """An app's replicas by role, with what its roles say of failures."""
        found: dict[str, list[ReplicaRequest]] = {}
        for replica in replicas:
            found.setdefault(replica.role, []).append(replica)
        return tuple(
            RoleRequest(
                role.name,
                role.max_retries,
                role.retry_policy.value,
                tuple(found[role.name]),
                role.min_replicas,
            )
            for role in app.roles
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> AppRequest:
        """From what `to_dict` gave."""
        roles = tuple(
            RoleRequest(
                **{
                    **role,
                    "replicas": tuple(
                        ReplicaRequest(
                            **{**r, "argv": tuple(r["argv"]), "files": tuple(r.get("files", ()))}
                        )
                        for r in role["replicas"]
                    ),
                }
            )
            for role in value["roles"]
        )
        return cls(**{**value, "roles": roles})


def with_python(argv: tuple[str, ...], python: str) -> tuple[str, ...]:
    """A command in which `python` is the interpreter that is meant."""
    return (python, *argv[1:]) if argv[0] in ("python", "python3") else argv
