"""Every scheduler that can run here passes the suite that a plugin's must."""

from phalanx.schedulers import create_scheduler
from phalanx.testing import SchedulerSuite


class TestLocalCwd(SchedulerSuite):
    """Replicas as processes here."""

    def create_scheduler(self, session_name):
        return create_scheduler("local_cwd", session_name)


class TestSshHere(SchedulerSuite):
    """Replicas through agents, on a host that happens to be this machine."""

    def create_scheduler(self, session_name):
        return create_scheduler("ssh", session_name)

    def scheduler_options(self):
        return {"hosts": ["localhost"]}
