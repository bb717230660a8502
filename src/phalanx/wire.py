"""Frames: what launcher, agent and zygote say to each other, and how it is written down.

A frame is a small frozen dataclass. On the wire it is a fixed header (magic, version, two
lengths), a msgpack head, and at most one piece of raw bytes (the field `data`). Every frame
carries app, round and rank, so that what is stale can be dropped. Decoding checks every field's
type and raises only `WireError`: nothing here runs what a peer sent. No I/O, no clock.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import types
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

import msgpack

from phalanx.errors import WireError
from phalanx.rounds import Outcome, Round

VERSION = 1
PIECE = 1 << 20
"""The most raw bytes that one frame carries."""

_MAGIC = b"PHX"
_HEADER = struct.Struct("!3sBII")
_HEAD_LIMIT = 32 << 20

F = TypeVar("F", bound="Frame")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What every frame carries."""

    app: str = ""
    round: int = 0
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement: `import module`, or `from module import names`."""

    module: str
    names: tuple[str, ...] = ()


# ── launcher to agent ─────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(Frame):
    """The first frame of an app: what a worker's process looks like, so that warming can begin."""

    preload: tuple[Import, ...]
    late: tuple[str, ...] | None
    """Packages that must not be loaded before the fork; None: only those to preload may be."""
    python_path: tuple[str, ...]
    environment: dict[str, str]
    passing: bool
    """`environment` has all variables that say where a command was typed, and those alone."""
    argv: tuple[str, ...]
    cwd: str | None
    main_file: str | None
    title: str
    spawn: bool
    workers: int
    heartbeat: float
    orphan_timeout: float
    stop_grace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin(Frame):
    """Run this round: your part is the member with your number."""

    membership: Round
    agent: int
    function: str
    backend: str | None
    uses_torch: bool
    process_group_timeout: float
    records: tuple[int, ...] = ()
    """The ranks whose `logging` records are wanted as records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Frame):
    """End the round's workers: SIGTERM, then after `grace` seconds SIGKILL.

    `spared` ranks (the agent fills them in for the zygote) have ended already and are only leaving.
    """

    grace: float
    spared: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(Frame):
    """So many bytes of log have been written away; as many may be sent again."""

    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Frame):
    """Nothing more will be asked: send what is left of the logs, and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest(Frame):
    """Send what is left of the logs, say `Rested`, and wait for another app's `Prepare`.

    It comes over this channel; or, with `keep`, for so many seconds, over a socket that you put
    into the directory `place` under the name `key`.
    """

    keep: float = 0.0
    place: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(Frame):
    """A heartbeat from the launcher, with its clock."""

    sent: float


# ── agent to launcher ─────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Frame):
    """The agent is there; `port` is bound on its host for the round's store."""

    version: str
    python: str
    hostname: str
    pid: int
    port: int
    spool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Want(Frame):
    """The agent does not have this function yet."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Frame):
    """The packages are loaded (the zygote says it to the agent, the agent to the launcher)."""

    torch: bool
    spawn: bool
    stale: bool = False
    """Files that were loaded have changed since: another zygote is needed."""
    left_out: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Frame):
    """The round's workers run; their process ids by global rank."""

    pids: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Frame):
    """How a worker ended; its pickled value or exception, if any, came in pieces before."""

    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Log(Frame):
    """Bytes that a worker, or without a rank the agent, wrote; whole lines wherever possible.

    The stream `records` carries `logging` records, a line of JSON each.
    """

    stream: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Frame):
    """No process of the round is left on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rested(Frame):
    """The agent's last word on an app; it waits for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(Frame):
    """The agent cannot go on, and why."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong(Frame):
    """The answer to a ping, with the agent's clock."""

    sent: float
    clock: float


# ── both ways ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece(Frame):
    """A part of something large: a function by its digest, or the payload of a rank."""

    key: str
    offset: int
    total: int
    data: bytes


# ── agent to zygote (descriptors travel beside the frame), zygote to agent ────


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork(Frame):
    """Start one process per set of rank variables; see `worker.zygote` for the descriptors."""

    function: str
    directory: str
    workers: tuple[dict[str, str], ...]
    backend: str | None
    uses_torch: bool
    process_group_timeout: float
    records: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal(Frame):
    """Send a signal to the workers that catch it."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit(Frame):
    """A worker's process was reaped, with this wait status; `signalled` is what we last sent it."""

    status: int
    clock: float
    signalled: int | None


_MESSAGES: tuple[type[Frame], ...] = (
    Prepare, Begin, Stop, Taken, Leave, Rest, Ping, Hello, Want, Ready, Started, Report, Log,
    Stopped, Rested, Broken, Pong, Piece, Fork, Signal, Exit,
)  # fmt: skip
_BY_NAME = {kind.__name__: kind for kind in _MESSAGES}


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
