"""Every scheduler passes the suite that a plugin's must; `ssh` in tests/ssh, on real hosts."""

from phalanx.schedulers import create_scheduler
from phalanx.testing import SchedulerSuite


class TestLocalCwd(SchedulerSuite):
    """Replicas as processes here."""

    def create_scheduler(self, session_name):
        return create_scheduler("local_cwd", session_name)
