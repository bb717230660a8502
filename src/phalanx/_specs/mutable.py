"""Specs that may be changed, for code that was written for TorchX's.

They are specs of ours for everybody who asks, and hold whatever they are given, as those do;
`frozen` checks them, and gives what a scheduler gets.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self

from phalanx._specs.app_def import AppDef, Resource, Role


class _Mutable:
    """A frozen dataclass that may be changed after all; a base before it."""

    __hash__: ClassVar[None]  # type: ignore[assignment]
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__

    def __post_init__(self) -> None:
        for name in _names(self):
            object.__setattr__(self, name, _plain(getattr(self, name)))

    def __eq__(self, other: object) -> bool:
        kind = _kind(self)
        if not isinstance(other, kind):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _names(self))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        import copy

        made = object.__new__(type(self))
        memo[id(self)] = made
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made


class MutableResource(_Mutable, Resource):
    """A resource that may be changed."""

    __hash__ = None  # type: ignore[assignment]
    __qualname__ = "Resource"

    @staticmethod
    def copy(original: Resource, **capabilities: Any) -> MutableResource:
        """The same resource with more capabilities.

        Args:
            original: The resource.
            **capabilities: What to add, or to replace.
        """
        return thawed_resource(Resource.copy(original, **capabilities))


class MutableRole(_Mutable, Role):
    """A role that may be changed."""

    __hash__ = None  # type: ignore[assignment]
    __qualname__ = "Role"

    def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:
        """What a subclass makes of a dry run; here nothing.

        Args:
            scheduler: The scheduler's name.
            dryrun_info: The dry run.
        """
        return dryrun_info


class MutableAppDef(_Mutable, AppDef):
    """An app that may be changed."""

    __hash__ = None  # type: ignore[assignment]
    __qualname__ = "AppDef"


def thawed_resource(resource: Resource) -> MutableResource:
    """The same resource, to be changed."""
    return MutableResource(**_fields(resource))


def thawed_role(role: Role) -> MutableRole:
    """The same role, to be changed."""
    return MutableRole(**{**_fields(role), "resource": thawed_resource(role.resource)})


def thawed(app: AppDef) -> MutableAppDef:
    """The same app, to be changed; what was given is not."""
    roles = [role if isinstance(role, MutableRole) else thawed_role(role) for role in app.roles]
    return MutableAppDef(**{**_fields(app), "roles": roles})


def frozen(app: AppDef) -> AppDef:
    """The same app, as it is now, checked. Raises `ConfigError`."""
    if type(app) is AppDef and all(type(role) is Role for role in app.roles):
        return app
    roles = [
        Role(**{**_fields(role), "resource": Resource(**_fields(role.resource))})
        if isinstance(role, Role) and isinstance(role.resource, Resource)
        else role
        for role in app.roles
    ]
    return AppDef(**{**_fields(app), "roles": roles})


def _kind(spec: Any) -> type[Any]:
    return next(kind for kind in (Resource, Role, AppDef) if isinstance(spec, kind))


def _names(spec: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(_kind(spec))]


def _fields(spec: Any) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in _names(spec)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
