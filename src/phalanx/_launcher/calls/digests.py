"""What a call is known by in a checkpoint: its function and its arguments, by content.

Two processes give the same name to the same call, and another one when the function's code
changes. Where a line stands in its file makes no difference; what a function calls is not looked
at.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any


def function_digest(function: Callable[..., Any], *shape: object) -> str:
    """Names a function; `shape` is what else its values depend on."""
    return _hash(_function(function), _value(shape))


def call_digest(function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Names a call of a function of this name."""
    return _hash(function.encode(), _value(tuple(args)), _value(dict(kwargs)))


def _hash(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def _function(function: Any) -> bytes:
    if isinstance(function, functools.partial):
        given = _value((function.args, function.keywords))
        return _join(b"partial", _function(function.func), given)
    if inspect.ismethod(function):
        return _join(b"method", _function(function.__func__), _value(function.__self__))
    if not isinstance(function, FunctionType):
        return _value(function)
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(_value(cell.cell_contents))
        except ValueError:  # one that is not filled yet
            cells.append(b"empty")
    defaults = _value((function.__defaults__, function.__kwdefaults__))
    name = function.__qualname__.encode()
    return _join(b"function", name, _code(function.__code__), defaults, *cells)


def _code(code: CodeType) -> bytes:
    constants = [_code(c) if isinstance(c, CodeType) else _value(c) for c in code.co_consts]
    names = _value((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount))
    return _join(b"code", code.co_code, names, *constants)


def _value(value: Any) -> bytes:
    """The same bytes for equal values of the usual kinds, whoever else holds them."""
    kind = type(value)
    name = kind.__qualname__.encode()
    if value is None or kind in (bool, int, float, complex, str):
        return _join(name, repr(value).encode("utf-8", "surrogatepass"))
    if kind in (bytes, bytearray):
        return _join(name, bytes(value))
    if kind in (tuple, list):
        return _join(name, *map(_value, value))
    if kind in (set, frozenset):
        return _join(name, *sorted(map(_value, value)))
    if kind is dict:
        return _join(name, *sorted(_join(_value(k), _value(v)) for k, v in value.items()))
    if isinstance(value, FunctionType | functools.partial) or inspect.ismethod(value):
        return _function(value)
    import cloudpickle

    return _join(name, cloudpickle.dumps(value))


def _join(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)
