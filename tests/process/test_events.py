"""Events in processes that fork, exit, and share a file."""

import multiprocessing
import os
import threading

import phalanx.events as events
from phalanx.events import Event, EventSource
from tests.unit.test_events import Collecting, record, silence  # noqa: F401


def _append(path, number):
    handler = events.JSONLinesEventHandler(path)
    for i in range(200):
        handler.record(Event(f"{number}-{i}", EventSource.WORKER, metadata={"fill": "x" * 500}))


def test_several_processes_append_to_one_file(tmp_path):
    """No line is torn or lost."""
    path = str(tmp_path / "events.jsonl")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append, args=(path, n)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        worker.close()
    with open(path) as file:
        names = [Event.deserialize(line).name for line in file]
    assert sorted(names) == sorted(f"{n}-{i}" for n in range(4) for i in range(200))


def test_a_forked_child_has_its_own_queue(tmp_path):
    """It appends to the same file, and nothing comes twice."""
    gate = threading.Event()
    path = tmp_path / "events.jsonl"
    file = events.JSONLinesEventHandler(path)
    blocked = Collecting(gate)
    events.configure(file, blocked)
    record("parent")
    assert blocked.entered.wait(30)
    if (child := os.fork()) == 0:
        code = 1
        try:
            events.configure(file)
            record("child")
            code = 0 if events.flush(30) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    gate.set()
    assert events.flush()
    assert blocked.names == ["parent"]
    names = [Event.deserialize(line).name for line in path.read_text().splitlines()]
    assert sorted(names) == ["child", "parent"]


def test_a_handler_that_forks_does_not_go_on_in_the_child(script):
    """The child's copy of its thread ends there, and delivers nothing."""
    done = script("""
        import os, types
        from phalanx import events
        def fork(event):
            if (child := os.fork()) != 0:
                os.waitpid(child, 0)
                print(event.name, os.getpid() == parent, flush=True)
        parent = os.getpid()
        events.configure(types.SimpleNamespace(record=fork))
        for name in "ab":
            events.record(events.Event(name, events.EventSource.AGENT))
        events.flush(30)
    """)
    assert done.stdout == "a True\nb True\n"


def test_the_interpreters_exit_delivers_what_is_queued(script, tmp_path):
    """Also what an exit function of the program records, and in a forked child."""
    done = script("""
        import atexit, os
        from phalanx import events
        from phalanx.events import Event, EventSource
        record = lambda name: events.record(Event(name, EventSource.WORKER))
        events.configure(events.JSONLinesEventHandler("events.jsonl"))
        for i in range(100):
            record(f"{i}")
        events.flush()
        child = os.fork()
        if child == 0:
            record("child")
        else:
            os.waitpid(child, 0)
            atexit.register(record, "last")
    """)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    names = [Event.deserialize(line).name for line in lines]
    assert names == [*map(str, range(100)), "child", "last"]


def test_the_interpreters_exit_does_not_wait_for_a_handler_that_never_returns(script):
    """What is lost is said; the exit code is the program's own."""
    done = script("""
        import threading, sys
        from phalanx import _delivery as delivery
        from phalanx import events
        delivery.PATIENCE = 0.1
        class Stuck(events.EventHandler):
            def record(self, event):
                threading.Event().wait()
        events.configure(Stuck())
        for name in "abc":
            events.record(events.Event(name, events.EventSource.AGENT))
        sys.exit(7)
    """)
    assert done.returncode == 7
    assert done.stderr == "phalanx: Stuck.record is too slow: 3 items were lost at exit\n"


def test_the_interpreters_exit_does_not_wait_for_logging_that_is_stuck(script):
    """Though the handler that is stuck holds the lock which `logging.shutdown` wants."""
    done = script("""
        import logging, threading
        from phalanx import _delivery as delivery
        from phalanx import events
        delivery.PATIENCE = 0.1
        inside = threading.Event()
        class Stuck(logging.Handler):
            def emit(self, record):
                inside.set()
                threading.Event().wait()
        logging.getLogger().addHandler(Stuck())
        logging.getLogger().setLevel(logging.INFO)
        events.configure(events.LoggingEventHandler())
        events.record(events.Event("x", events.EventSource.AGENT))
        inside.wait()
        print("bye")
    """)
    assert (done.returncode, done.stdout) == (0, "bye\n")
