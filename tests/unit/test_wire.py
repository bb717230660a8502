"""Frames: what is written is what is read, and nothing else is."""

import dataclasses
import typing

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx import _wire as wire
from phalanx._core.limits import ANY_ITEMS, ANY_TEXT
from phalanx._wire import codec, rendezvous_frames
from phalanx.errors import WireError
from phalanx._core.rounds import Ended, Endpoint, ExceptionInfo, EqualHosts, Member, Outcome, Round

text = st.text(max_size=20)
members = st.lists(
    st.builds(Member, st.integers(0, 9), text, st.integers(0, 99), st.integers(1, 9)),
    min_size=1,
    max_size=3,
).map(tuple)
rounds = st.builds(
    Round, st.integers(0, 9), members, st.builds(Endpoint, text, st.integers(0, 65535))
)
exceptions = st.builds(ExceptionInfo, text, text, text, st.booleans(), st.booleans(), st.booleans())
clocks = st.floats(-1e15, 1e15)
seconds = st.floats(0.0, allow_nan=False)
outcomes = st.builds(
    Outcome,
    rank=st.integers(0, 9),
    kind=st.sampled_from(Ended),
    clock=clocks,
    pid=st.none() | st.integers(1, 99),
    code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    exception=st.none() | exceptions,
    stderr=text,
)
common = {"app": text, "round": st.integers(0, 99), "rank": st.none() | st.integers(0, 99)}
frames = st.one_of(
    st.builds(
        wire.Piece,
        key=text,
        offset=st.integers(0, 1 << 40),
        total=st.integers(0, 1 << 40),
        data=st.binary(max_size=200),
        **common,
    ),
    st.builds(
        wire.BeginRound,
        membership=rounds,
        agent=st.integers(0, 9),
        function=text,
        backend=st.none() | text,
        uses_torch=st.booleans(),
        process_group_timeout=seconds,
        **common,
    ),
    st.builds(wire.WorkerEnded, outcome=outcomes, **common),
    st.builds(
        wire.WorkersStarted, pids=st.dictionaries(st.integers(0, 9), st.integers(1, 99)), **common
    ),
    st.builds(wire.LogData, stream=text, data=st.binary(max_size=50), **common),
    st.builds(wire.ShutDown, **common),
    st.builds(
        wire.Ready,
        torch=st.booleans(),
        spawn=st.booleans(),
        left_out=st.lists(text, max_size=2).map(tuple),
        **common,
    ),
)


