"""What is submitted to the schedulers that run processes themselves: every replica, spelt out."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx.errors import ConfigError
from phalanx.schedulers.course import Part
from phalanx.specs import AppDef, RetryPolicy, Role
from phalanx.specs.substitution import Values

STREAMS = ("stdout", "stderr")


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

    @property
    def part(self) -> Part:
        """The role, as far as its course is concerned."""
        policy = RetryPolicy(self.retry_policy)
        return Part(self.name, len(self.replicas), self.max_retries, policy)


@dataclass(frozen=True)
class AppRequest:
    """An app, ready to be started."""

    app_id: str
    name: str
    scheduler: str
    session: str
    stop_grace: float
    roles: tuple[RoleRequest, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the scheduler needs besides."""

    @property
    def replicas(self) -> list[ReplicaRequest]:
        """All of them."""
        return [replica for role in self.roles for replica in role.replicas]

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
                        ReplicaRequest(**{**r, "argv": tuple(r["argv"])}) for r in role["replicas"]
                    ),
                }
            )
            for role in value["roles"]
        )
        return cls(**{**value, "roles": roles})


def make_id(name: str) -> str:
    """An id that nobody has had, and that fits everywhere."""
    word = re.sub(r"[^a-zA-Z0-9_]+", "-", name).strip("-_").lower()[:40].rstrip("-_") or "app"
    return f"{word}-{secrets.token_hex(4)}"


def check(app: AppDef) -> None:
    """Refuse an app that has nothing to run."""
    if not app.roles:
        raise ConfigError(f"the app {app.name!r} has no roles: there is nothing to run.")
    for role in app.roles:
        if not role.entrypoint:
            raise ConfigError(f"role {role.name!r} of {app.name!r} has no entrypoint.")


def replica_values(app_id: str, replica: int, root: str, rank0_env: str) -> Values:
    """What the macros stand for in one replica."""
    return Values(app_id=app_id, replica_id=str(replica), img_root=root, rank0_env=rank0_env)


def argv(role: Role, python: str) -> tuple[str, ...]:
    """The command of a role whose macros are replaced; `python` is the interpreter to use."""
    program = python if role.entrypoint in ("python", "python3") else role.entrypoint
    return program, *role.args
