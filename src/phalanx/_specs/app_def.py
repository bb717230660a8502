"""Apps and roles: what is to run, how often, on what."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from phalanx._core.environment import not_a_name
from phalanx._specs.frozen import explained, freeze_field
from phalanx._specs.mounts import BindMount, DeviceMount, VolumeMount
from phalanx.errors import ConfigError

SCRIPT = "script"
"""The key of a role's metadata that names the Python file it runs, relative to its workspace."""
MODULE = "module"
"""The key of a role's metadata that names the module that it runs instead."""
HOSTS = "phalanx/hosts"
"""The key of a role's metadata that says how many hosts each replica has; it runs on the first."""
_LONGEST = 200
"""Bytes of a role's name, which becomes a file's."""


UNSPECIFIED = -1
"""What a part of a resource is when nothing is said of it."""
_NUMBERS: tuple[tuple[str, Any, str], ...] = (
    ("cpu", int | float, "a number, 0 or more"),
    ("gpu", int, "a whole number, 0 or more"),
    ("memMB", int, "a whole number, 0 or more"),
)


class RetryPolicy(Enum):
    """What is started again when a replica fails."""

    REPLICA = "REPLICA"
    """That replica."""
    ROLE = "ROLE"
    """All replicas of its role."""
    APPLICATION = "APPLICATION"
    """All replicas of all roles."""


@explained()
@dataclass(frozen=True)
class Resource:
    """What a replica needs: processors, GPUs, megabytes of memory; -1 for what is not specified."""

    cpu: int | float
    """Processors."""
    gpu: int
    """GPUs."""
    memMB: int  # noqa: N815 the name that users know
    """Megabytes of memory."""
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    """What only some schedulers understand, such as an instance type."""
    devices: Mapping[str, int] = field(default_factory=dict)
    """Other devices, by name."""
    tags: Mapping[str, Any] = field(default_factory=dict)
    """What else is to be said of it, for schedulers and plugins."""

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        for name in ("capabilities", "devices", "tags"):
            _check(self, name, Mapping, "a dict")
            _check_plain(getattr(self, name), f"Resource.{name}")
        for name in ("capabilities", "devices", "tags"):
            freeze_field(self, name)
        for name, kind, what in _NUMBERS:
            _check(self, name, kind, what, least=0 if getattr(self, name) != UNSPECIFIED else -1)

    @staticmethod
    def copy(original: Resource, **capabilities: Any) -> Resource:
        """The same resource with more capabilities.

        Args:
            original: The resource.
            **capabilities: What to add, or to replace.
        """
        merged = {**original.capabilities, **capabilities}
        return dataclasses.replace(original, capabilities=merged)


