"""What would be submitted, and what is refused before it is."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx._schedulers.authoring import workspace_of
from phalanx._schedulers.scheduler import Scheduler
from phalanx._specs import AppDef, Role, serialization
from phalanx.errors import ConfigError

_MOST_REPLICAS = 100_000
"""More than that are a mistake in a number, which would take all memory to spell out."""


@dataclass(frozen=True)
class AppDryRunInfo:
    """What would be submitted."""

    app: AppDef
    """The app, as the scheduler gets it."""
    scheduler: str
    """The scheduler's name."""
    cfg: Any
    """The scheduler's options."""
    request: Any
    """What the scheduler itself makes of it."""

    def __str__(self) -> str:
        """The app and the exact request."""
        app = json.dumps(serialization.to_dict(self.app), indent=2)
        request = shown(self.request)
        return f"=== APPLICATION ===\n{app}\n\n=== SCHEDULER REQUEST ===\n{request}"


def shown(request: Any) -> str:
    """A request as it is printed: as its own text, such as a script's, where its class has one."""
    if dataclasses.is_dataclass(request) and type(request).__str__ is not object.__str__:
        return str(request).rstrip("\n")
    return json.dumps(plain(request), indent=2, default=str)


def with_workspace(role: Role, workspace: str | None) -> Role:
    """A role with the directory whose files it runs with. Raises `ConfigError`."""
    place = workspace_of(dataclasses.replace(role, workspace=role.workspace or workspace))
    if not os.path.isdir(place):
        raise ConfigError(f"workspace {place}: no such directory.")
    return dataclasses.replace(role, workspace=place)


def check_capabilities(
    name: str, scheduler: Scheduler[Any, Any], app: AppDef, workspace: str | None
) -> None:
    """Refuse what a scheduler would otherwise have to ignore."""
    can = scheduler.capabilities
    if not can.workspace and (workspace or any(role.workspace for role in app.roles)):
        raise ConfigError(f"{name} runs what is in the image and takes no workspace.")
    if len(app.roles) > 1 and not can.several_roles:
        raise ConfigError(f"{name} supports one role per app; {app.name!r} has {len(app.roles)}.")
    for role in app.roles:
        if role.num_replicas > _MOST_REPLICAS:
            raise ConfigError(
                f"role {role.name!r} has {role.num_replicas} replicas; the maximum is "
                f"{_MOST_REPLICAS}."
            )
        if role.mounts and not can.mounts:
            raise ConfigError(f"{name} does not support mounts; role {role.name!r} has some.")
        if role.max_retries and role.retry_policy not in can.retry_policies:
            known = ", ".join(sorted(p.value for p in can.retry_policies)) or "none"
            raise ConfigError(
                f"{name} does not support the retry policy {role.retry_policy.value} of role "
                f"{role.name!r}; it supports {known}."
            )


def plain(value: Any) -> Any:
    """A request or options, as far as JSON can show them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return value
