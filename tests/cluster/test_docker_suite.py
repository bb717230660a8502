"""`local_docker` passes the suite that every scheduler must, on a real engine."""

import pytest

from phalanx.schedulers import create_scheduler
from phalanx.testing import SchedulerSuite
from tests.cluster.docker import IMAGE


@pytest.mark.usefixtures("in_docker")
class TestDocker(SchedulerSuite):
    """Replicas as containers."""

    image = IMAGE
    start_skew = 2.0

    def create_scheduler(self, session_name):
        return create_scheduler("local_docker", session_name)

    def scheduler_options(self):
        return {"pull": "never", "stop_grace": 1}

    def lease_options(self):
        return {"pull": "never"}