@explained(
    args="role.with_args('--flag')",
    env="role.with_env({'KEY': 'value'})",
    mounts="role.with_mounts(…)",
    metadata="role.with_metadata({'key': …})",
)
@dataclass(frozen=True)
class Role:
    """Replicas that run the same thing."""

    name: str
    """Its name, different from that of the app's other roles."""
    image: str = ""
    """The container's image, or whatever else a scheduler takes for one; local ones need none."""
    min_replicas: int | None = None
    """The least that the role can do with, if that is fewer than all: where hosts are lost, or for
    schedulers that start as many as they can."""
    entrypoint: str = ""
    """The program; `python` is the interpreter that is meant where it runs."""
    args: Sequence[str] = ()
    """The program's arguments; macros such as `${replica_id}` are replaced."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables; macros are replaced in their values."""
    num_replicas: int = 1
    """How many run."""
    max_retries: int = 0
    """How often it is started again when a replica fails."""
    retry_policy: RetryPolicy = RetryPolicy.APPLICATION
    """What is started again then."""
    resource: Resource = field(default_factory=lambda: NULL_RESOURCE)
    """What each replica needs; by default nothing is specified, and none is asked for."""
    port_map: Mapping[str, int] = field(default_factory=dict)
    """Ports by name, for schedulers that map them."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What only some schedulers understand."""
    mounts: Sequence[BindMount | VolumeMount | DeviceMount] = ()
    """What replicas find in their filesystem."""
    workspace: str | None = None
    """The directory whose files it runs with; by default the one that it is submitted from."""

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        _check_name(self)
        where = f"role {self.name!r}: "
        for name in ("image", "entrypoint"):
            if not _is_text(getattr(self, name)):
                raise ConfigError(f"{where}{name}: {getattr(self, name)!r} is not a string.")
        _check(self, "num_replicas", int, "a whole number, 1 or more", where, least=1)
        _check(self, "max_retries", int, "a whole number, 0 or more", where, least=0)
        _check(self, "retry_policy", RetryPolicy, "a RetryPolicy", where)
        _check(self, "resource", Resource, "a Resource", where)
        if self.min_replicas is not None:
            _check(self, "min_replicas", int, "a whole number, 1 or more", where, least=1)
            if self.min_replicas > self.num_replicas:
                raise ConfigError(
                    f"{where}min_replicas: {self.min_replicas} is greater than num_replicas, "
                    f"{self.num_replicas}."
                )
        if self.workspace is not None:
            _check(self, "workspace", str, "a directory", where)
        for name in ("args", "mounts"):
            if isinstance(getattr(self, name), str) or not isinstance(
                getattr(self, name), Sequence
            ):
                raise ConfigError(f"{where}{name}: {getattr(self, name)!r} is not a list.")
        for name in ("env", "port_map", "metadata"):
            _check(self, name, Mapping, "a dict", where)
        _check_plain(self.metadata, f"{where}metadata")
        for name in ("args", "mounts", "env", "port_map", "metadata"):
            freeze_field(self, name)
        self._check_items(where)

    def _check_items(self, where: str) -> None:
        for i, arg in enumerate(self.args):
            if not _is_text(arg):
                raise ConfigError(f"{where}args[{i}]: {arg!r} is not a string.")
        for key, value in self.env.items():
            if not _is_text(key) or not key or "=" in key:
                raise ConfigError(f"{where}env: {not_a_name(key)}")
            if not _is_text(value):
                raise ConfigError(f"{where}env[{key!r}]: {value!r} is not a string.")
        for i, mount in enumerate(self.mounts):
            if not isinstance(mount, BindMount | VolumeMount | DeviceMount):
                raise ConfigError(f"{where}mounts[{i}]: {mount!r} is not a mount.")
        for key, port in self.port_map.items():
            if not isinstance(key, str) or isinstance(port, bool) or port not in range(1, 65536):
                raise ConfigError(f"{where}port_map[{key!r}]: {port!r} is not a port.")

    def with_args(self, *args: str) -> Role:
        """The same role with more arguments behind its own.

        Args:
            *args: The arguments.
        """
        return dataclasses.replace(self, args=[*self.args, *args])

    def with_env(self, env: Mapping[str, str] | None = None, **more: str) -> Role:
        """The same role with more environment variables.

        Args:
            env: What to set, or to replace.
            **more: The same, by name.
        """
        return dataclasses.replace(self, env={**self.env, **(env or {}), **more})

    def with_mounts(self, *mounts: BindMount | VolumeMount | DeviceMount) -> Role:
        """The same role with more mounts.

        Args:
            *mounts: The mounts.
        """
        return dataclasses.replace(self, mounts=[*self.mounts, *mounts])

    def with_metadata(self, metadata: Mapping[str, Any] | None = None, **more: Any) -> Role:
        """The same role with more metadata.

        Args:
            metadata: What to set, or to replace.
            **more: The same, by name.
        """
        return dataclasses.replace(self, metadata={**self.metadata, **(metadata or {}), **more})


