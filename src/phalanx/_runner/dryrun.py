"""What is put into an app, and what is refused, before it is submitted."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from phalanx._logs import logger
from phalanx._schedulers.authoring import workspace_of
from phalanx._schedulers.scheduler import Capabilities, Scheduler
from phalanx._specs import AppDef, Role
from phalanx._specs.app_def import SCRIPT
from phalanx.errors import ConfigError

_MOST_REPLICAS = 100_000
"""More than that are a mistake in a number, which would take all memory to spell out."""


def prepare(
    app: AppDef, env: Mapping[str, str], workspace: str | None, capabilities: Capabilities
) -> AppDef:
    """An app as a scheduler is given it: with variables of ours, and directories where it takes
    some. Raises `ConfigError`.
    """
    roles = [dataclasses.replace(role, env={**env, **role.env}) for role in app.roles]
    if capabilities.workspace:
        images = capabilities.runs_images
        roles = [with_workspace(role, workspace, runs_images=images) for role in roles]
    return dataclasses.replace(app, roles=roles)


def with_workspace(role: Role, workspace: str | None, *, runs_images: bool) -> Role:
    """A role with the directory whose files it runs with. Raises `ConfigError`.

    Where roles run in images it may have none: "" says so, and of a home directory nobody means to
    have a copy in an image unless it is named.
    """
    if runs_images and not role.workspace:
        if workspace == "":
            return role
        from phalanx._launcher.project.project_files import is_too_wide

        if workspace is None and is_too_wide(current := workspace_of(role)):
            script = role.metadata.get(SCRIPT)
            here = isinstance(script, str) and os.path.exists(os.path.join(current, script))
            logger.warning(
                "phalanx: role %r runs its image as it is%s: %s is not taken for a project. To "
                "copy a directory into the image, name it as the workspace",
                role.name,
                f" and {script} is not copied" if here else "",
                current,
            )
            return role
    directory = workspace_of(dataclasses.replace(role, workspace=role.workspace or workspace))
    if not os.path.isdir(directory):
        raise ConfigError(f"workspace {directory}: no such directory.")
    return dataclasses.replace(role, workspace=directory)


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
        if role.mounts and can.host_files:
            logger.warning(
                "phalanx: %s mounts nothing: role %r sees the files of its host as they are",
                name,
                role.name,
            )
        elif role.mounts and not can.mounts:
            raise ConfigError(f"{name} does not support mounts; role {role.name!r} has some.")
        if role.max_retries and role.retry_policy not in can.retry_policies:
            known = ", ".join(sorted(p.value for p in can.retry_policies)) or "none"
            raise ConfigError(
                f"{name} does not support the retry policy {role.retry_policy.value} of role "
                f"{role.name!r}; it supports {known}."
            )
