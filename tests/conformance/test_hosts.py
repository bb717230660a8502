"""Hosts by a command here pass what every way to a host must; ssh and srun in tests of theirs."""

import sys

import pytest

from phalanx._launcher.transport.targets import Target
from tests.ways_to_hosts import HostSuite, ReconnectSuite, Way


class TestPipe(HostSuite):
    """The command runs another one on this machine."""

    @pytest.fixture
    def way(self):
        run = ("sh", "-c", 'exec "$@"', "pipe")
        refuse = ("sh", "-c", "echo 'not today' >&2; exit 1", "pipe")
        return Way(
            Target("here", (sys.executable,), run, through_shell=False),
            Target("there", (sys.executable,), refuse, through_shell=False),
            "not today",
        )


class TestBrokenPipe(ReconnectSuite):
    """What runs does not end with the command that has started it."""

    @pytest.fixture
    def way(self):
        run = ("sh", "-c", 'cat | setsid "$@" | cat', "pipe")
        target = Target("here", (sys.executable,), run, through_shell=False, reconnect_timeout=0.0)
        return Way(target, target, "")
