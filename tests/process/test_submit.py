"""Calls that are submitted: futures with an id."""

import concurrent.futures
import os
import time
from pathlib import Path

import pytest

import phalanx
from tests.conftest import is_alive, wait_until


def square(x):
    return x * x


def hang():
    Path("pid").write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)


@pytest.fixture
def launcher():
    with phalanx.Launcher(workers_per_host=1) as launcher:
        yield launcher


def test_a_job_is_a_future(launcher):
    """Of the result of a launch."""
    job = launcher.submit(square, 3)
    assert isinstance(job, concurrent.futures.Future)
    assert job.result(timeout=60).values == (9,)
    assert job.exception() is None
    assert (job.done(), job.running(), job.cancelled()) == (True, False, False)
    assert job.id.startswith("square-")
    assert not job.cancel()


def test_jobs_can_be_waited_for_together(launcher):
    """With `as_completed` and `wait`."""
    jobs = [launcher.submit(square, x=x) for x in range(3)]
    ended = [job.result().rank(0) for job in concurrent.futures.as_completed(jobs, timeout=60)]
    assert sorted(ended) == [0, 1, 4]
    done, pending = concurrent.futures.wait(jobs, timeout=60)
    assert (done, pending) == (set(jobs), set())


def test_a_failed_job_raises_what_its_function_raised(launcher):
    """With the worker's traceback in its notes."""

    def fail():
        raise KeyError("lost")

    job = launcher.submit(fail)
    with pytest.raises(KeyError, match="lost"):
        job.result(timeout=60)
    assert isinstance(job.exception(), KeyError)
    assert "in fail" in "".join(job.exception().__notes__)


def test_a_job_that_runs_can_be_cancelled(launcher):
    """Nothing of it is left, and whoever waits is told."""
    job = launcher.submit(hang)
    pid = int(wait_until(lambda: Path("pid").exists() and Path("pid").read_text()))
    with pytest.raises(TimeoutError):
        job.result(timeout=0)
    assert job.cancel()
    (ended,) = concurrent.futures.as_completed([job], timeout=60)
    assert ended.cancelled()
    assert job.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        job.result()
    wait_until(lambda: not is_alive(pid))


def test_mistakes_are_named_before_a_job_is_started(launcher):
    """A call that does not fit, and a launcher that runs in this process."""
    with pytest.raises(TypeError, match="square"):
        launcher.submit(square)
    with pytest.raises(phalanx.ConfigError, match="inline"):
        phalanx.Launcher(workers_per_host=1, start_method="inline").submit(square, 1)
