"""Launches inside a Slurm allocation: the allocation's hosts, through srun."""

import re
import signal
import sys
import textwrap

import pytest

import phalanx
from tests.conftest import phalanx_processes, wait_until

HEAD = """
import os, sys, time
import phalanx

def where():
    return os.environ["SLURMD_NODENAME"], int(os.environ["RANK"])

"""


@pytest.fixture
def inside(slurm, tmp_path):
    """Run a script inside an allocation with these options."""

    def write(code):
        path = tmp_path / "script.py"
        path.write_text(HEAD + textwrap.dedent(code))
        return path

    def run(code, *options):
        process = start(code, *options)
        output, errors = process.communicate(timeout=60)
        errors = "\n".join(l for l in errors.splitlines() if not l.startswith("salloc:"))
        return output, errors

    def start(code, *options):
        return slurm.start("salloc", *options, sys.executable, str(write(code)), cwd=tmp_path)

    run.start = start
    run.write = write
    return run


def test_auto_is_the_allocation(inside):
    """One worker a host, where nothing was said of tasks or GPUs."""
    output, errors = inside("print(list(phalanx.launch(where)))", "-N2")
    assert output.strip() == "[('n1', 0), ('n2', 1)]", errors


def test_the_allocations_tasks_are_the_workers(inside):
    """Though they differ from host to host."""
    output, errors = inside('print(phalanx.launch(where, hostnames="slurm").results)', "-N2", "-n3")
    assert eval(output) in (
        {"n1": [("n1", 0), ("n1", 1)], "n2": [("n2", 2)]},
        {"n1": [("n1", 0)], "n2": [("n2", 1), ("n2", 2)]},
    ), errors


def test_the_allocations_gpus_are_the_workers(inside):
    """Where there is one task a host."""
    code = 'print(list(phalanx.launch(lambda: (where(), os.environ["CUDA_VISIBLE_DEVICES"]))))'
    output, errors = inside(code, "-N2", "--gpus-per-node=2")
    found = eval(output)
    first, second = sorted({host for (host, _), _ in found})
    assert found == [
        ((first, 0), "0,1"),
        ((first, 1), "0,1"),
        ((second, 2), "0,1"),
        ((second, 3), "0,1"),
    ], errors


def test_what_was_asked_for_a_task_is_not_for_the_agent(inside):
    """It is one task, and has all that the job has on its host."""
    code = 'print(list(phalanx.launch(lambda: os.environ["CUDA_VISIBLE_DEVICES"])))'
    output, errors = inside(code, "-N1", "-n2", "--gpus-per-task=1")
    assert eval(output) == ["0,1", "0,1"], errors


def test_warming_inside_an_allocation_does_no_harm(inside):
    """What works elsewhere works there."""
    output, errors = inside('phalanx.warm("json")\nprint(list(phalanx.launch(where)))', "-N1")
    assert output.strip() == "[('n1', 0)]", errors


def test_hosts_of_an_allocation_are_checked(slurm):
    """Through srun; the login's own variables, which Slurm hands on, mislead nobody."""
    command = [sys.executable, "-m", "phalanx", "hosts", "check"]
    process = slurm.start("salloc", "-N2", *command)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert [line.split()[0] for line in output.splitlines()] == ["HOST", "n1", "n2"]


def test_a_number_given_wins(inside):
    """Over the allocation's."""
    output, errors = inside("print(list(phalanx.launch(where, workers_per_host=2)))", "-N2", "-n6")
    assert [rank for _, rank in eval(output)] == [0, 1, 2, 3], errors


def test_workers_form_a_group(inside):
    """Across the allocation."""
    code = """
    def reduce():
        import torch
        import torch.distributed as dist
        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item()

    print(list(phalanx.launch(reduce)))
    """
    output, errors = inside(code, "-N3", "--ntasks-per-node=2")
    assert output.strip() == str([6.0] * 6), errors


def test_a_launch_within_a_worker_is_on_its_host_alone(inside):
    """It does not begin with the allocation again."""
    code = "print(list(phalanx.launch(lambda: list(phalanx.launch(where, workers_per_host=2)))))"
    output, errors = inside(code, "-N2")
    assert eval(output) == [[("n1", 0), ("n1", 1)], [("n2", 0), ("n2", 1)]], errors


def test_a_batch_script_launches(slurm, inside, tmp_path):
    """As salloc does."""
    inside.write("print(list(phalanx.launch(where)))")
    job = tmp_path / "job.sh"
    job.write_text(f"#!/bin/sh\nexec {sys.executable} script.py\n")
    slurm.run("sbatch", "--wait", "-N2", "-o", "out.txt", "job.sh", cwd=tmp_path)
    assert (tmp_path / "out.txt").read_text().strip() == "[('n1', 0), ('n2', 1)]"


def test_a_task_of_srun_means_its_own_machine(slurm, inside, tmp_path):
    """Every task would start all of them otherwise."""
    path = inside.write("print(len(phalanx.launch(os.getpid, workers_per_host=1)), flush=True)")
    output = slurm.run("srun", "-N2", sys.executable, str(path), cwd=tmp_path)
    assert output.split() == ["1", "1"]


def test_an_exception_comes_home(inside):
    """With the host's name."""
    code = """
    def fail():
        if os.environ["RANK"] == "1":
            raise ValueError("no")
        time.sleep(60)

    phalanx.launch(fail)
    """
    _, errors = inside(code, "-N2")
    assert "ValueError: no" in errors
    assert re.search(r"raised by rank 1 on n[1-4] ", errors), errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launcher_leaves_nothing(slurm, inside, number):
    """Steps end with it."""
    code = """
    def work():
        print("running", os.getppid(), flush=True)
        time.sleep(600)

    print(os.getpid(), flush=True)
    phalanx.launch(work)
    """
    import os

    process = inside.start(code, "-N2")
    launcher = int(process.stdout.readline())
    assert process.stdout.readline().startswith("running")
    os.kill(launcher, number)
    process.communicate(timeout=30)
    wait_until(lambda: not phalanx_processes(), 20)


def test_a_cancelled_job_leaves_nothing(slurm, inside):
    """Slurm ends the steps, and the launcher with them."""
    code = """
    def work():
        print("running", flush=True)
        time.sleep(600)

    print(os.environ["SLURM_JOB_ID"], flush=True)
    phalanx.launch(work)
    """
    process = inside.start(code, "-N2")
    job = process.stdout.readline().strip()
    assert process.stdout.readline().startswith("running")
    slurm.run("scancel", job)
    process.communicate(timeout=30)
    wait_until(lambda: not phalanx_processes(), 20)


def test_a_cancelled_job_leaves_workers_their_grace(slurm, inside, tmp_path):
    """They may write a checkpoint when they are told to end."""
    code = """
    def work(path):
        import signal
        def save(*_):
            time.sleep(0.5)
            open(path, "w").write("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("running", flush=True)
        time.sleep(600)

    print(os.environ["SLURM_JOB_ID"], flush=True)
    phalanx.launch(work, {"path": "saved.txt"})
    """
    process = inside.start(code, "-N1")
    job = process.stdout.readline().strip()
    assert process.stdout.readline().startswith("running")
    slurm.run("scancel", job)
    process.communicate(timeout=30)
    wait_until((tmp_path / "saved.txt").exists, 5)


def test_slurm_outside_of_an_allocation_is_a_mistake():
    """It says where it would not be."""
    with pytest.raises(phalanx.ConfigError, match="not inside a Slurm allocation"):
        phalanx.launch(print, hostnames="slurm")
