"""Handlers of the program's logging that never return."""

import logging
import threading

import pytest

from phalanx._logs import logger, stuck_handlers


@pytest.fixture
def stuck():
    """One whose lock another thread has, as logging's own end would find it."""
    handler, go_on, inside = logging.NullHandler(), threading.Event(), threading.Event()
    handler.lock = threading.RLock()

    def hold():
        with handler.lock:
            inside.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    yield handler
    go_on.set()
    thread.join()


def known():
    return [reference() for reference in logging._handlerList]


def test_logging_is_free_unless_one_is_stuck(stuck):
    """That one is forgotten, the others are not."""
    free = logging.NullHandler()
    assert stuck in known()
    assert not stuck_handlers.forget_stuck()
    assert stuck not in known() and free in known()
    assert stuck_handlers.forget_stuck()
    stuck_handlers.forget(free)
    assert free not in known()


def test_a_warning_aside_does_not_wait_for_the_handler(stuck):
    """Nor does it raise what the handler does."""
    got = threading.Event()

    class Waits(logging.Handler):
        def emit(self, record):
            with stuck.lock:
                got.set()

    handler = Waits()
    logger.addHandler(handler)
    try:
        stuck_handlers.warn_on_thread("phalanx: %s", "slow")
        assert not got.is_set()
    finally:
        logger.removeHandler(handler)
