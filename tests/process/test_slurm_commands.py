"""Slurm's commands at sites that are unlike the one in tests/cluster, by programs of their names."""

import pytest

from phalanx._schedulers.slurm import controller as slurm_controller
from phalanx._schedulers.slurm.controller import Controller, JobState


@pytest.fixture
def commands_here(tmp_path, monkeypatch):
    """Programs of the names of Slurm's, and no others."""
    monkeypatch.setattr(slurm_controller, "INTERVAL", 0.01)
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(**texts):
        for name, text in texts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/asked\n{text}\n")
            (tmp_path / name).chmod(0o755)
        return Controller()

    make.asked = lambda: (tmp_path / "asked").read_text().split()
    return make


GONE = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@pytest.mark.parametrize(
    ("sacct", "state"),
    [
        ("echo '7|TIMEOUT|None|n1|debug'", JobState("TIMEOUT", "", "n1", "debug")),
        ("echo 'Slurm accounting storage is disabled' >&2; exit 1", None),
        (None, None),
    ],
    ids=["known there", "failing", "absent"],
)
def test_of_a_job_that_the_queue_has_forgotten_accounting_may_tell(commands_here, sacct, state):
    """Where it is there and works; that it does not is no error."""
    programs = {"squeue": GONE} if sacct is None else {"squeue": GONE, "sacct": sacct}
    assert commands_here(**programs).jobs(["7"]) == {"7": state}
    assert commands_here.asked() == list(programs)
