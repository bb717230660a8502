"""Hosts by srun pass what every way to a host must: those of a lease, from outside of the job."""

import dataclasses
import sys

import pytest

from phalanx._launcher.transport.lease import lent_target
from phalanx.schedulers import LeasePhase, LeaseRequest, create_scheduler
from tests.conftest import wait_until
from tests.ways_to_hosts import HostSuite, Way


class TestSrun(HostSuite):
    """A step of a job beside others."""

    @pytest.fixture
    def way(self, in_slurm):
        scheduler = create_scheduler("slurm", "tests")
        lease = scheduler.lend(LeaseRequest("hosts", 1, scheduler.options()))
        try:
            wait_until(lambda: lease.status().phase is LeasePhase.READY, 30, lease.status())
            (host,) = lease.status().hosts
            target = lent_target(host, (sys.executable,))
            words = tuple("n99" if word == host.name else word for word in target.transport)
            other = dataclasses.replace(target, name="n99", transport=words)
            yield Way(target, other, "Requested node configuration is not available")
        finally:
            lease.give_back()
