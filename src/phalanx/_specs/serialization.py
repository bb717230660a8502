"""Specs as JSON and YAML, there and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

from phalanx._core.json_text import parse_json
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._specs.app_def import AppDef, Resource, RetryPolicy, Role
from phalanx._specs.mounts import KINDS
from phalanx.errors import ConfigError


def to_dict(app: AppDef) -> dict[str, Any]:
    """An app as plain dicts, lists and texts.

    Args:
        app: The app.
    """
    plain = _plain(app)
    assert isinstance(plain, dict)
    return plain


def from_dict(value: Any) -> AppDef:
    """An app from plain dicts, lists and texts.

    Args:
        value: What `to_dict` gave.

    Raises:
        ConfigError: A field is unknown, missing or wrong; the message names it.
    """
    given = _fields(AppDef, value, "app")
    roles = given.get("roles", ())
    if not isinstance(roles, list | tuple):
        raise ConfigError(f"app.roles: {roles!r} is not a list.")
    given["roles"] = [_role(role, f"app.roles[{i}]") for i, role in enumerate(roles)]
    return AppDef(**given)


def to_json(app: AppDef, indent: int | None = 2) -> str:
    """An app as JSON.

    Args:
        app: The app.
        indent: Blanks for each level; None for one line.
    """
    return json.dumps(to_dict(app), indent=indent)


def from_json(text: str) -> AppDef:
    """An app from JSON.

    Args:
        text: What `to_json` gave.

    Raises:
        ConfigError: It is not JSON, or a field is unknown, missing or wrong.
    """
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"invalid JSON: {error}.") from None
    return from_dict(value)


def to_yaml(app: AppDef) -> str:
    """An app as YAML; needs the extra `phalanx[yaml]`.

    Args:
        app: The app.

    Raises:
        ConfigError: The package for YAML is not installed.
    """
    text: str = _yaml().safe_dump(to_dict(app), sort_keys=False)
    return text


def from_yaml(text: str) -> AppDef:
    """An app from YAML; needs the extra `phalanx[yaml]`.

    Args:
        text: What `to_yaml` gave.

    Raises:
        ConfigError: It is not YAML, a field is unknown, missing or wrong, or the package for YAML
            is not installed.
    """
    yaml = _yaml()
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"invalid YAML: {error}.") from None
    return from_dict(value)


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ConfigError("YAML needs PyYAML: pip install 'phalanx[yaml]'") from None
    return yaml


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        plain = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        kind = next((name for name, cls in KINDS.items() if isinstance(value, cls)), None)
        return plain if kind is None else {"type": kind, **plain}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _role(value: Any, where: str) -> Role:
    given = _fields(Role, value, where)
    if "resource" in given:
        given["resource"] = Resource(**_fields(Resource, given["resource"], f"{where}.resource"))
    if "retry_policy" in given:
        try:
            given["retry_policy"] = RetryPolicy(given["retry_policy"])
        except ValueError:
            known = ", ".join(policy.value for policy in RetryPolicy)
            raise ConfigError(
                f"{where}.retry_policy: {given['retry_policy']!r}: choose one of {known}."
            ) from None
    mounts = given.get("mounts", ())
    if isinstance(mounts, list | tuple):
        given["mounts"] = [_mount(m, f"{where}.mounts[{i}]") for i, m in enumerate(mounts)]
    return Role(**given)


def _mount(value: Any, where: str) -> Any:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{where}.type: unknown type {kind!r}; choose one of {', '.join(KINDS)}.")
    return KINDS[kind](**_fields(KINDS[kind], {**value, "type": None}, where, extra=("type",)))


def _fields(cls: type[Any], value: Any, where: str, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {value!r} is not an object.")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name in value:
        if name not in fields and name not in extra:
            hint = did_you_mean(closest(str(name), fields))
            raise ConfigError(f"{where}.{name}: unknown field.{hint}")
    for name, field in fields.items():
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and name not in value:
            raise ConfigError(f"{where}.{name} is missing.")
    return {name: value[name] for name in value if name in fields}
