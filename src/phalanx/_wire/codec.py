"""How a frame is written down, and read.

A fixed header (magic, version, two lengths), a msgpack head, and at most one piece of raw bytes
(the field `data`). Decoding checks every field's type and range (`limits`) and raises only
`WireError`: nothing here runs what a peer sent. No I/O, no clock.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import struct
import types
import typing
from collections.abc import Callable, Sized
from typing import Any

import msgpack

from phalanx._core.limits import ANY_ITEMS, ANY_TEXT, AtMost, Between
from phalanx._wire.frames import MESSAGES, Frame
from phalanx.errors import WireError

VERSION = 1
PIECE = 1 << 20
"""The most raw bytes that one frame carries."""

_MAGIC = b"PHX"
_HEADER = struct.Struct("!3sBII")
_HEAD_LIMIT = 32 << 20
_BY_NAME = {kind.__name__: kind for kind in MESSAGES}


def register(*kinds: type[Frame]) -> None:
    """Know more frames, which not every process needs."""
    _BY_NAME.update((kind.__name__, kind) for kind in kinds)


def encode(frame: Frame) -> bytes:
    """Write one frame down."""
    fields = _fields(frame)
    data = fields.pop("data", b"")
    if len(data) > PIECE:
        raise WireError(f"a piece of {len(data)} bytes: at most {PIECE} fit in a frame")
    head: bytes = msgpack.packb([type(frame).__name__, fields], unicode_errors="surrogateescape")
    return b"".join((_HEADER.pack(_MAGIC, VERSION, len(head), len(data)), head, data))


class Decoder:
    """Bytes in, frames out. After it has raised `WireError` it must not be fed again."""

    def __init__(self, head_limit: int = _HEAD_LIMIT) -> None:
        """Start at a frame's beginning; a head has `head_limit` bytes at most."""
        self._buffer = bytearray()
        self._head_limit = head_limit

    @property
    def has_begun(self) -> bool:
        """A frame has begun, and has not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Take some bytes; give the frames that they complete."""
        self._buffer += data
        frames: list[Frame] = []
        at = 0
        while len(self._buffer) - at >= _HEADER.size:
            magic, version, head, extra = _HEADER.unpack_from(self._buffer, at)
            if magic != _MAGIC:
                seen = bytes(self._buffer[at : at + 40])
                raise WireError(f"not a frame: {seen!r}. Something else writes into the channel.")
            if version != VERSION:
                raise WireError(
                    f"the peer speaks version {version} of the frames, this side {VERSION}. "
                    "Install the same version of phalanx on both."
                )
            if head > self._head_limit or extra > PIECE:
                raise WireError(f"a frame of {head} + {extra} bytes is over the limit")
            end = at + _HEADER.size + head + extra
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as view:
                start = at + _HEADER.size
                frames.append(_decode(view[start : start + head], bytes(view[start + head : end])))
            at = end
        if at:
            del self._buffer[:at]
        return frames


def _decode(head: memoryview, data: bytes) -> Frame:
    try:
        name, fields = msgpack.unpackb(
            head, strict_map_key=False, unicode_errors="surrogateescape", use_list=False
        )
        kind = _BY_NAME[name]
        fields = dict(fields)
    except (ValueError, TypeError, KeyError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"a frame whose head cannot be read: {error!r}") from None
    finally:
        head.release()
    if "data" in _hints(kind):
        fields["data"] = data
    elif data:
        raise WireError(f"{name} carries {len(data)} bytes that do not belong to it")
    try:
        frame = typing.cast(Frame, _frame_reader(kind)(fields))
    except _UnreadableError:
        frame = typing.cast(Frame, _typed(kind, fields, name))  # says what is wrong with it
    if contradiction := frame.contradiction():
        raise WireError(f"{name}: {contradiction}")
    return frame


_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def _fields(value: Any) -> dict[str, Any]:
    """Its fields, but for those that are as they would be without a word."""
    fields = {}
    for name, default in _defaults(type(value)):
        if (item := getattr(value, name)) is not default:
            fields[name] = _plain(item)
    return fields


def _plain(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.value
    return value


_DEFAULTS: dict[type, tuple[tuple[str, Any], ...]] = {}
_HINTS: dict[type, dict[str, Any]] = {}


def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    if kind not in _DEFAULTS:
        _DEFAULTS[kind] = tuple((field.name, field.default) for field in dataclasses.fields(kind))
    return _DEFAULTS[kind]


def _hints(kind: type) -> dict[str, Any]:
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind, include_extras=True)
    return _HINTS[kind]


# ── reading, quickly ──────────────────────────────────────────────────────────


class _UnreadableError(Exception):
    """Not what a hint wants; why, is for `_typed` to say."""


_Reader = Callable[[Any], Any]
_MANY = 16
"""From so many items on it pays to look at all of them at once."""


_READERS: dict[type, _Reader] = {}
"""Those of frames."""


def _frame_reader(kind: type[Frame]) -> _Reader:
    if kind not in _READERS:
        _READERS[kind] = _reader(kind)
    return _READERS[kind]


