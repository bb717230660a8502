"""Every scheduler passes the suite that a plugin's must; `ssh` in tests/ssh, on real hosts."""

import pytest

from phalanx.schedulers import create_scheduler
from phalanx.testing import LendingSuite, SchedulerSuite
from tests import pipe_scheduler


class TestLocalCwd(SchedulerSuite):
    """Replicas as processes here."""

    def create_scheduler(self, session_name):
        return create_scheduler("local_cwd", session_name)


class TestPipeHosts(LendingSuite):
    """Hosts that are commands here."""

    @pytest.fixture(autouse=True)
    def granted(self, tmp_path):
        (tmp_path / "granted").touch()
        self._place = tmp_path

    def create_scheduler(self, session_name):
        return pipe_scheduler.create_scheduler(session_name)

    def lease_options(self):
        return {"place": str(self._place)}
