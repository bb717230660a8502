"""What every scheduler that lends hosts must pass, with real ones."""

from __future__ import annotations

import os
import subprocess
import time
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from phalanx._launcher.transport.lease import lent_target
from phalanx._schedulers.leases import Lease, LeasePhase, LeaseRequest, LeaseStatus, LentHost
from phalanx._schedulers.options import make
from phalanx._schedulers.scheduler import Scheduler


class LendingSuite:
    """Subclass it for a scheduler that only lends hosts; `SchedulerSuite` has it within."""

    timeout: float = 60.0
    """Seconds that anything may take."""

    lent_hosts: int = 2
    """How many hosts it can lend at once."""

    image: str | None = None
    """The image that a scheduler of containers makes hosts from; it has a shell."""

    def create_scheduler(self, session_name: str) -> Scheduler[Any, Any]:
        """A new one."""
        raise NotImplementedError("say how your scheduler is made: create_scheduler")

    def lease_options(self) -> Mapping[str, Any]:
        """The options that hosts are asked for with."""
        return {}

    @contextmanager
    def _lease(self) -> Iterator[Lease]:
        scheduler = self.create_scheduler("suite")
        if not scheduler.capabilities.lends_hosts:
            raise unittest.SkipTest("it does not lend hosts")
        options = make(type(scheduler).__name__, scheduler.options, self.lease_options())
        lease = scheduler.lend(LeaseRequest("suite", self.lent_hosts, options, self.image or None))
        try:
            yield lease
        finally:
            lease.give_back()
            scheduler.close()

    def _ready(self, lease: Lease) -> LeaseStatus:
        self._await(lambda: lease.status().phase is not LeasePhase.WAITING, "the hosts")
        status = lease.status()
        assert status.phase is LeasePhase.READY, status
        return status

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        limit = time.monotonic() + self.timeout
        while not holds():
            assert time.monotonic() < limit, f"{what} never came"
            time.sleep(0.05)

    def _start(self, host: LentHost, *words: str) -> subprocess.Popen[bytes]:
        target = lent_target(host, ())
        line = [" ".join(f"'{word}'" for word in words)] if host.through_shell else words
        return subprocess.Popen(
            [*target.transport, *line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={k: v for k, v in os.environ.items() if k not in target.without},
            start_new_session=True,
        )

    def test_lent_hosts_come_and_are_given_back(self) -> None:
        """So many as were asked for, each with a name of its own; giving back twice is no harm."""
        with self._lease() as lease:
            status = self._ready(lease)
            assert len({host.name for host in status.hosts}) == self.lent_hosts, status
            assert lease.status() == status, "the hosts stay the same"
            lease.give_back()
            lease.give_back()
            assert lease.status().phase is LeasePhase.ENDED

    def test_hosts_that_are_not_there_yet_can_be_given_back(self) -> None:
        """A launch is cancelled while it waits."""
        with self._lease() as lease:
            lease.give_back()
            assert lease.status().phase is LeasePhase.ENDED

    def test_a_lent_hosts_command_carries_every_byte_both_ways(self) -> None:
        """The streams are a channel: nothing is added, changed or kept back."""
        data = bytes(range(256)) * 4096
        with self._lease() as lease:
            for host in self._ready(lease).hosts:
                process = self._start(host, "sh", "-c", "cat; echo end >&2")
                output, errors = process.communicate(data, timeout=self.timeout)
                assert output == data, f"{host.name}: {len(output)} bytes of {len(data)}"
                assert errors.rstrip().endswith(b"end"), errors
                assert process.returncode == 0, errors

    def test_a_lent_hosts_command_ends_as_what_it_runs(self) -> None:
        """With an exit code that tells success from failure."""
        with self._lease() as lease:
            host = self._ready(lease).hosts[0]
            process = self._start(host, "sh", "-c", "exit 3")
            process.communicate(timeout=self.timeout)
            assert process.returncode != 0

    def test_commands_on_one_lent_host_run_side_by_side(self) -> None:
        """Two launches share a host, and a third command cleans up after a lost one."""
        with self._lease() as lease:
            host = self._ready(lease).hosts[0]
            running = [self._start(host, "cat") for _ in range(3)]
            for process in running:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(b"hi\n")
                process.stdin.flush()
                assert process.stdout.readline() == b"hi\n"  # while its stdin is open
            for process in running:
                process.communicate(timeout=self.timeout)
                assert process.returncode == 0
