"""Typed values from the texts that users write: arguments of components, options, configuration.

Pure. What a text is turned into depends on the annotation alone.
"""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

_PLAIN = {str: "str", int: "int", float: "float", bool: "bool", Path: "path"}
_LISTS = (list, Sequence, typing.Sequence, tuple)
_DICTS = (dict, Mapping, typing.Mapping)
_YES, _NO = ("yes", "true", "y", "t", "1"), ("no", "false", "n", "f", "0")


def name(hint: Any) -> str:
    """The type, as help shows it."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    inner, optional = unwrap(hint)
    if optional:
        return name(inner)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "{" + ",".join(map(str, args)) + "}"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "{" + ",".join(member.name for member in hint) + "}"
    if hint in _LISTS or origin in _LISTS:
        return f"list of {name(_item(hint))}"
    if hint in _DICTS or origin in _DICTS:
        key, value = _pair(hint)
        return f"dict of {name(key)}={name(value)}"
    return str(getattr(hint, "__name__", hint))


def problem(hint: Any) -> str:
    """Why a text cannot become a value of this type; empty if it can."""
    inner, _ = unwrap(hint)
    if inner in _PLAIN or (isinstance(inner, type) and issubclass(inner, enum.Enum)):
        return ""
    origin, args = typing.get_origin(inner), typing.get_args(inner)
    if origin is Literal and all(isinstance(a, str | int) for a in args):
        return ""
    if inner in _LISTS or origin in _LISTS:
        if origin is tuple and (len(args) != 2 or args[1] is not Ellipsis):
            return "only tuple[TYPE, ...] is supported"
        return _problem_within(_item(inner))
    if inner in _DICTS or origin in _DICTS:
        of_key, of_value = _pair(inner)
        if typing.get_origin(of_value) in _LISTS:  # KEY=a,b;KEY2=c
            of_value = _item(of_value)
        return _problem_within(of_key) or _problem_within(of_value)
    return f"{name(inner)} is not supported on the command line"


def _problem_within(hint: Any) -> str:
    if typing.get_origin(hint) in (*_LISTS, *_DICTS) or hint in (*_LISTS, *_DICTS):
        return "nested lists and dicts are not supported on the command line"
    return problem(hint)


def decode(text: str, hint: Any, *, pair: str = "=") -> Any:
    """The value of this type that a text means. Raises `ValueError` that says what is wrong.

    Items of lists are separated by commas, those of dicts are KEY=VALUE (`pair`), and what has no
    key belongs to the value before it; quotes hold together what has commas.
    """
    inner, _ = unwrap(hint)
    origin, args = typing.get_origin(inner), typing.get_args(inner)
    if inner is str:
        return text
    if inner is bool:
        return _bool(text)
    if inner in (int, float):
        return _number(text, inner)
    if inner is Path:
        return Path(text)
    if origin is Literal:
        return _chosen(text, {str(a): a for a in args})
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        return _chosen(text, {member.name: member for member in inner})
    if inner in _LISTS or origin in _LISTS:
        items = [decode(item, _item(inner)) for item in split(text)]
        return tuple(items) if origin is tuple or inner is tuple else items
    if inner in _DICTS or origin in _DICTS:
        found: dict[Any, Any] = {}
        for item in _pair_items(text) if pair == "=" else split(text, keep_quotes=True):
            key, value = _decode_pair(item, inner, pair)
            if key in found:
                raise ValueError(f"{key!r} is given twice")
            found[key] = value
        return found
    raise ValueError(problem(hint))


def accept(value: Any, hint: Any) -> Any:
    """A value that a file gave, as one of this type: texts are decoded. Raises `ValueError`."""
    inner, optional = unwrap(hint)
    origin = typing.get_origin(inner) or inner
    if value is None and optional:
        return None
    if isinstance(value, str):
        return decode(value, hint)
    if isinstance(value, bool) or inner is bool:
        fits = isinstance(value, bool) and inner is bool
    elif inner is float:
        fits, value = isinstance(value, int | float), float(value)
    elif origin in _LISTS and isinstance(value, list | tuple):
        made = [accept(item, _item(inner)) for item in value]
        return tuple(made) if origin is tuple else made
    elif origin in _DICTS and isinstance(value, Mapping):
        of_key, of_value = _pair(inner)
        return {accept(k, of_key): accept(v, of_value) for k, v in value.items()}
    elif origin is Literal:
        fits = value in typing.get_args(inner)
    else:
        fits = isinstance(inner, type) and isinstance(value, inner)
    if not fits:
        raise ValueError(f"{value!r} is not {name(hint)}")
    return value


def encode(value: Any, *, pair: str = "=") -> str:
    """A value as one would write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return ",".join(f"{key}{pair}{_quoted(encode(v))}" for key, v in value.items())
    if isinstance(value, list | tuple):
        return ",".join(_quoted(encode(v)) for v in value)
    return str(value)


