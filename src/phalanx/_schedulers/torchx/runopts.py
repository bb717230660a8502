"""TorchX's way to describe a scheduler's options, and the dataclass that is made of them."""

from __future__ import annotations

import dataclasses
import keyword
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx._core import values
from phalanx._schedulers.options import option
from phalanx.errors import ConfigError


@dataclass(frozen=True)
class runopt:  # noqa: N801 TorchX's name
    """One option."""

    default: Any
    """Its value unless another is given."""
    opt_type: Any
    """Its type."""
    is_required: bool
    """It has to be given."""
    help: str
    """What it is for."""


class runopts:  # noqa: N801 TorchX's name
    """The options of a scheduler, each added by name."""

    def __init__(self) -> None:
        self._opts: dict[str, runopt] = {}

    def add(
        self,
        cfg_key: str,
        type_: Any,
        help: str = "",  # noqa: A002 TorchX's name
        default: Any = None,
        required: bool = False,  # noqa: FBT001, FBT002 TorchX's
    ) -> None:
        """Add an option.

        Args:
            cfg_key: Its name.
            type_: Its type: a plain one, `list[str]` or `dict[str, str]`.
            help: What it is for.
            default: Its value unless another is given.
            required: It has to be given, and has no default.

        Raises:
            ValueError: A required option has a default.
            TypeError: The default is not of the type.
        """
        if required and default is not None:
            raise ValueError(f"required option {cfg_key!r} must not have a default: {default!r}")
        if default == [] and typing.get_origin(values.unwrap(type_)[0]) is dict:
            default = {}
        if default is not None and not self.is_type(default, type_):
            raise TypeError(f"option {cfg_key!r} must be of type {type_}, not {default!r}")
        self._opts[cfg_key] = runopt(default, type_, required, help)

    def update(self, other: runopts) -> None:
        """Add the options of another.

        Args:
            other: The other, which wins.
        """
        self._opts |= other._opts

    def get(self, name: str) -> runopt | None:
        """An option by its name; None if there is none.

        Args:
            name: The name.
        """
        return self._opts.get(name)

    def resolve(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, with the defaults of all else.

        Args:
            cfg: Values by name; those of other schedulers are left as they are.

        Raises:
            ConfigError: One has another type, or is missing.
        """
        resolved = dict(cfg)
        for key, opt in self._opts.items():
            value = resolved.get(key)
            if value is None and opt.is_required:
                raise ConfigError(f"missing required option {key!r}.")
            if value is not None and not self.is_type(value, opt.opt_type):
                kind = values.name(opt.opt_type)
                raise ConfigError(f"option {key!r}: {value!r} is not {kind}.")
            resolved[key] = opt.default if value is None else value
        return resolved

    def cfg_from_str(self, cfg_str: str) -> dict[str, Any]:
        """Values from `k=v,k2=v2`; lists are `k=a,b`, dicts `k=a:1,b:2`.

        Args:
            cfg_str: The text; names that are no options are passed over.

        Raises:
            ConfigError: It is not written like that, or a value is not of its type.
        """
        made: dict[str, Any] = {}
        try:
            for key, text in values.pairs(cfg_str):
                if (opt := self._opts.get(key)) is not None:
                    made[key] = values.decode(text, opt.opt_type, pair=":")
        except ValueError as error:
            raise ConfigError(f"{cfg_str!r}: {error}.") from None
        return made

    @staticmethod
    def is_type(obj: Any, tp: Any) -> bool:
        """Whether a value is of a type, such as `list[str]`.

        Args:
            obj: The value.
            tp: The type.
        """
        inner, optional = values.unwrap(tp)
        if obj is None:
            return optional
        origin, args = typing.get_origin(inner), typing.get_args(inner)
        if origin is list:
            return isinstance(obj, list) and all(isinstance(item, args[0]) for item in obj)
        if origin is dict:
            return isinstance(obj, dict) and all(
                isinstance(k, args[0]) and isinstance(v, args[1]) for k, v in obj.items()
            )
        if origin is typing.Literal:
            return obj in args
        return isinstance(obj, origin or inner)

    def __iter__(self) -> Iterator[tuple[str, runopt]]:
        return iter(self._opts.items())

    def __len__(self) -> int:
        return len(self._opts)

    def __repr__(self) -> str:
        lines = []
        for key, opt in self._opts.items():
            need = "required" if opt.is_required else f"default: {opt.default}"
            lines.append(f"{key}={key.upper()} ({values.name(opt.opt_type)}, {need})")
            lines.append(f"    {opt.help}")
        return "\n".join(lines)


def as_dataclass(opts: runopts) -> type[Any]:
    """The dataclass of options that a scheduler of ours has.

    Raises `TypeError` for a name that cannot be one, or a type that no text can become.
    """
    fields: list[tuple[str, Any, Any]] = []
    names: dict[str, str] = {}
    for key, opt in opts:
        name = key.replace("-", "_")
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or keyword.iskeyword(name):
            raise TypeError(f"its option {key!r} has a name that cannot be used")
        if reason := values.problem(opt.opt_type):
            raise TypeError(f"its option {key!r}: {reason}")
        names[name] = key
        made = option(help=opt.help) if opt.is_required else option(opt.default, help=opt.help)
        hint = opt.opt_type if opt.is_required else opt.opt_type | None
        fields.append((name, hint, made))
    kind = dataclasses.make_dataclass("TorchxOptions", fields, frozen=True, kw_only=True)
    setattr(kind, "torchx_names", names)  # noqa: B010 it is not one of the fields
    return kind


def as_dict(options: Any) -> dict[str, Any]:
    """Options as TorchX's schedulers get them: a dict, by the names they were added with."""
    names: Mapping[str, str] = type(options).torchx_names
    return {key: getattr(options, name) for name, key in names.items()}
