"""Events: their text, where they go, and that no handler disturbs who records them."""

import io
import json
import logging
import math
import multiprocessing
import os
import threading
import time
import types

import pytest

import phalanx.events as events
from phalanx import _delivery as delivery
from phalanx.errors import ConfigError
from phalanx.events import Event, EventSource


class Collecting(events.EventHandler):
    """Keeps what it gets; if `gate` is given, only once that is set."""

    def __init__(self, gate=None):
        self.got = []
        self.entered = threading.Event()
        self._gate = gate

    def record(self, event):
        self.entered.set()
        assert self._gate is None or self._gate.wait(30)
        self.got.append(event)

    @property
    def names(self):
        return [event.name for event in self.got]


def record(*names):
    for name in names:
        events.record(Event(name, EventSource.AGENT))


@pytest.fixture(autouse=True)
def silence():
    """Nothing is configured before and after."""
    yield
    events.configure()


def test_the_guides_event_handler():
    """A handler written as in the customization guide gets the events."""
    seen = []

    class MyEventHandler(events.EventHandler):
        def record(self, event: events.Event):
            seen.append(event)

    events.configure(MyEventHandler())
    event = Event("round.started", EventSource.LAUNCHER, metadata={"round": 1})
    events.record(event)
    assert events.flush()
    assert seen == [event]


def test_an_event_is_of_now_unless_told_and_does_not_change():
    """Not even with the mapping that it was given."""
    before = time.time()
    given = {"a": 1}
    event = Event("x", EventSource.WORKER, metadata=given)
    given["a"] = 2
    assert before <= event.timestamp <= time.time()
    assert event.metadata == {"a": 1}
    assert Event("x", EventSource.WORKER, 5.0).timestamp == 5.0
    with pytest.raises(AttributeError):
        event.name = "y"


def test_an_event_goes_through_text():
    """One line of JSON, sorted, and back."""
    event = Event("x", EventSource.WORKER, 1.25, {"b": [1, None, "é\n"], "a": {"z": 1, "y": True}})
    text = event.serialize()
    assert "\n" not in text
    assert text == json.dumps(json.loads(text), sort_keys=True)
    assert Event.deserialize(text) == event
    assert Event.deserialize(text).source is EventSource.WORKER


def test_what_json_cannot_hold_becomes_its_repr():
    """Values and keys, at any depth; what contains itself; what has no repr."""

    class Mute:
        def __repr__(self):
            raise RuntimeError

    endless = []
    endless.append(endless)
    metadata = {
        "set": {1},
        "deep": [{"type": (int, 2)}],
        "nan": math.nan,
        "endless": endless,
        "mute": Mute(),
        3: "three",
        (1, 2): "pair",
    }
    text = Event("x", EventSource.AGENT, 0.0, metadata).serialize()
    plain = json.loads(text, parse_constant=pytest.fail)["metadata"]
    assert plain.pop("mute").startswith("<")
    assert plain == {
        "set": "{1}",
        "deep": [{"type": ["<class 'int'>", 2]}],
        "nan": "nan",
        "endless": ["[[...]]"],
        "3": "three",
        "(1, 2)": "pair",
    }


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"name": "x", "source": "NOBODY", "timestamp": 1, "metadata": {}}']
)
def test_a_text_that_is_not_an_event_is_refused(text):
    """In a sentence."""
    with pytest.raises(ConfigError, match="not an event"):
        Event.deserialize(text)


def test_several_handlers_get_every_event_in_order():
    """Each once, though it be named twice; `configure()` is silence again."""
    one, two = Collecting(), Collecting()
    threads = threading.active_count()
    events.configure(one, events.NullEventHandler(), two, one)
    names = [str(i) for i in range(100)]
    record(*names)
    events.configure()
    record("unheard")
    assert events.flush()
    assert one.names == two.names == names
    assert events._DELIVERIES.chosen == {None: ()}
    assert threading.active_count() <= threads + 2


def test_by_default_nothing_is_queued_and_no_thread_exists():
    """Nor with the null handler."""
    threads = threading.enumerate()
    record("a")
    events.configure(events.NullEventHandler())
    record("a")
    assert threading.enumerate() == threads
    assert events.flush(0)