@given(st.lists(frames, max_size=5), st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_frames_survive_any_cutting_of_the_stream(sent, cuts):
    """Whatever pieces the bytes come in."""
    data = b"".join(map(wire.encode, sent))
    decoder, received, at, i = wire.Decoder(), [], 0, 0
    while at < len(data):
        step = cuts[i % len(cuts)]
        received += decoder.feed(data[at : at + step])
        at, i = at + step, i + 1
    assert received == sent


@given(st.binary(max_size=300))
def test_garbage_raises_only_wire_errors(data):
    """Fuzzed: random bytes."""
    try:
        wire.Decoder().feed(data)
    except WireError:
        pass


@settings(max_examples=300)
@given(frames, st.data())
def test_damaged_frames_raise_only_wire_errors(frame, data):
    """Fuzzed: real frames with some bytes changed."""
    raw = bytearray(wire.encode(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        wire.Decoder().feed(bytes(raw))
    except WireError:
        pass


json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
)


@settings(max_examples=300)
@given(st.sampled_from(sorted(codec._BY_NAME)) | st.text(max_size=5), json)
def test_heads_with_the_wrong_fields_raise_only_wire_errors(name, fields):
    """Fuzzed: valid msgpack of the wrong shape."""
    head = msgpack.packb([name, fields])
    raw = codec._HEADER.pack(b"PHX", wire.VERSION, len(head), 0) + head
    try:
        (frame,) = wire.Decoder().feed(raw)
    except WireError:
        return
    assert wire.encode(frame)


@given(frames, st.data())
def test_quick_reading_takes_what_careful_reading_takes(frame, data):
    """And gives the same: what a field may be is written down twice."""
    kind, fields = type(frame), codec._plain(frame)
    changed = data.draw(st.sampled_from([field.name for field in dataclasses.fields(kind)]))
    fields[changed] = data.draw(json | st.sampled_from([None, *fields.values()]))
    fields = msgpack.unpackb(
        msgpack.packb(fields, unicode_errors="surrogateescape"),
        strict_map_key=False,
        unicode_errors="surrogateescape",
        use_list=False,
    )
    try:
        careful = codec._typed(kind, fields, "frame")
    except WireError:
        careful = None
    try:
        quick = codec._frame_reader(kind)(fields)
    except codec._UnreadableError:
        quick = None
    assert quick == careful


def test_another_version_is_refused_with_what_to_do():
    """The message names both versions."""
    raw = bytearray(wire.encode(wire.ShutDown()))
    raw[3] = 9
    with pytest.raises(WireError, match=r"version 9 .* this side 1.*same version of phalanx"):
        wire.Decoder().feed(bytes(raw))


def test_what_is_not_a_frame_is_shown():
    """So that the user sees who writes there."""
    with pytest.raises(WireError, match="Welcome to node7"):
        wire.Decoder().feed(b"Welcome to node7\n")


def test_lengths_over_the_limit_are_refused_before_they_are_allocated():
    """A header alone is enough."""
    with pytest.raises(WireError, match="over the limit"):
        wire.Decoder().feed(codec._HEADER.pack(b"PHX", wire.VERSION, 1 << 31, 0))
    with pytest.raises(WireError, match="at most"):
        wire.encode(wire.LogData(stream="x", data=b"x" * (wire.PIECE + 1)))


def test_text_that_is_not_unicode_survives():
    """Environment values and paths are bytes in truth."""
    frame = wire.WantContent(digests=("\udcff\udcfe",))
    assert wire.Decoder().feed(wire.encode(frame)) == [frame]


def _numbers_without_range(hint, where):
    if typing.get_origin(hint) is typing.Annotated:
        return []
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return [
            found
            for name in hints
            for found in _numbers_without_range(hints[name], f"{where}.{name}")
        ]
    inner = [found for arg in typing.get_args(hint) for found in _numbers_without_range(arg, where)]
    return [where, *inner] if hint in (int, float) else inner


@pytest.mark.parametrize("name", sorted(codec._BY_NAME))
def test_every_number_in_a_frame_has_a_range(name):
    """What is decoded can be used without another look."""
    assert _numbers_without_range(codec._BY_NAME[name], name) == []


def _sized(hint, path=()):
    """The texts and collections below a type: where each is, and the longest that it may be."""
    limit = None
    if typing.get_origin(hint) is typing.Annotated:
        hint, limit, *_ = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        for name, inner in typing.get_type_hints(hint, include_extras=True).items():
            yield from _sized(inner, (*path, name))
    elif hint is str:
        yield path, "x" * ((limit or ANY_TEXT).size + 1)
    elif origin is dict:
        yield path, dict.fromkeys(range((limit or ANY_ITEMS).size + 1))
    elif origin is tuple:
        yield path, (None,) * ((limit or ANY_ITEMS).size + 1)
        yield from _sized(typing.get_args(hint)[0], (*path, 0))
    else:
        for inner in typing.get_args(hint):
            yield from _sized(inner, path)


_FAULT = Outcome(0, Ended.RAISED, 0.0, exception=ExceptionInfo("E", "m", "t"))
_AT, _RUNS = Endpoint("h", 1), (EqualHosts(1, 1),)
OF_RENDEZVOUS = [
    rendezvous_frames.JoinRequest(
        version="1",
        run_id="run",
        agent=1,
        key="k",
        hostname="h",
        workers=1,
        node_rank=None,
        contact=_AT,
        port=1,
        torch=False,
        bounds=(1, 1),
    ),
    rendezvous_frames.JoinAccepted(leader=1),
    rendezvous_frames.LeaderMoved(contact=_AT),
    rendezvous_frames.LeaderElected(leader=1, contact=_AT),
    rendezvous_frames.JoinRefused(reason="r"),
    rendezvous_frames.HostPosition(position=0),
    rendezvous_frames.RoundFormed(
        leader=1,
        hosts=_RUNS,
        positions=(0,),
        agents=(1,),
        hostnames=("h",),
        addresses=("h",),
        ports=(1,),
        store=_AT,
        restarts=0,
        torch=False,
        cause="c",
        waiting=(2,),
        waiting_at=(_AT,),
    ),
    rendezvous_frames.AgentAsked(),
    rendezvous_frames.AgentTold(agent=1),
    rendezvous_frames.GivenUp(),
    rendezvous_frames.RestartsSpent(restarts=1),
    rendezvous_frames.FailureTold(
        agent=1, hostname="h", outcome=_FAULT, consequence=False, kind="cause"
    ),
    rendezvous_frames.AppEnded(reason="r", missing=("h",), note="", hosts=_RUNS),
    rendezvous_frames.RendezvousClosed(),
]


@pytest.mark.parametrize("frame", OF_RENDEZVOUS, ids=lambda frame: type(frame).__name__)
def test_texts_and_collections_of_a_rendezvous_have_a_range(frame):
    """All of them, also inside of others: one that is longer is refused by its name."""
    kind = type(frame)
    for path, long in _sized(kind):
        fields = _as_read(codec._plain(frame))
        codec._typed(kind, fields, "frame")  # or it is refused for something else
        inner = fields
        for step in path[:-1]:
            inner = inner[step]
        if isinstance(inner, tuple):  # the first item of a collection
            above = fields
            for step in path[:-2]:
                above = above[step]
            above[path[-2]] = (long, *inner[1:])
        else:
            inner[path[-1]] = long
        with pytest.raises(WireError, match=f"{path[-1]}.*: its length is {len(long)}, at most"):
            codec._typed(kind, fields, "frame")
        with pytest.raises(codec._UnreadableError):
            codec._frame_reader(kind)(fields)


def _as_read(value):
    if isinstance(value, dict):
        return {key: _as_read(item) for key, item in value.items()}
    return tuple(map(_as_read, value)) if isinstance(value, list) else value


def test_every_frame_of_a_rendezvous_is_tried():
    """Of those that its hosts have among themselves."""
    own = {k for k in codec._BY_NAME.values() if k.__module__ == rendezvous_frames.__name__}
    assert own == {type(frame) for frame in OF_RENDEZVOUS}


@pytest.mark.parametrize(
    "frame",
    [
        wire.Reach(address="a", port=65536),
        wire.Reach(address="a" * 256, port=1),
        wire.HaltRound(grace=float("nan")),
        wire.HaltRound(grace=-1.0),
        wire.WorkersStarted(round=-1, pids={}),
        wire.WorkersStarted(pids={-1: 5}),
        wire.SignalWorkers(number=65),
        wire.WantContent(digests=("x" * 300,)),
        wire.WorkerEnded(outcome=Outcome(-1, Ended.LOST, 0.0)),
        wire.WorkerEnded(outcome=Outcome(1, Ended.LOST, float("inf"))),
        wire.ProjectArrived(size=-1),
        wire.Ready(torch=False, spawn=False, notes=("x" * (5 << 20),)),
    ],
)
def test_what_is_out_of_range_is_refused(frame):
    """Numbers, lengths, what is not a number; with the name of the field."""
    with pytest.raises(WireError, match=f"^{type(frame).__name__}"):
        wire.Decoder().feed(wire.encode(frame))
