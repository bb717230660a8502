"""Many calls, and calls that are submitted, on a real Slurm."""

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import phalanx
from phalanx._cli import main as command
from phalanx._schedulers.slurm import controller as slurm_controller
from phalanx.runner import get_runner
from tests.conftest import wait_until

pytestmark = pytest.mark.usefixtures("in_slurm")


def launcher(**options):
    given = {"scheduler": "slurm", "workers_per_host": 1, **options}
    own = given.pop("scheduler_options", {})
    return phalanx.Launcher(scheduler_options={"cpus": 1, **own}, **given)


def node():
    return os.environ["SLURMD_NODENAME"]


def hang(name):
    Path(name).write_text(os.environ["SLURM_JOB_ID"])
    while True:
        time.sleep(0.05)


def items(count):
    return [{"x": x} for x in range(count)]


def job_of(name):
    """The Slurm job of a call that hangs, once it runs."""
    return wait_until(lambda: Path(name).exists() and Path(name).read_text(), timeout=60)


def no_cancelling_is_left():
    """Threads ask Slurm until a job has ended; behind a test there is none to be asked."""
    left = lambda: [t for t in threading.enumerate() if t.name.startswith("phalanx-cancel")]
    wait_until(lambda: not left(), timeout=60)


def test_a_map_runs_on_hosts_of_one_allocation(tmp_path, monkeypatch):
    """Each call on one of them; two that wait for each other are on two.

    With all in its checkpoint, it asks for none.
    """

    def meet(x):
        (tmp_path / f"here-{x}").touch()
        while x < 2 and not (tmp_path / f"here-{1 - x}").exists():
            time.sleep(0.01)
        return node(), os.environ["SLURM_JOB_ID"]

    lent = launcher(num_hosts=2)
    results = [r.rank(0) for r in lent.map(meet, items(4), checkpoint=tmp_path / "done")]
    assert len({job for _, job in results}) == 1
    assert len({host for host, _ in results[:2]}) == 2
    monkeypatch.setenv("PATH", "/nowhere")  # there is no salloc
    again = lent.map(meet, items(4), checkpoint=tmp_path / "done")
    assert [r.rank(0) for r in again] == results


@pytest.mark.parametrize("how", ["preempted", "lost"])
def test_hosts_of_a_map_that_slurm_takes_back_are_replaced(in_slurm, tmp_path, how):
    """The calls that they had are made again; the others of the map follow on the new ones."""

    def work(x):
        host, go = node(), tmp_path / "go"
        (tmp_path / f"up-{host}").touch()
        while host in ("n1", "n2") and not go.exists():
            time.sleep(0.05)
        return host

    options = {"nodelist": "n[1-2]", "exclusive": True}
    with launcher(num_hosts=2, scheduler_options=options).map(work, items(4), retries=1) as results:
        wait_until(lambda: len(list(tmp_path.glob("up-*"))) == 2, 60)
        try:
            if how == "preempted":
                urgent = ("-p", "high", "-w", "n[1-2]", "--exclusive", "-o", "/dev/null")
                in_slurm.run("sbatch", *urgent, "--job-name=urgent", "--wrap", "sleep 600")
            else:
                in_slurm.lose_host("n1", told=True)
                wait_until(lambda: list(tmp_path.glob("up-n[34]")), 90)
                (tmp_path / "go").touch()
            found = {result.rank(0) for result in results}
        finally:
            in_slurm.run("scancel", "--name=urgent")
    in_slurm.mend()
    assert found <= ({"n3", "n4"} if how == "preempted" else {"n2", "n3", "n4"})


def test_calls_on_hosts_of_a_job_that_somebody_cancels_have_failed(in_slurm, tmp_path):
    """Nothing is asked for in their place: that would not be what they wanted."""
    names = [{"name": str(tmp_path / str(i))} for i in range(2)]
    lent = launcher(num_hosts=2)
    with lent.map(hang, names, max_parallel=1, retries=1) as calls:
        in_slurm.run("scancel", job_of(tmp_path / "0"))
        with pytest.raises(phalanx.MapFailed) as caught:
            list(calls)
    assert sorted(caught.value.failures) == [0, 1]
    for failure in caught.value.failures.values():
        assert "no host is left" in str(failure)
    assert not (tmp_path / "1").exists()


