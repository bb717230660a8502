"""How a frame is written down, and read.

A fixed header (magic, version, two lengths), a msgpack head, and at most one piece of raw bytes
(the field `data`). Decoding checks every field's type and raises only `WireError`: nothing here
runs what a peer sent. No I/O, no clock.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import types
import typing
from typing import Any

import msgpack

from phalanx.errors import WireError
from phalanx.wire.frames import MESSAGES, Frame

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
    fields = {f.name: _plain(getattr(frame, f.name)) for f in dataclasses.fields(frame)}
    data = fields.pop("data", b"")
    if len(data) > PIECE:
        raise WireError(f"a piece of {len(data)} bytes: at most {PIECE} fit in a frame")
    head: bytes = msgpack.packb([type(frame).__name__, fields], unicode_errors="surrogateescape")
    return b"".join((_HEADER.pack(_MAGIC, VERSION, len(head), len(data)), head, data))


class Decoder:
    """Bytes in, frames out. After it has raised `WireError` it must not be fed again."""

    def __init__(self) -> None:
        """Start at a frame's beginning."""
        self._buffer = bytearray()

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
            if head > _HEAD_LIMIT or extra > PIECE:
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
    return typing.cast(Frame, _typed(kind, fields, name))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.value
    return value


_HINTS: dict[type, dict[str, Any]] = {}


def _hints(kind: type) -> dict[str, Any]:
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Give `value` as an instance of `hint`, or raise `WireError` naming the field."""
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
        item_hint = typing.get_args(hint)[0]
        if item_hint in (int, str) and all(type(item) is item_hint for item in value):
            return value
        return tuple(_typed(item_hint, item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        key_hint, item_hint = typing.get_args(hint)
        return {
            _typed(key_hint, key, where): _typed(item_hint, item, f"{where}[{key!r}]")
            for key, item in value.items()
        }
    if hint is float and type(value) is int:
        return float(value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            raise WireError(f"{where}: {value!r} is not a {hint.__name__}") from None
    if origin is None and type(value) is hint:
        return value
    raise WireError(f"{where}: {value!r:.80} is not a {hint}")
