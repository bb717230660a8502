"""A scheduler for one test, and the apps that the test submits to it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Self, TypeVar

from phalanx._schedulers.options import make
from phalanx._specs import AppDef, AppStatus, Role
from phalanx._system import daemon_thread

if TYPE_CHECKING:
    from phalanx.testing._scheduler_suite import SchedulerSuite

T = TypeVar("T")


class SuiteSession:
    """A scheduler of its own for one test; what it has submitted is gone afterwards."""

    def __init__(self, suite: SchedulerSuite) -> None:
        self._suite = suite
        self.session = f"suite-{secrets.token_hex(3)}"
        self.scheduler = suite.create_scheduler(self.session)
        self.can = self.scheduler.capabilities
        given = suite.scheduler_options()
        self.options = make(type(self.scheduler).__name__, self.scheduler.options, given)
        self._submitted: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for app_id in self._submitted:
            self.scheduler.delete(app_id)
        self.scheduler.close()

    def app(self, command: str, **fields: Any) -> AppDef:
        """An app whose one role runs a line of shell."""
        image = self._suite.image
        role = Role(name="role", image=image, entrypoint="sh", args=["-c", command], **fields)
        return AppDef("suite", [role])

    def submit(self, app: AppDef) -> str:
        request = self.scheduler.dryrun(app, self.options)
        app_id = self._within(lambda: self.scheduler.submit(request), "submit did not return")
        self._submitted.append(app_id)
        return app_id

    def _within(self, function: Callable[[], T], complaint: str) -> T:
        """What a function gives, if it does in time."""
        future = daemon_thread.start(function)
        wait([future], self._suite.timeout)
        assert future.done(), f"{complaint} within {self._suite.timeout} s"
        return future.result()

    def describe(self, app_id: str) -> AppStatus:
        status = self.scheduler.describe(app_id)
        assert status is not None, f"{app_id} is not there"
        return status

    def wait(self, app_id: str) -> AppStatus:
        limit = time.monotonic() + self._suite.timeout
        while not (status := self.describe(app_id)).state.is_final:
            assert time.monotonic() < limit, f"{app_id} has not ended: {status}"
            time.sleep(0.05)
        return status

    def expect_no_more_lines(self, app_id: str, complaint: str) -> None:
        before = len(self.lines(app_id))
        time.sleep(0.5)
        assert len(self.lines(app_id)) == before, complaint

    def lines(self, app_id: str, replica: int = 0, **options: Any) -> list[str]:
        return self._within(
            lambda: [line.text for line in self.scheduler.logs(app_id, "role", replica, **options)],
            "the logs did not end",
        )