@explained(
    roles="app.with_role(role)",
    metadata="app.with_metadata({'key': …})",
)
@dataclass(frozen=True)
class AppDef:
    """An app: one or more roles."""

    name: str
    """Its name, with which its id begins."""
    roles: Sequence[Role] = ()
    """What it is made of."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What only some schedulers understand."""

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigError(f"AppDef.name: invalid name {self.name!r}.")
        where = f"app {self.name!r}: "
        if isinstance(self.roles, str) or not isinstance(self.roles, Sequence):
            raise ConfigError(f"{where}roles: {self.roles!r} is not a list of roles.")
        _check(self, "metadata", Mapping, "a dict", where)
        _check_plain(self.metadata, f"{where}metadata")
        for name in ("roles", "metadata"):
            freeze_field(self, name)
        names: set[str] = set()
        for i, role in enumerate(self.roles):
            if not isinstance(role, Role):
                raise ConfigError(f"{where}roles[{i}]: {role!r} is not a Role.")
            if role.name in names:
                raise ConfigError(f"{where}roles[{i}].name: duplicate role {role.name!r}.")
            names.add(role.name)

    def role(self, name: str) -> Role:
        """A role by its name.

        Args:
            name: The role's name.

        Raises:
            LookupError: There is no such role.
        """
        found = next((role for role in self.roles if role.name == name), None)
        if found is None:
            names = ", ".join(role.name for role in self.roles) or "none"
            raise LookupError(f"{self.name} has no role {name!r}; choose one of {names}")
        return found

    def with_role(self, role: Role) -> AppDef:
        """The same app with another role, which replaces the one of its name or is the last.

        Args:
            role: The role.
        """
        names = [known.name for known in self.roles]
        if role.name not in names:
            return dataclasses.replace(self, roles=[*self.roles, role])
        roles = [role if known.name == role.name else known for known in self.roles]
        return dataclasses.replace(self, roles=roles)

    def with_env(self, env: Mapping[str, str] | None = None, **more: str) -> AppDef:
        """The same app with more environment variables in every role.

        Args:
            env: What to set, or to replace.
            **more: The same, by name.
        """
        return dataclasses.replace(self, roles=[r.with_env(env, **more) for r in self.roles])

    def with_metadata(self, metadata: Mapping[str, Any] | None = None, **more: Any) -> AppDef:
        """The same app with more metadata.

        Args:
            metadata: What to set, or to replace.
            **more: The same, by name.
        """
        return dataclasses.replace(self, metadata={**self.metadata, **(metadata or {}), **more})


def _check_name(role: Role) -> None:
    name = role.name
    if not isinstance(name, str) or not name.strip() or name in (".", ".."):
        raise ConfigError(f"Role.name: invalid name {name!r}.")
    if "/" in name or not name.isprintable() or len(name.encode()) > _LONGEST:
        raise ConfigError(
            f"Role.name: {name!r} cannot be used as a file name: it is too long, or contains a "
            "slash or unprintable characters."
        )


def _is_text(value: object) -> bool:
    """It can be given to a process."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def _check(
    spec: Any, name: str, kind: Any, what: str, where: str = "", *, least: float | None = None
) -> None:
    value = getattr(spec, name)
    where = where or f"{type(spec).__name__}."
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{where}{name}: {value!r} is not {what}.")
    if least is not None and not least <= value < math.inf:
        raise ConfigError(f"{where}{name}: {value!r} is not {what}.")


def _check_plain(value: Any, where: str) -> None:
    """Refuse what JSON does not have."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ConfigError(f"{where}: the key {key!r} is not a string.")
            _check_plain(inner, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _check_plain(inner, f"{where}[{i}]")
    elif value is not None and not isinstance(value, str | int | float | bool):
        raise ConfigError(f"{where}: {value!r} is not a string, number, bool, list or dict.")


NULL_RESOURCE: Resource = Resource(cpu=UNSPECIFIED, gpu=UNSPECIFIED, memMB=UNSPECIFIED)
"""A resource of which nothing is specified."""