def test_a_job_is_picked_up_by_another_process(script):
    """Which has not submitted it."""
    done = script(
        """
        import os, phalanx

        def where(x):
            return x, os.environ["SLURM_JOB_ID"], int(os.environ["RANK"])

        if __name__ == "__main__":
            launcher = phalanx.Launcher(
                scheduler="slurm", workers_per_host=2, scheduler_options={"cpus": 1}
            )
            print(launcher.submit(where, 7).id)
        """,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    job = phalanx.Job(done.stdout.strip())
    assert job.id.startswith("slurm://phalanx/where-")
    values = list(job.result(timeout=120))
    assert [(x, rank) for x, _, rank in values] == [(7, 0), (7, 1)]
    assert values[0][1].isdigit()


def test_a_job_may_have_several_hosts():
    """Of one allocation, with ranks across them."""

    def who():
        return node(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    values = list(launcher(num_hosts=2).submit(who).result(timeout=120))
    assert [(rank, world) for _, rank, world in values] == [(0, 2), (1, 2)]
    assert len({host for host, *_ in values}) == 2


def test_a_failing_call_over_several_hosts_is_one_failed_replica(tmp_path, monkeypatch, capfd):
    """The hosts are those of the call; none of them is told to have succeeded."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def fail():
        raise KeyError(node())

    job = launcher(num_hosts=2).submit(fail)
    error = job.exception(timeout=120)
    assert isinstance(error, KeyError)
    assert re.search(r"raised by rank \d on n\d", "".join(error.__notes__))
    with get_runner("phalanx") as runner:
        status = wait_until(lambda: (s := runner.status(job.id)).state.is_final and s, timeout=60)
        assert [role.replicas[0].describe() for role in status.roles] == [
            f"exited with code 1: KeyError: {error}"
        ]
        assert len(status.roles[0].replicas) == 1
        assert status.message.endswith(f": KeyError: {error}")
    assert command(["list"]) == 0
    row = capfd.readouterr().out.splitlines()[-1]
    assert re.search(r"FAILED +1 replica +n\d .* \d\S* s ", row), row


def test_a_job_that_waits_in_the_queue_is_not_running(in_slurm, monkeypatch):
    """Nor is it done. Slurm is asked for all that wait at once, not for one after the other."""
    asked = []
    shared = slurm_controller.controller()
    run = shared._run
    monkeypatch.setattr(shared, "_run", lambda c, **o: asked.append(c) or run(c, **o))
    filler = in_slurm.run("sbatch", "--parsable", "-N4", "--exclusive", "--wrap=sleep 600").strip()
    wait_until(lambda: in_slurm.job(filler) == "RUNNING", timeout=60)
    job, *others = [launcher().submit(node) for _ in range(6)]
    waiting = in_slurm.run("squeue", "-h", "--states=PENDING", "-o", "%i").split()
    questions = lambda: [c[3] for c in asked if c[0] == "squeue"]
    before = len(questions())
    # One may have been on its way.
    after = wait_until(lambda: (q := questions()[before + 1 :]) and q[0], timeout=60)
    assert {*waiting} <= {*after.removeprefix("--jobs=").split(",")}
    assert (job.running(), job.done()) == (False, False)
    in_slurm.run("scancel", *sorted(waiting, key=int)[1:])
    assert {*concurrent.futures.wait(others, timeout=60).done} == {*others}
    in_slurm.run("scancel", filler)
    assert job.result(timeout=120)
    assert (job.running(), job.done()) == (False, True)


def test_a_failing_call_raises_what_it_raised():
    """With its traceback, wherever it was made."""

    def fail():
        raise KeyError("lost")

    job = launcher().submit(fail)
    (ended,) = concurrent.futures.as_completed([job], timeout=120)
    with pytest.raises(KeyError, match="lost"):
        ended.result()
    notes = "".join(ended.exception().__notes__)
    assert "in fail" in notes
    assert re.search(r"raised by rank 0 on n\d", notes)
    with get_runner("phalanx") as runner:
        text = "".join(line.text for line in runner.lines(job.id, "call", 0, follow=True))
    assert text.count("Traceback") == 1


def test_a_job_can_be_cancelled(in_slurm):
    """Slurm's job is gone with it."""
    job = launcher().submit(hang, "cancelled")
    number = job_of("cancelled")
    assert job.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        job.result(timeout=120)
    wait_until(lambda: in_slurm.job(number) not in ("RUNNING", "COMPLETING"), timeout=60)
    no_cancelling_is_left()


def test_jobs_that_are_cancelled_at_once_are_all_cancelled(in_slurm):
    """Whichever of their processes hears of it first."""
    jobs = [launcher().submit(hang, f"several-{i}") for i in range(4)]
    numbers = [job_of(f"several-{i}") for i in range(4)]
    in_slurm.run("scancel", *numbers[:2])  # by somebody else
    assert all(job.cancel() for job in jobs[2:])
    concurrent.futures.wait(jobs, timeout=120)
    assert [job.cancelled() for job in jobs] == [True] * 4
    no_cancelling_is_left()


def test_a_job_whose_program_is_killed_says_so(in_slurm):
    """Not for ever silent: whoever waits hears it, with where to look."""

    def kill():
        agent = int(Path(f"/proc/{os.getppid()}/stat").read_text().split()[3])
        program = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(program, signal.SIGKILL)
        time.sleep(60)

    error = launcher().submit(kill).exception(timeout=120)
    assert isinstance(error, phalanx.LaunchError)
    assert "ended without a result" in str(error)
    assert "phalanx log slurm://" in str(error)


@pytest.mark.parametrize("begins", ["import submitit\n", "# submit.py\n"])
def test_the_example_for_those_who_know_submitit_runs(script, begins):
    """As the page has it, submitit's own and ours."""
    page = (Path(__file__).parents[2] / "docs" / "from-submitit.md").read_text()
    (code,) = re.findall(rf"```py\n({begins}.*?)```", page, re.S)
    add = "" if "def add" in code else "def add(a, b):\n    return a + b\n\n"
    done = script(add + code, timeout=120)
    # submitit says there, too, that this Slurm has no accounting.
    assert done.stdout.splitlines()[-1] == "12", done.stderr


def tries(name):
    """What the first try gives when it is told to stop is not what comes of the call."""
    import phalanx

    count = int(os.environ["PHALANX_RESTART_COUNT"])
    Path(f"{name}-{count}").write_text(os.environ["SLURM_JOB_ID"])
    while count == 0:
        if phalanx.context().should_stop():
            return "stopped"
        time.sleep(0.05)
    return f"try {count}"


def test_a_job_that_runs_again_gives_what_its_last_try_gave(in_slurm, tmp_path):
    """It has said what came of the first, and is back in the queue."""
    job = launcher(scheduler_options={"requeue": True}).submit(tries, str(tmp_path / "try"))
    number = job_of(tmp_path / "try-0")
    in_slurm.run("scontrol", "requeue", number)
    wait_until(lambda: in_slurm.release(number) or job.done(), timeout=90)
    assert list(job.result(timeout=0)) == ["try 1"]
    assert list(phalanx.Job(job.id).result(timeout=30)) == ["try 1"]


def test_the_app_that_runs_is_the_one_that_is_cancelled(in_slurm, tmp_path, monkeypatch):
    """Without its name."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = launcher().submit(hang, str(tmp_path / "up"))
    number = job_of(tmp_path / "up")
    cancel = [sys.executable, "-m", "phalanx", "cancel"]
    done = subprocess.run(cancel, capture_output=True, text=True, timeout=90)
    assert "CANCELLED" in done.stdout, done.stderr
    with pytest.raises(concurrent.futures.CancelledError):
        job.result(timeout=60)
    assert in_slurm.job(number) == "CANCELLED"


def test_jobs_that_run_are_cancelled_together(in_slurm, tmp_path):
    """By one command: each is CancelledError for whoever waits, and has lost no agent."""
    names = [str(tmp_path / f"up-{i}") for i in range(3)]
    jobs = [launcher().submit(hang, name) for name in names]
    numbers = [job_of(name) for name in names]
    cancel = [sys.executable, "-m", "phalanx", "cancel", *(job.id for job in jobs)]
    done = subprocess.run(cancel, capture_output=True, text=True, timeout=180)
    told = "".join(f"{job.id.rpartition('/')[2]}: CANCELLED\n" for job in jobs)
    assert (done.stdout, in_slurm.said(done.stderr)) == (told, [])
    for job in jobs:
        with pytest.raises(concurrent.futures.CancelledError):
            job.result(timeout=60)
    assert {in_slurm.job(number) for number in numbers} == {"CANCELLED"}
    with get_runner("phalanx") as runner:
        for job in jobs:
            assert "AgentLost" not in "".join(line.text for line in runner.lines(job.id, "call", 0))
            assert runner.status(job.id).message == ""
