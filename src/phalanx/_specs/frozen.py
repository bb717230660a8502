"""Collections that do not change, and are read, compared and written as those they were made from.

They are lists and dicts for everybody who asks (`isinstance`, `json`, `yaml.safe_dump`, `+`), and
what would change one says how to make another.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import FrozenInstanceError
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

_RECIPE = "specs are immutable; use dataclasses.replace(…)"


def _refuse(self: Any, *_: object, **__: object) -> NoReturn:
    raise TypeError(self.recipe)


class FrozenList(list[Any]):
    """A list that refuses to change; `[*this]`, `this[:]` and `this.copy()` are ones that do.

    `recipe` is what it says then.
    """

    __slots__ = ("recipe",)

    def __init__(self, items: Iterable[Any] = (), recipe: str = _RECIPE) -> None:
        super().__init__(items)
        self.recipe = recipe

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
        return FrozenList, ([*self], self.recipe)


class FrozenDict(dict[str, Any]):
    """A dict that refuses to change; `{**this}` and `this.copy()` are ones that do.

    `recipe` is what it says then.
    """

    __slots__ = ("recipe",)

    def __init__(self, items: Mapping[str, Any] | None = None, recipe: str = _RECIPE) -> None:
        super().__init__(items or {})
        self.recipe = recipe

    __setitem__ = __delitem__ = update = setdefault = pop = popitem = clear = _refuse
    __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self), self.recipe)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))


def freeze(value: Any, recipe: str = _RECIPE) -> Any:
    """Lists and dicts, and those within them, as ones that do not change and say the recipe."""
    if isinstance(value, dict):
        _tell_yaml()
        return FrozenDict({key: freeze(inner, recipe) for key, inner in value.items()}, recipe)
    if isinstance(value, list | tuple):
        _tell_yaml()
        return FrozenList((freeze(inner, recipe) for inner in value), recipe)
    return value


def freeze_field(spec: Any, name: str) -> None:
    """Replace a list or dict of a dataclass that is `explained` by one that does not change."""
    value = getattr(spec, name)
    plain = dict(value) if isinstance(value, Mapping) else list(value)
    opening, closing = "{}" if isinstance(value, Mapping) else "[]"
    variable, recipes = type(spec)._recipes
    stars = "**" if isinstance(value, Mapping) else "*"
    other = f"{name}={opening}{stars}{variable}.{name}, …{closing}"
    recipe = recipes.get(name, f"dataclasses.replace({variable}, {other})")
    text = f"{variable}.{name} cannot be changed in place: use {variable} = {recipe}"
    object.__setattr__(spec, name, freeze(plain, text))


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
        setattr(cls, "_recipes", (variable, recipes))  # noqa: B010 it is not one of the fields

        def refuse(_self: object, name: str, *_value: object) -> NoReturn:
            recipe = recipes.get(name, f"dataclasses.replace({variable}, {name}=…)")
            raise FrozenInstanceError(f"cannot assign to field {name!r}: use {recipe}")

        for method in ("__setattr__", "__delattr__"):
            setattr(cls, method, refuse)
        return cls

    return decorate
