"""Hosts from a scheduler: ask for them, wait, share them between launches, give them back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phalanx._core.sanitize import sanitize_line
from phalanx._launcher.planning.listed_hosts import ListedHost
from phalanx._launcher.transport import targets
from phalanx._launcher.transport.lease import lent_target
from phalanx._logs import logger
from phalanx._schedulers.leases import Lease, LeasePhase, LeaseRequest, LeaseStatus, LentHost
from phalanx._schedulers.scheduler_calls import asking, expect
from phalanx.errors import Cancelled, ConfigError, PhalanxError, QueueTimeout, SchedulerError

if TYPE_CHECKING:
    from phalanx._launcher.launch_options import LaunchOptions
    from phalanx._schedulers.scheduler import Scheduler

_REASON = 500
"""How much of a scheduler's reason is shown."""


@dataclass(frozen=True)
class Lender:
    """A scheduler that lends hosts, and what it is asked for."""

    name: str
    scheduler: Scheduler[Any, Any]
    request: LeaseRequest
    python: object
    queue_timeout: float | None

    def borrow(self, holders: int = 1) -> BorrowedHosts:
        """Ask for the hosts, for so many that let go of them; does not wait.

        Raises `SchedulerError` and `ConfigError`.
        """
        with asking(self.name):
            lease: Lease = expect(self.scheduler.lend(self.request), Lease)  # type: ignore[type-abstract]
        return BorrowedHosts(self, lease, holders)


def find_lender(options: LaunchOptions, title: str) -> Lender:
    """The scheduler that a launch names, and its request. Starts nothing.

    Raises `ConfigError` where there is none, it does not lend hosts, or has no such option.
    """
    from phalanx._schedulers.factories import create_scheduler
    from phalanx._schedulers.options import make_from_python

    name = options.scheduler
    assert name is not None
    scheduler = create_scheduler(name, "phalanx")
    if not scheduler.capabilities.lends_hosts:
        raise ConfigError(
            f"scheduler={name!r}: {name} does not lend hosts to launches. Name the hosts with "
            f"hostnames, or submit a program: phalanx run -s {name} …"
        )
    runs_images = scheduler.capabilities.runs_images
    if options.image is not None and not runs_images:
        raise ConfigError(f"image={options.image!r}: {name} does not run images.")
    if options.image is None and runs_images:
        raise ConfigError(
            f"scheduler={name!r} needs an image with Python, as in image='python:3.12'."
        )
    made = make_from_python(name, scheduler.options, options.scheduler_options)
    request = LeaseRequest(options.name or title, options.num_hosts or 1, made, options.image)
    return Lender(name, scheduler, request, options.python, options.queue_timeout)


class BorrowedHosts:
    """A lease that launches share: the last that lets go of it gives the hosts back.

    All methods may be called from any thread.
    """

    def __init__(self, lender: Lender, lease: Lease, holders: int) -> None:
        """It is held so many times."""
        self.lender = lender
        self._lease = lease
        self._holders = holders
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._replacing = threading.Lock()
        self._taken: set[str] = set()
        """The hosts that some launch knows of."""

    # ── who has it ────────────────────────────────────────────────────────────

    def hold(self) -> bool:
        """Have it for another launch; False if it was given back, or has ended."""
        if self.status().phase is LeasePhase.ENDED:
            return False
        with self._lock:
            if not self._holders:
                return False
            self._holders += 1
            return True

    def let_go(self) -> None:
        """One that has held it does so no longer. What cannot be given back is a warning."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
        try:
            with asking(self.lender.name):
                self._lease.give_back()
                self.lender.scheduler.close()
        except PhalanxError as error:
            logger.warning("phalanx: could not give the hosts back: %s", error)

    # ── the queue ─────────────────────────────────────────────────────────────

    def status(self) -> LeaseStatus:
        """How the request stands. Raises `SchedulerError`."""
        with asking(self.lender.name):
            return expect(self._lease.status(), LeaseStatus)

    def wait(
        self, cancelled: threading.Event, tell: Callable[[LeaseStatus], None] = lambda _: None
    ) -> list[ListedHost]:
        """Wait until all hosts are there; `tell` is told how the request stands meanwhile.

        Raises `QueueTimeout`, `SchedulerError` with the scheduler's own reason if they will not be,
        and `Cancelled`.
        """
        limit = self.lender.queue_timeout
        while True:
            status = self.status()
            if cancelled.is_set():
                raise Cancelled("cancelled while waiting for hosts")
            if status.phase is LeasePhase.READY:
                return self._listed(status)
            if status.phase is LeasePhase.ENDED:
                raise SchedulerError(f"no hosts from {self.describe(status)}")
            if limit is not None and time.monotonic() - self._began > limit:
                raise QueueTimeout(
                    f"no hosts within queue_timeout={limit:g} s from {self.describe(status)}",
                    timeout=limit,
                    reason=status.reason,
                )
            tell(status)
            cancelled.wait(self._lease.poll_interval)

    def describe(self, status: LeaseStatus) -> str:
        """How the request stands, in words: `slurm: job 7: PENDING (Resources)`."""
        where = f"{self.lender.name}: {self._lease.id}" if self._lease.id else self.lender.name
        state = sanitize_line(status.state)
        reason = sanitize_line(status.reason, _REASON)
        said = f"{state} ({reason})" if state and reason else state or reason
        return f"{where}: {said}" if said else where

    def _listed(self, status: LeaseStatus) -> list[ListedHost]:
        wanted = self.lender.request.num_hosts
        if len(status.hosts) < wanted:
            raise SchedulerError(
                f"{self.lender.name} lent {len(status.hosts)} hosts; {wanted} were requested."
            )
        self._taken |= {host.name for host in status.hosts}
        return [self._listed_host(host) for host in status.hosts]

    def _listed_host(self, host: LentHost) -> ListedHost:
        pythons = targets.pythons(self.lender.python, host.name, host.pythons)
        return ListedHost(host.name, lent_target(host, pythons), host.tasks)

    # ── replacement ───────────────────────────────────────────────────────────

    def replace(self, name: str, cancelled: Callable[[], bool]) -> ListedHost | None:
        """Another host in place of a lost one; None where there is none to be had.

        Blocks until it is there, or it is cancelled.
        """
        with self._replacing:  # one after the other: which host is whose is clear then
            known = {*self._taken}
            with asking(self.lender.name):
                if not self._lease.replace(name):
                    return None
            while not cancelled():
                status = self.status()
                new = [host for host in status.hosts if host.name not in known]
                if new:
                    self._taken.add(new[0].name)
                    return self._listed_host(new[0])
                if status.phase is LeasePhase.ENDED:
                    return None
                time.sleep(self._lease.poll_interval)
            return None
