"""Calls that are submitted: futures with an id."""

import concurrent.futures
import os
import signal
import sys
import subprocess
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


# ── on a scheduler ────────────────────────────────────────────────────────────


@pytest.fixture
def on_scheduler():
    """A launcher whose jobs are apps of this machine's own scheduler."""
    return phalanx.Launcher(scheduler="local_cwd", workers_per_host=2)


def test_a_job_on_a_scheduler_outlives_who_submits_it(on_scheduler, script):
    """And is picked up by its id from another process."""
    done = script(
        """
        import os, time, phalanx
        from pathlib import Path

        def wait(name):
            while not Path(name).exists():
                time.sleep(0.01)
            return name, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

        if __name__ == "__main__":
            launcher = phalanx.Launcher(scheduler="local_cwd", workers_per_host=2)
            print(launcher.submit(wait, "go").id)
        """
    )
    assert done.returncode == 0, done.stderr
    job = phalanx.Job(done.stdout.strip())
    assert job.id.startswith("local_cwd://phalanx/wait-")
    assert not job.done()
    assert isinstance(job, concurrent.futures.Future)
    Path("go").touch()
    assert list(job.result(timeout=60)) == [("go", 0, 2), ("go", 1, 2)]
    assert phalanx.Job(job.id).done()


def test_a_job_on_a_scheduler_fails_as_its_function_did(on_scheduler):
    """With the worker's traceback."""

    def fail():
        raise KeyError("lost")

    job = on_scheduler.submit(fail)
    with pytest.raises(KeyError, match="lost"):
        job.result(timeout=60)
    assert "in fail" in "".join(job.exception().__notes__)


def test_a_job_on_a_scheduler_can_be_cancelled(on_scheduler):
    """Also by another process, which is told to whoever waits."""
    job = on_scheduler.submit(hang)
    wait_until(lambda: Path("pid").exists() and Path("pid").read_text())
    assert phalanx.Job(job.id).cancel()
    (ended,) = concurrent.futures.as_completed([job], timeout=60)
    assert ended.cancelled()


def test_a_job_that_was_killed_says_so(on_scheduler):
    """With where to look; what is left of it is cleared by the next command at the latest."""

    def kill():
        os.kill(int(Path(f"/proc/{os.getppid()}/stat").read_text().split()[3]), signal.SIGKILL)
        time.sleep(60)

    job = on_scheduler.submit(kill)
    error = job.exception(timeout=60)
    assert isinstance(error, phalanx.LaunchError), error
    subprocess.run([sys.executable, "-m", "phalanx", "list"], capture_output=True, check=True)


@pytest.mark.parametrize(
    ("job_id", "message"),
    [
        ("square-1a2b3c4d", "is not the id of a job on a scheduler"),
        ("local_cwd://phalanx/none-1a2b3c4d", "no job"),
        ("slrum://phalanx/none-1a2b3c4d", "Did you mean 'slurm'"),
    ],
)
def test_an_id_that_names_no_job_is_refused(job_id, message):
    """In a sentence."""
    with pytest.raises(phalanx.ConfigError, match=message):
        phalanx.Job(job_id)


def test_what_a_call_leaves_on_disk_is_for_its_owner_alone(on_scheduler, own_state):
    """The call, and what came of it."""
    on_scheduler.submit(square, 2).result(timeout=60)
    places = list((own_state.parent / "calls").iterdir())
    assert places
    for place in places:
        assert place.stat().st_mode & 0o077 == 0
        assert all(path.stat().st_mode & 0o077 == 0 for path in place.iterdir())


def test_a_scheduler_of_containers_takes_no_jobs():
    """The container would not have the call's files."""
    launcher = phalanx.Launcher(scheduler="local_docker", image="python:3.12")
    with pytest.raises(phalanx.ConfigError, match="submit does not run in containers"):
        launcher.submit(int)
