"""Metrics: what is put, who gets it, and that no handler disturbs who puts it."""

import asyncio
import logging
import os
import threading
import time
import types

import pytest

import phalanx.metrics as metrics
from phalanx import _delivery as delivery
from phalanx.errors import ConfigError


class Collecting(metrics.MetricHandler):
    """Keeps what it gets; if `gate` is given, only once that is set."""

    def __init__(self, gate=None):
        self.got = []
        self.entered = threading.Event()
        self._gate = gate

    def emit(self, metric_data):
        self.entered.set()
        assert self._gate is None or self._gate.wait(30)
        self.got.append(metric_data)

    @property
    def pairs(self):
        return [(data.name, data.value) for data in self.got]


@pytest.fixture(autouse=True)
def silence():
    """Nothing is configured before and after, for any group."""
    yield
    for group in list(metrics._DELIVERIES.chosen):
        metrics.configure(metrics.NullMetricHandler(), group)


@pytest.fixture
def warnings():
    """The warnings of the package, and an event that is set with the first of them."""
    found = types.SimpleNamespace(texts=[], first=threading.Event())

    class Listening(logging.Handler):
        def emit(self, record):
            found.texts.append(record.getMessage())
            found.first.set()

    listening = Listening(logging.WARNING)
    logging.getLogger("phalanx").addHandler(listening)
    yield found
    logging.getLogger("phalanx").removeHandler(listening)


def test_the_guides_metric_handler():
    """A handler written as in the customization guide gets the metrics."""
    sink = []

    class MyMetricHandler(metrics.MetricHandler):
        def emit(self, metric_data: metrics.MetricData):
            sink.append(metric_data)

    before = time.time()
    metrics.configure(MyMetricHandler())
    metrics.put_metric("workers.trainer.run_total", 1)
    assert metrics.flush()
    (data,) = sink
    assert (data.group_name, data.name, data.value) == ("phalanx", "workers.trainer.run_total", 1)
    assert before <= data.timestamp <= time.time()
    with pytest.raises(AttributeError):
        data.value = 2


def test_by_default_nothing_is_queued_and_no_thread_exists():
    """Nor with the null handler, once configured."""
    threads = threading.enumerate()
    metrics.put_metric("a", 1)
    metrics.configure(metrics.NullMetricHandler())
    metrics.put_metric("a", 1)
    assert threading.enumerate() == threads
    assert metrics._DELIVERIES.all() == []
    assert metrics.flush(0)


def test_a_subclass_of_the_null_handler_is_called():
    """It may have overridden what the null handler does not do."""

    class Mine(metrics.NullMetricHandler):
        got = []

        def emit(self, metric_data):
            self.got.append(metric_data.name)

    metrics.configure(Mine())
    metrics.put_metric("a", 1)
    assert metrics.flush()
    assert Mine.got == ["a"]


def test_a_group_may_have_a_handler_of_its_own():
    """And keeps it when one is configured for all."""
    general, special, later = Collecting(), Collecting(), Collecting()
    metrics.configure(general)
    metrics.configure(special, group="io")
    metrics.put_metric("a", 1)
    metrics.put_metric("b", 2, "io")
    metrics.configure(later)
    metrics.put_metric("c", 3, "other")
    metrics.put_metric("d", 4, metric_group="io")
    metrics.configure(metrics.NullMetricHandler(), group="io")
    metrics.put_metric("e", 5, "io")
    assert metrics.flush()
    assert general.pairs == [("a", 1)]
    assert special.pairs == [("b", 2), ("d", 4)]
    assert later.pairs == [("c", 3)]


def test_one_handler_for_all_and_for_a_group_has_one_thread():
    """So that it is never called twice at a time, and in order."""
    before = threading.active_count()
    handler = Collecting()
    metrics.configure(handler)
    metrics.configure(handler, "io")
    for i in range(100):
        metrics.put_metric("a", i, "io" if i % 2 else "phalanx")
    assert threading.active_count() == before + 1
    assert metrics.flush()
    assert [data.value for data in handler.got] == list(range(100))


def test_a_blocked_handler_holds_up_nobody():
    """It gets everything, in order, once it goes on."""
    gate = threading.Event()
    handler = Collecting(gate)
    metrics.configure(handler)
    for i in range(100):
        metrics.put_metric("a", i)
    assert handler.entered.wait(30)
    assert not metrics.flush(0)
    assert handler.got == []
    gate.set()
    assert metrics.flush()
    assert [data.value for data in handler.got] == list(range(100))


def test_a_handler_that_raises_is_reported_once_and_goes_on(warnings):
    """With type and message; even if it wants to exit."""

    class Raising:
        calls = 0

        def emit(self, metric_data):
            self.calls += 1
            raise SystemExit("no such bucket")

    handler = Raising()
    metrics.configure(handler)
    for i in range(10):
        metrics.put_metric("a", i)
    assert metrics.flush()
    assert handler.calls == 10
    (text,) = warnings.texts
    assert "Raising.emit raised SystemExit: no such bucket" in text


def test_what_does_not_fit_is_counted_and_said(monkeypatch, warnings):
    """Once when it begins, and how many it were when the handler is done."""
    monkeypatch.setattr(delivery, "BOUND", 10)
    gate = threading.Event()
    handler = Collecting(gate)
    metrics.configure(handler)
    metrics.put_metric("a", 0)
    assert handler.entered.wait(30)
    for i in range(1, 31):
        metrics.put_metric("a", i)
    assert warnings.first.wait(30)
    gate.set()
    assert metrics.flush()
    metrics.configure(metrics.NullMetricHandler())
    assert metrics.flush()
    assert [data.value for data in handler.got] == list(range(11))
    assert warnings.texts == [
        "phalanx: Collecting.emit is too slow: 10 items are queued, dropping further ones",
        "phalanx: Collecting.emit was too slow: 20 items were dropped",
    ]


