"""TorchX's helpers for values that are written as texts."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from phalanx._core import values

__all__ = [
    "decode",
    "decode_from_string",
    "decode_optional",
    "get_argparse_param_type",
    "is_bool",
    "is_primitive",
    "none_throws",
    "to_dict",
    "to_list",
]

T = TypeVar("T")
_PRIMITIVES = (int, str, float)


def none_throws(optional: T | None, message: str = "unexpected None") -> T:
    """The value, which is not None.

    Args:
        optional: The value.
        message: What the error says if it is None.

    Raises:
        AssertionError: It is None.
    """
    if optional is None:
        raise AssertionError(message)
    return optional


def to_list(arg: str) -> list[str]:
    """`a, b` as a list.

    Args:
        arg: The text.
    """
    return values.split(arg)


def to_dict(arg: str) -> dict[str, str]:
    """`k=v,k2=a;b` as a dict; what has no key belongs to the value before it.

    Args:
        arg: The text.

    Raises:
        ValueError: It is not written like that.
    """
    keys = [*re.finditer(r"(?:^|[,;])\s*([\w.-]+)\s*=", arg)]
    if arg and (not keys or keys[0].start()):
        raise ValueError(f"{arg!r} is not KEY=VALUE")
    ends = [*(key.start() for key in keys[1:]), len(arg)]
    found = {}
    for key, end in zip(keys, ends, strict=False):
        value = arg[key.end() : end].strip()
        if not value:
            raise ValueError(f"{arg!r}: {key[1]} has no value")
        found[key[1]] = values.unquote(value)
    return found


def is_bool(param_type: Any) -> bool:
    """Whether a type is bool.

    Args:
        param_type: The type.
    """
    return param_type is bool


def is_primitive(param_type: Any) -> bool:
    """Whether a type is a plain number or text.

    Args:
        param_type: The type.
    """
    return param_type in _PRIMITIVES


def decode_optional(param_type: Any) -> Any:
    """A type without its None.

    Args:
        param_type: The type.
    """
    return values.unwrap(param_type)[0]


def get_argparse_param_type(parameter: inspect.Parameter) -> Callable[[str], object]:
    """What argparse makes of the text of an argument: plain values; others stay texts.

    Args:
        parameter: The argument.
    """
    kind: Callable[[str], object] = parameter.annotation
    return kind if is_primitive(kind) else str


def decode_from_string(encoded_value: str, annotation: Any) -> Any:
    """A list or dict from a text; None from an empty one.

    Args:
        encoded_value: `a,b` or `k=v,k2=v2`.
        annotation: The type, such as `list[int]`.

    Raises:
        ValueError: The type is no list or dict of plain values.
    """
    if not encoded_value:
        return None
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is dict:
        of_key, of_value = args
        return {of_key(key): of_value(value) for key, value in to_dict(encoded_value).items()}
    if origin is not list or not is_primitive(args[0]):
        raise ValueError(f"{annotation} is not a list or dict of numbers or texts")
    make: Callable[[str], Any] = args[0]
    return [make(item) for item in to_list(encoded_value)]


def decode(encoded_value: Any, annotation: Any) -> Any:
    """A value of a type from a text; what is no text is given as it is.

    Args:
        encoded_value: The text.
        annotation: The type.
    """
    if encoded_value is None:
        return None
    if is_bool(annotation):
        return bool(encoded_value) and encoded_value.lower() == "true"
    if isinstance(encoded_value, str) and not is_primitive(annotation):
        return decode_from_string(encoded_value, annotation)
    return encoded_value
