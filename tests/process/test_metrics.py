"""Metrics in processes that fork and exit."""

import os
import subprocess
import sys
import threading
import types

import phalanx.metrics as metrics
from tests.unit.test_metrics import silence  # noqa: F401


def test_a_forked_child_delivers_its_own_and_only_that(tmp_path):
    """The parent's items are delivered once, by the parent."""
    gate = threading.Event()

    class Appending:
        ready = threading.Event()

        def emit(self, metric_data):
            self.ready.set()
            gate.wait(30)
            with open(tmp_path / str(os.getpid()), "a") as file:
                file.write(f"{metric_data.name}\n")

    metrics.configure(Appending())
    for name in ("one", "two", "three"):
        metrics.put_metric(name, 1)
    assert Appending.ready.wait(30)
    if (child := os.fork()) == 0:
        code = 1
        try:
            gate = types.SimpleNamespace(wait=lambda _: True)
            metrics.put_metric("four", 1)
            code = 0 if metrics.flush(30) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    gate.set()
    assert metrics.flush()
    assert (tmp_path / str(child)).read_text() == "four\n"
    assert (tmp_path / str(os.getpid())).read_text() == "one\ntwo\nthree\n"


def test_the_interpreters_exit_delivers_what_is_queued(script):
    """To the console, from a program that does nothing for it."""
    done = script("""
        from phalanx import metrics
        metrics.configure(metrics.ConsoleMetricHandler())
        for i in range(1000):
            metrics.put_metric("a", i)
    """)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.partition("]: ")[2] for line in lines] == [str(i) for i in range(1000)]


def test_the_interpreters_exit_does_not_wait_for_a_pipe_that_nobody_reads(script):
    """And is not aborted for it: what is lost is said."""
    process = script.start("""
        from phalanx import _delivery as delivery
        from phalanx import metrics
        delivery.PATIENCE = 0.1
        metrics.configure(metrics.ConsoleMetricHandler())
        for i in range(5000):
            metrics.put_metric("a" * 100, i)
    """)
    with process:
        assert process.wait(30) == 0
        assert "ConsoleMetricHandler.emit is too slow" in process.stderr.read()
