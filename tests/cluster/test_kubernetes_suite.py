"""`kubernetes` passes the suite that every scheduler must, on a real cluster."""

import pytest

from phalanx.schedulers import create_scheduler
from phalanx.testing import SchedulerSuite


@pytest.mark.timeout(400)
class TestKubernetes(SchedulerSuite):
    """Replicas as pods."""

    timeout = 180.0
    start_skew = 2.0

    @pytest.fixture(autouse=True)
    def _cluster(self, in_kubernetes):
        self.image = in_kubernetes.image

    def create_scheduler(self, session_name):
        return create_scheduler("kubernetes", session_name)

    def scheduler_options(self):
        return {"pull": "never", "stop_grace": 1}

    def lease_options(self):
        return {"pull": "never"}