def test_what_is_queued_goes_to_the_former_handler():
    """Also to one that comes back before it has had everything: in one order."""
    gate = threading.Event()
    former, latter = Collecting(gate), Collecting()
    metrics.configure(former)
    metrics.put_metric("a", 1)
    metrics.put_metric("a", 2)
    metrics.configure(latter)
    metrics.put_metric("a", 3)
    metrics.configure(former)
    metrics.put_metric("a", 4)
    assert former.got == []
    gate.set()
    assert metrics.flush()
    assert former.pairs == [("a", 1), ("a", 2), ("a", 4)]
    assert latter.pairs == [("a", 3)]


def test_who_looked_before_another_was_configured_still_delivers():
    """And the thread that this starts ends again."""
    handler = Collecting()
    metrics.configure(handler)
    (looked_at,) = metrics._DELIVERIES.chosen[None]
    metrics.configure(metrics.NullMetricHandler())
    looked_at.put("late")
    assert looked_at.mark().wait(30)
    assert handler.got == ["late"]


def test_a_handler_may_put_metrics_flush_and_configure():
    """On its own thread, without waiting for itself."""
    second = Collecting()

    class Chaining:
        def emit(self, metric_data):
            assert metrics.flush(30)
            metrics.configure(second)
            metrics.put_metric("second", 2)

    metrics.configure(Chaining())
    metrics.put_metric("first", 1)
    assert metrics.flush()
    assert metrics.flush()
    assert second.pairs == [("second", 2)]


def test_configuring_from_many_threads_loses_nothing():
    """Every metric goes to one of the handlers, and those of a thread in its order."""
    handlers = [Collecting() for _ in range(4)]

    def work(number):
        for i in range(200):
            metrics.configure(handlers[(number + i) % 4])
            metrics.put_metric(str(number), i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.flush(30)
    got = [handler.pairs for handler in handlers]
    assert sorted(sum(got, [])) == sorted((str(n), i) for n in range(4) for i in range(200))
    for pairs in got:
        for number in "0123":
            values = [value for name, value in pairs if name == number]
            assert values == sorted(values)


def test_what_cannot_be_a_handler_is_refused():
    """In a sentence; and nothing changes."""
    handler = Collecting()
    metrics.configure(handler)
    with pytest.raises(ConfigError, match=r"Collecting is a class.*Pass an instance: Collecting()"):
        metrics.configure(Collecting)
    with pytest.raises(ConfigError, match=r"is not a handler: it has no method emit\(\)"):
        metrics.configure(object())
    with pytest.raises(ConfigError, match="None is not a handler"):
        metrics.configure(None)
    metrics.put_metric("a", 1)
    assert metrics.flush()
    assert handler.pairs == [("a", 1)]


def test_anything_with_the_method_is_a_handler():
    """Whatever its class."""
    got = []
    metrics.configure(types.SimpleNamespace(emit=got.append))
    metrics.put_metric("a", 1)
    assert metrics.flush()
    assert got[0].name == "a"


def test_a_metric_handler_of_torch_is_a_handler():
    """As it was written for torchelastic."""
    api = pytest.importorskip("torch.distributed.elastic.metrics.api")
    got = []

    class Theirs(api.MetricHandler):
        def emit(self, metric_data):
            got.append((metric_data.group_name, metric_data.name, metric_data.value))

    metrics.configure(Theirs())
    metrics.put_metric("a", 1)
    assert metrics.flush()
    assert got == [("phalanx", "a", 1)]


def test_prof_measures_success_and_failure():
    """The function stays what it is; what it raises goes through."""
    handler = Collecting()
    metrics.configure(handler)
    problem = KeyError("x")

    @metrics.prof
    def good(x):
        """Say so."""
        return x + 1

    @metrics.prof(group="mine")
    def bad():
        raise problem

    assert good(1) == 2
    assert good.__doc__ == "Say so."
    assert good.__wrapped__(1) == 2
    with pytest.raises(KeyError) as caught:
        bad()
    assert caught.value is problem
    assert metrics.flush()
    here = "test_prof_measures_success_and_failure.<locals>"
    assert [(data.group_name, data.name) for data in handler.got] == [
        ("phalanx", f"{here}.good.success"),
        ("phalanx", f"{here}.good.duration.ms"),
        ("mine", f"{here}.bad.failure"),
        ("mine", f"{here}.bad.duration.ms"),
    ]
    assert handler.got[0].value == handler.got[2].value == 1
    assert all(0 <= data.value < 30_000 for data in handler.got[1::2])


def test_prof_of_a_coroutine_measures_the_awaiting():
    """Not the making of it."""
    handler = Collecting()
    metrics.configure(handler)

    @metrics.prof
    async def work():
        await asyncio.sleep(0)
        raise ValueError

    awaited = work()
    assert metrics.flush()
    assert handler.got == []
    with pytest.raises(ValueError):
        asyncio.run(awaited)
    assert metrics.flush()
    assert [data.name.rpartition(">.")[2] for data in handler.got] == [
        "work.failure",
        "work.duration.ms",
    ]


def test_the_console_handler_prints_a_line(capsys):
    """Timestamp, group, name and value."""
    metrics.ConsoleMetricHandler().emit(metrics.MetricData(12.5, "g", "n", 3))
    assert capsys.readouterr().out == "[12.500][g][n]: 3\n"


def test_without_a_handler_nobody_is_told():
    """As with events."""
    mine = Collecting()
    metrics.configure(mine)
    metrics.configure()
    metrics.put_metric("x", 1)
    assert metrics.flush()
    assert mine.got == []