def test_a_blocked_handler_holds_up_neither_who_records_nor_other_handlers():
    """The others have had everything before it goes on."""
    gate, all_there = threading.Event(), threading.Event()
    blocked = Collecting(gate)
    free = types.SimpleNamespace(record=lambda e: e.name == "last" and all_there.set())
    events.configure(blocked, free)
    record("first", "last")
    assert all_there.wait(30)
    assert not events.flush(0)
    assert blocked.got == []
    gate.set()
    assert events.flush()
    assert blocked.names == ["first", "last"]


def test_a_handler_that_raises_is_reported_once_and_goes_on(caplog):
    """Also one that cannot say what is wrong."""

    class Unsayable(Exception):
        def __str__(self):
            raise RuntimeError

    def fail(event):
        got.append(event.name)
        raise Unsayable if event.name == "odd" else OSError(28, "No space left on device")

    got = []
    events.configure(types.SimpleNamespace(record=fail))
    record("a", "b", "c")
    assert events.flush()
    assert got == ["a", "b", "c"]
    (text,) = caplog.messages
    assert "raised OSError: [Errno 28] No space left on device" in text
    events.configure(types.SimpleNamespace(record=fail))
    record("odd", "d")
    assert events.flush()
    assert got == ["a", "b", "c", "odd", "d"]


def test_a_flood_is_bounded_and_the_rest_counted(monkeypatch, caplog):
    """What fits is delivered; what does not is counted."""
    monkeypatch.setattr(delivery, "BOUND", 5)
    gate = threading.Event()
    handler = Collecting(gate)
    events.configure(handler)
    record("in hand")
    assert handler.entered.wait(30)
    record(*map(str, range(1000)))
    gate.set()
    events.configure()
    assert events.flush()
    assert handler.names == ["in hand", "0", "1", "2", "3", "4"]
    assert "phalanx: Collecting.record was too slow: 995 items were dropped" in caplog.messages


def test_what_cannot_be_a_handler_is_refused_and_nothing_changes():
    """Even if others beside it could be."""
    handler = Collecting()
    events.configure(handler)
    with pytest.raises(ConfigError, match="Collecting is a class"):
        events.configure(Collecting(), Collecting)
    with pytest.raises(ConfigError, match=r"has no method record\(\)"):
        events.configure(logging.NullHandler())
    record("a")
    assert events.flush()
    assert handler.names == ["a"]


def test_json_lines_go_to_a_file_in_a_directory_that_is_made(tmp_path):
    """One line for each event, after what was there."""
    path = tmp_path / "a" / "b" / "events.jsonl"
    events.configure(events.JSONLinesEventHandler(path))
    record("one")
    events.configure(events.JSONLinesEventHandler(str(path)))
    assert events.flush()
    record("two")
    assert events.flush()
    lines = path.read_text().splitlines()
    assert [Event.deserialize(line).name for line in lines] == ["one", "two"]


def test_json_lines_are_found_where_they_were_meant(tmp_path, monkeypatch):
    """Whatever directory the program goes to afterwards."""
    handler = events.JSONLinesEventHandler("events.jsonl")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    handler.record(Event("x", EventSource.AGENT))
    assert Event.deserialize((tmp_path / "events.jsonl").read_text()).name == "x"


def test_json_lines_go_to_a_stream_and_nothing_else_is_taken():
    """A line is one write, and flushed."""
    calls = []

    class Stream(io.StringIO):
        def write(self, text):
            calls.append("write")
            return super().write(text)

        def flush(self):
            calls.append("flush")

    stream = Stream()
    events.JSONLinesEventHandler(stream).record(Event("x", EventSource.AGENT))
    assert calls == ["write", "flush"]
    assert Event.deserialize(stream.getvalue()).name == "x"
    with pytest.raises(ConfigError, match="5 must be a path or a stream"):
        events.JSONLinesEventHandler(5)


def test_the_logging_handler_logs_the_event(caplog):
    """At its level, to its logger; the record has the event itself."""
    event = Event("x", EventSource.AGENT, 1.0, {"a": 1})
    with caplog.at_level(logging.INFO):
        events.LoggingEventHandler().record(event)
        events.LoggingEventHandler(logging.getLogger("mine"), logging.ERROR).record(event)
        events.LoggingEventHandler(level=logging.DEBUG).record(event)
    assert [(r.name, r.levelno) for r in caplog.records] == [("phalanx.events", 20), ("mine", 40)]
    assert caplog.messages[0] == event.serialize()
    assert caplog.records[0].event is event
