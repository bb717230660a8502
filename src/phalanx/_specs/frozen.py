"""Collections that do not change, and are read, compared and written as those they were made from.

They are lists and dicts for everybody who asks (`isinstance`, `json`, `yaml.safe_dump`, `+`), and
what would change one says how to make another.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

_RECIPE = (
    "specs are immutable; use dataclasses.replace(role, args=[*role.args, …]), or "
    "role.with_args(…), role.with_env(…), app.with_role(…)"
)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError(_RECIPE)


class FrozenList(list[Any]):
    """A list that refuses to change; `[*this]`, `this[:]` and `this.copy()` are ones that do."""

    __slots__ = ()

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other] if isinstance(other, list | tuple) else NotImplemented

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self] if isinstance(other, list | tuple) else NotImplemented

    def __eq__(self, other: object) -> bool:
        return list.__eq__(self, list(other) if isinstance(other, tuple) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, ([*self],)


class FrozenDict(dict[str, Any]):
    """A dict that refuses to change; `{**this}` and `this.copy()` are ones that do."""

    __setitem__ = __delitem__ = update = setdefault = pop = popitem = clear = _refuse
    __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))


def freeze(value: Any) -> Any:
    """Lists and dicts, and those within them, as ones that do not change."""
    if isinstance(value, dict):
        _tell_yaml()
        return FrozenDict({key: freeze(inner) for key, inner in value.items()})
    if isinstance(value, list | tuple):
        _tell_yaml()
        return FrozenList(freeze(inner) for inner in value)
    return value


def _tell_yaml() -> None:
    """PyYAML represents types that it knows by name, not their subclasses: where a program has
    loaded it, it is told of ours.
    """
    yaml = sys.modules.get("yaml")
    for name in ("SafeDumper", "CSafeDumper"):
        dumper = getattr(yaml, name, None)
        known = getattr(dumper, "yaml_representers", None)
        if dumper is not None and known is not None and FrozenList not in known:
            dumper.add_representer(FrozenList, dumper.represent_list)
            dumper.add_representer(FrozenDict, dumper.represent_dict)


def explained(**recipes: str) -> Callable[[type[T]], type[T]]:
    """A frozen dataclass whose attributes, when they are assigned to, say what to do instead.

    `recipes` are those of some fields; the others have `dataclasses.replace`.
    """

    def decorate(cls: type[T]) -> type[T]:
        variable = cls.__name__.lower().removesuffix("def")

        def refuse(_self: object, name: str, *_value: object) -> NoReturn:
            recipe = recipes.get(name, f"dataclasses.replace({variable}, {name}=…)")
            raise FrozenInstanceError(f"cannot assign to field {name!r}: use {recipe}")

        for method in ("__setattr__", "__delattr__"):
            setattr(cls, method, refuse)
        return cls

    return decorate