def unwrap(hint: Any) -> tuple[Any, bool]:
    """The type without its `None`, and whether it had one."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        if len(rest) < len(typing.get_args(hint)) and len(rest) == 1:
            return rest[0], True
    return hint, False


def numbers(text: str) -> list[int]:
    """`0,2-4` as a list. Raises `ValueError`."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*[-–]\s*(\d+))?\s*", part)
        if match is None:
            raise ValueError(f"{text!r} is not a list of numbers such as 0,2-4")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > 1_000_000:
            raise ValueError(f"{part!r} is not a range of numbers")
        found += range(first, last + 1)
    return found


def split(text: str, *, separators: str = ",", keep_quotes: bool = False) -> list[str]:
    """Items between separators, with quotes honoured. Raises `ValueError`."""
    if not text.strip():
        return []
    found = _separated(text, separators, keep_quotes=keep_quotes)
    return [item.strip() if not keep_quotes else item for _, item in found]


def _separated(text: str, separators: str, *, keep_quotes: bool) -> list[tuple[str, str]]:
    """Items, each with the separator before it, which the first has not. Raises `ValueError`."""
    items, quote, began = [("", "")], "", 0

    def add(character: str) -> None:
        items[-1] = items[-1][0], items[-1][1] + character

    for i, character in enumerate(text):
        if quote:
            if character == quote:
                quote = ""
            if (character != quote and quote) or keep_quotes:
                add(character)
        elif character in "\"'" and _opens(text, i, separators):
            quote, began = character, i
            add(character if keep_quotes else "")
        elif character in separators:
            items.append((character, ""))
        else:
            add(character)
    if quote:
        raise ValueError(f"unclosed quote at {text[began:]!r}")
    return items


def _pair_items(text: str) -> list[str]:
    """`A=x,y;B=z` as `A=x,y` and `B=z`. Raises `ValueError`."""
    found: list[str] = []
    if not text.strip():
        return found
    for separator, item in _separated(text, ",;", keep_quotes=True):
        key, equals, _ = item.partition("=")
        if (equals and re.fullmatch(r"\s*[\w.-]+\s*", key)) or not found:
            found.append(item)
        elif item.strip():
            found[-1] += f"{separator}{item}"
    return found


def _opens(text: str, at: int, separators: str) -> bool:
    """A quote opens at the beginning of an item or of a value; within a word it is a letter."""
    before = text[at - 1] if at else ","
    return before in separators or before in "=: "


def unquote(text: str) -> str:
    """Without the quotes around it, if there are any."""
    stripped = text.strip()
    if len(stripped) >= 2 and stripped[0] in "\"'" and stripped[-1] == stripped[0]:
        return stripped[1:-1]
    return text


def _quoted(text: str) -> str:
    return f'"{text}"' if re.search(r"[,;]", text) else text


def _decode_pair(item: str, hint: Any, pair: str) -> tuple[Any, Any]:
    key, found, value = item.partition(pair)
    if not found or not key.strip():
        raise ValueError(
            f'{item!r} is not KEY{pair}VALUE; a value with commas is quoted: KEY{pair}"a,b"'
        )
    of_key, of_value = _pair(hint)
    return decode(unquote(key.strip()), of_key), decode(unquote(value), of_value)


def _bool(text: str) -> bool:
    if text.lower() in _YES:
        return True
    if text.lower() in _NO:
        return False
    raise ValueError(f"{text!r} is not yes or no, true or false")


def _number(text: str, kind: type[Any]) -> Any:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{text!r} is not {what}") from None


def _chosen(text: str, known: Mapping[str, Any]) -> Any:
    if text not in known:
        raise ValueError(f"{text!r}: choose one of {', '.join(known)}")
    return known[text]


def _item(hint: Any) -> Any:
    return next(iter(typing.get_args(hint)), str)


def _pair(hint: Any) -> tuple[Any, Any]:
    args = typing.get_args(hint)
    return (args[0], args[1]) if len(args) == 2 else (str, str)


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """`a=1,b=x,y;c=2` as `a: 1`, `b: x,y`, `c: 2`: what has no `=` belongs to what is before it.

    Quoted values stay quoted. Raises `ValueError`.
    """
    found: list[list[str]] = []
    for item in split(text, separators=",;", keep_quotes=True):
        key, equals, value = item.partition("=")
        if equals and re.fullmatch(r"\s*[\w.-]+\s*", key):
            found.append([key.strip(), value])
        elif found and item.strip():
            found[-1][1] += f",{item}"
        elif item.strip():
            raise ValueError(f"{item!r} is not KEY=VALUE")
    for key, value in found:
        yield key, value
