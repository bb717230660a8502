"""`slurm` passes the suite that every scheduler must, on a real Slurm."""

import pytest

from phalanx.schedulers import create_scheduler
from phalanx.testing import SchedulerSuite


@pytest.mark.usefixtures("in_slurm")
class TestSlurm(SchedulerSuite):
    """Replicas as tasks of jobs."""

    start_skew = 2.0

    def create_scheduler(self, session_name):
        return create_scheduler("slurm", session_name)

    def scheduler_options(self):
        return {"cpus": 1}