def _reader(hint: Any) -> _Reader:
    """What gives a value as an instance of `hint`: `_typed` with the questions that only the hint
    answers asked once. It takes nothing that `_typed` does not.
    """
    limit = None
    if typing.get_origin(hint) is typing.Annotated:
        hint, limit, *_ = typing.get_args(hint)
    hint = getattr(hint, "__supertype__", hint)
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass_reader(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        (one,) = (option for option in options if option is not type(None))
        inner = _reader(one)
        if type(None) not in options:
            return inner
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _tuple_reader(typing.get_args(hint)[0], limit)
    if origin is dict:
        key_hint, item_hint = typing.get_args(hint)
        return _dict_reader(key_hint, item_hint, limit)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum_reader(hint)
    return _plain_reader(hint, limit)


def _dataclass_reader(kind: Any) -> _Reader:
    readers: dict[str, _Reader] = {}

    def read(value: Any) -> Any:
        if not readers:  # not before: a kind may have fields of its own kind
            readers.update({key: _reader(hint) for key, hint in _hints(kind).items()})
        try:
            return kind(**{key: readers[key](item) for key, item in value.items()})
        except (AttributeError, KeyError, TypeError):
            raise _UnreadableError from None

    return read


def _tuple_reader(item_hint: Any, limit: Any) -> _Reader:
    item_reader = _reader(item_hint)

    def read(value: Any) -> Any:
        if type(value) is not tuple:
            raise _UnreadableError
        _check_length(value, limit or ANY_ITEMS)
        if len(value) > _MANY and _are_plain(item_hint, value):
            return value
        return tuple(map(item_reader, value))

    return read


def _dict_reader(key_hint: Any, item_hint: Any, limit: Any) -> _Reader:
    key_reader, item_reader = _reader(key_hint), _reader(item_hint)

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _UnreadableError
        _check_length(value, limit or ANY_ITEMS)
        return {key_reader(key): item_reader(item) for key, item in value.items()}

    return read


def _enum_reader(kind: type[enum.Enum]) -> _Reader:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise _UnreadableError from None

    return read


def _plain_reader(kind: Any, limit: Any) -> _Reader:
    if kind is str:
        limit = limit or ANY_TEXT

    def read(value: Any) -> Any:
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise _UnreadableError
        if kind is str:
            _check_length(value, limit)
        elif type(limit) is Between:
            if not limit.low <= value <= limit.high:
                raise _UnreadableError
        elif kind is float and math.isnan(value):
            raise _UnreadableError
        return value

    return read


def _check_length(value: Sized, limit: Any) -> None:
    if type(limit) is AtMost and len(value) > limit.size:
        raise _UnreadableError


# ── reading, with what is wrong ───────────────────────────────────────────────


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Give `value` as an instance of `hint`, or raise `WireError` naming the field."""
    limit = None
    if typing.get_origin(hint) is typing.Annotated:
        hint, limit, *_ = typing.get_args(hint)
    hint = getattr(hint, "__supertype__", hint)
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = _hints(hint)
        if not isinstance(value, dict) or not value.keys() <= hints.keys():
            raise WireError(f"{where}: not the fields of a {hint.__name__}")
        typed = {key: _typed(hints[key], item, f"{where}.{key}") for key, item in value.items()}
        try:
            return hint(**typed)
        except TypeError as error:
            raise WireError(f"{where}: {error}") from None
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        (hint,) = (option for option in options if option is not type(None))
        return _typed(hint, value, where)
    if origin is tuple and isinstance(value, tuple):
        _check_size(value, limit or ANY_ITEMS, where)
        item_hint = typing.get_args(hint)[0]
        if _are_plain(item_hint, value):
            return value
        return tuple(_typed(item_hint, item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        _check_size(value, limit or ANY_ITEMS, where)
        key_hint, item_hint = typing.get_args(hint)
        return {
            _typed(key_hint, key, where): _typed(item_hint, item, f"{where}[{key!r:.40}]")
            for key, item in value.items()
        }
    if hint is float and type(value) is int:
        value = float(value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            raise WireError(f"{where}: {value!r:.80} is not a {hint.__name__}") from None
    if origin is None and type(value) is hint:
        if hint is str:
            _check_size(value, limit or ANY_TEXT, where)
        elif hint is float and value != value:  # noqa: PLR0124 not a number equals nothing
            raise WireError(f"{where}: not a number")
        elif isinstance(limit, Between) and not limit.low <= value <= limit.high:
            raise WireError(f"{where}: {value} is not between {limit.low} and {limit.high}")
        return value
    raise WireError(f"{where}: {value!r:.80} is not a {hint}")


def _check_size(value: Sized, limit: Any, where: str) -> None:
    if isinstance(limit, AtMost) and len(value) > limit.size:
        raise WireError(f"{where}: its length is {len(value)}, at most {limit.size} is allowed")


def _are_plain(hint: Any, values: tuple[Any, ...]) -> bool:
    """Numbers or texts that are all in their range: checked at once, there may be thousands."""
    limit: Any = ANY_TEXT
    if typing.get_origin(hint) is typing.Annotated:
        hint, limit, *_ = typing.get_args(hint)
    hint = getattr(hint, "__supertype__", hint)
    if hint not in (int, str) or not all(type(value) is hint for value in values):
        return False
    if not values:
        return True
    if isinstance(limit, Between):
        return bool(limit.low <= min(values) and max(values) <= limit.high)
    return hint is int or max(map(len, values)) <= limit.size
