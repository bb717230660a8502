"""Hosts by ssh pass what every way to a host must."""

import sys

import pytest

from phalanx._launcher.transport.targets import ssh_target
from tests.ways_to_hosts import HostSuite, ReconnectSuite, Way


class TestSsh(HostSuite, ReconnectSuite):
    """The user's ssh, and a real sshd."""

    @pytest.fixture
    def way(self, cluster):
        def target(name):
            config = str(cluster.ssh_config)
            return ssh_target(name, (sys.executable,), config_file=config, host_timeout=30.0)

        name = cluster.names[0]
        return Way(target(name), target(f"{name}:1"), "Connection refused")
