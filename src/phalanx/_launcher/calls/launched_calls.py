"""A call as a launch of its own: on any hosts, with everything that a launch has."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from phalanx._launcher.calls.call_runner import CallLost
from phalanx._launcher.start import Work, prepare_draft
from phalanx._launcher.warm.pool import AgentPool, Pool
from phalanx._logs import logger
from phalanx.errors import AgentLost, Cancelled, PhalanxError, StartFailed, StartTimeout

if TYPE_CHECKING:
    from phalanx._launcher.borrowed_hosts import BorrowedHosts
    from phalanx._launcher.payload import Function
    from phalanx._launcher.planning.plan import Draft
    from phalanx._launcher.result import LaunchResult
    from phalanx._launcher.session.app_run import AppRun
    from phalanx._logs.spec import LogSpec
    from phalanx._schedulers.leases import LeaseStatus


class LaunchedCalls:
    """Each call a launch; the agents stay from one to the next."""

    def __init__(
        self,
        draft: Draft,
        pool: Pool,
        pools: Sequence[AgentPool],
        *,
        own: bool,
        borrow: Callable[[], BorrowedHosts] | None = None,
    ) -> None:
        """`own`: the pool is closed with this. `borrow` asks for the hosts, if they are lent."""
        self._draft = draft
        self._pool = pool
        self._pools = pools
        self._own = own
        self._borrow = borrow
        self._hosts: BorrowedHosts | None = None
        self._gave_up = threading.Event()
        self._lock = threading.Lock()
        self._running: set[AppRun[Any]] = set()
        self._grace: float | None = None
        self._cancelled = False

    def prepare(self, tell: Callable[[str], None]) -> None:
        """See `CallRunner.prepare`."""
        if self._borrow is None:
            return
        hosts = self._hosts = self._borrow()

        def describe(status: LeaseStatus) -> None:
            tell(f"waiting for hosts from {hosts.describe(status)}")

        listed = hosts.wait(self._gave_up, describe)
        self._draft = dataclasses.replace(self._draft, hosts=tuple(listed))

    def run(
        self, call: Function, hosts: Sequence[int], log_spec: LogSpec | None
    ) -> LaunchResult[Any]:
        """See `CallRunner.run`."""
        draft = self._draft.only(hosts, log_spec)
        if gone := self._gone(hosts):
            name = self._draft.hosts[gone[0]].name
            error = StartFailed(f"{name} was taken away by its scheduler", hostname=name)
            raise self._lost(error, hosts)
        try:
            work = Work.of(call, draft.needs, draft.title)
            prepared = prepare_draft(draft, work, pools=self._pools, known=self._pool.known)
            app = prepared.start(is_recorded=False)
        except StartFailed as error:
            raise self._lost(error, hosts) from None
        with self._lock:
            self._running.add(app)
            cancelled = self._cancelled
        if cancelled:
            app.cancel(self._grace)
        try:
            return app.result()
        except (AgentLost, StartFailed, StartTimeout) as error:
            raise self._lost(error, hosts, app.preempted) from None
        except Cancelled:
            raise
        except BaseException as error:
            if app.preempted:
                raise self._lost(error, hosts, app.preempted) from None
            raise
        finally:
            with self._lock:
                self._running.discard(app)

    def _lost(
        self, error: BaseException, hosts: Sequence[int], preempted: Sequence[int] = ()
    ) -> CallLost:
        """`preempted` are positions among the hosts."""
        has_begun = not isinstance(error, StartFailed | StartTimeout)
        taken = tuple(hosts[i] for i in preempted)
        gone = () if self._hosts is None else tuple({*taken, *self._gone(hosts)})
        return CallLost(error, taken or self._to_blame(error, hosts), gone, has_begun=has_begun)

    def _gone(self, hosts: Sequence[int]) -> tuple[int, ...]:
        """Those of them that the scheduler lends no longer."""
        if self._hosts is None:
            return ()
        try:
            lent = {host.name for host in self._hosts.status().hosts}
        except PhalanxError:
            return ()
        return tuple(i for i in hosts if self._draft.hosts[i].name not in lent)

    def replace(self, host: int, is_over: Callable[[], bool]) -> bool:
        """See `CallRunner.replace`."""
        assert self._hosts is not None
        name = self._draft.hosts[host].name
        logger.warning("phalanx: requesting a replacement for host %s", name)
        found = self._hosts.replace(name, is_over)
        if found is None:
            return False
        with self._lock:
            hosts = list(self._draft.hosts)
            hosts[host] = found
            self._draft = dataclasses.replace(self._draft, hosts=tuple(hosts))
        return True

    def _to_blame(self, error: BaseException, hosts: Sequence[int]) -> tuple[int, ...]:
        name = getattr(error, "hostname", None)
        names = (name,) if name else getattr(error, "missing", ())
        return tuple(i for i in hosts if self._draft.hosts[i].name in names)

    def cancel(self, grace: float | None) -> None:
        """See `CallRunner.cancel`."""
        with self._lock:
            self._cancelled, self._grace = True, grace
            running = list(self._running)
        self._gave_up.set()
        for app in running:
            app.cancel(grace)

    def close(self) -> None:
        """See `CallRunner.close`."""
        if self._own:
            self._pool.close()
        if self._hosts is not None:
            self._hosts.let_go()
