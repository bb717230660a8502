"""A launch of another process, as an `App` has it: everything is asked of its record."""

from __future__ import annotations

import asyncio
import signal as signals
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from phalanx._core.stacks import RankStacks, from_dict
from phalanx._launcher.detached import result_file
from phalanx._launcher.result import LaunchResult
from phalanx._launcher.session.app import App
from phalanx._logs.lines import LogLine
from phalanx._registry import stack_requests
from phalanx._registry.recorded_app import RecordedApp, find
from phalanx._specs import AppState, AppStatus
from phalanx._specs.status import (
    HostState,
    HostStatus,
    RankState,
    RoundStatus,
    StepStatus,
    WorkerStatus,
)
from phalanx._system.identity import is_alive
from phalanx.errors import Cancelled, ConfigError, LaunchError

R = TypeVar("R")

_POLL = 0.05


def app(app_id: str) -> App[Any]:
    """A handle on a launch by its id, from any process of this user.

    Args:
        app_id: The id, as `phalanx list` shows it, or a unique beginning of it.

    Returns:
        The same handle as `Launcher.start`. `result` gives the values of an app that was started
        with `detach=True`; those of other launches are known to their own program alone.

    Raises:
        ConfigError: There is no such launch, or it is an app on a scheduler.
    """
    try:
        found = find(app_id)
    except LookupError as error:
        raise ConfigError(str(error)) from None
    if not found.is_launch:
        raise ConfigError(
            f"{found.id} is an app on {found.scheduler}, not a launch. "
            f'Use phalanx.runner: get_runner().status("{found.handle}").'
        )
    return App(RecordedRun(found))


class RecordedRun(Generic[R]):
    """What a record says of a launch, and what can be asked through it."""

    def __init__(self, record: RecordedApp) -> None:
        """Made by `app`."""
        self._record = record
        self.id = record.id

    @property
    def log_files(self) -> dict[int, Path]:
        """See `App.log_files`."""
        return self._record.log_files()

    @property
    def _is_detached(self) -> bool:
        return (self._record.path / result_file.LOG).exists()

    @property
    def _is_over(self) -> bool:
        """It has ended, and what came of it is kept, if it will ever be."""
        if not self._record.state.is_final:
            return False
        if not self._is_detached or result_file.is_kept(self._record.path):
            return True
        return self._record.is_local and not is_alive(self._record.facts["owner"])

    def wait(self, timeout: float | None = None) -> AppStatus:
        """See `App.wait`."""
        limit = None if timeout is None else time.monotonic() + timeout
        while not self._is_over and (limit is None or time.monotonic() < limit):
            time.sleep(_POLL)
        return self.status()

    def result(self, timeout: float | None = None) -> LaunchResult[R]:
        """See `App.result`."""
        if not self._is_detached:
            raise ConfigError(
                f"the values of {self.id} are known to the program that launched it. "
                "Start it with detach=True to get them from another one."
            )
        self.wait(timeout)
        if not self._is_over:
            raise TimeoutError(f"{self.id} did not end within {timeout} s; it keeps running")
        if not result_file.is_kept(self._record.path):
            status = self.status()
            kind = Cancelled if status.state is AppState.CANCELLED else LaunchError
            raise kind(status.message or f"{self.id} ended without a result: {status.state.value}")
        kept = result_file.read(self._record.path)
        if isinstance(kept, BaseException):
            raise kept
        return kept

    async def wait_async(self) -> LaunchResult[R]:
        """As `result`, in an asyncio program. The app goes on if the task is cancelled."""
        while not self._is_over:  # noqa: ASYNC110 a file of another process, not an event
            await asyncio.sleep(_POLL)
        return await asyncio.to_thread(self.result)

    def cancel(self, grace: float | None = None, number: int = signals.SIGTERM) -> None:
        """See `App.cancel`; the signal is SIGTERM."""
        if not self._record.state.is_final:
            self._record.ask_cancel(grace)

    def add_host(self, hostname: str, workers: int | None = None) -> None:
        """Not from another process."""
        raise ConfigError(f"cannot add a host to {self.id} from another program.")

    def signal(self, number: int) -> None:
        """Not from another process."""
        raise ConfigError(f"cannot signal the workers of {self.id} from another program.")

    def stacks(self, seconds: float = 5.0, *, native: bool = False) -> tuple[RankStacks, ...]:
        """See `App.stacks`."""
        try:
            told = stack_requests.ask(self._record, seconds, native=native)
        except stack_requests.StacksUnanswered:
            return ()
        return tuple(map(from_dict, told["ranks"]))

    def status(self) -> AppStatus:
        """See `App.status`; how workers ended is in its message."""
        told = self._record.status()
        return AppStatus(
            app=self.id,
            state=AppState(told["state"]),
            message=told["message"],
            seconds=told["seconds"],
            phases=told.get("phases") or {},
            num_restarts=told["num_restarts"],
            round=told["round"],
            hosts=tuple(_host(host) for host in told["hosts"]),
            workers=tuple(_worker(worker) for worker in told["workers"]),
            rounds=tuple(_round(round_) for round_ in told["rounds"]),
            steps=_steps(told.get("steps")),
        )

    def logs(
        self, ranks: Collection[int] | None = None, *, follow: bool = False
    ) -> Iterator[LogLine]:
        """See `App.logs`."""
        try:
            self._record.log_files(ranks)
        except LookupError as error:
            raise IndexError(str(error)) from None
        return self._record.lines(ranks, follow=follow)

    def show_status(self, *, line: bool = True) -> None:
        """Nothing is shown of what another process waits for."""

    def tell_failure(self, *, prints: bool = False) -> None:
        """What failed is in its log."""

    def describe_left(self) -> str:
        """It goes on."""
        return f"{self.id} keeps running"

    def forget(self) -> None:
        """Leave no record of it."""
        self._record.remove(logs=True)


def _host(told: dict[str, Any]) -> HostStatus:
    state = HostState(told["state"])
    return HostStatus(told["hostname"], state, tuple(told["ranks"]), told["reason"], told["pid"])


def _worker(told: dict[str, Any]) -> WorkerStatus:
    return WorkerStatus(
        rank=told["rank"],
        hostname=told["hostname"],
        local_rank=told["local_rank"],
        state=RankState(told["state"]),
        pid=told["pid"],
        log=told["log"],
        steps=told.get("steps", 0),
        step_seconds=told.get("step_seconds"),
    )


def _steps(told: dict[str, Any] | None) -> StepStatus | None:
    return None if told is None else StepStatus(**told)


def _round(told: dict[str, Any]) -> RoundStatus:
    return RoundStatus(
        number=told["number"],
        began=told["began"],
        hosts=tuple(told["hosts"]),
        world_size=told["world_size"],
        restarts=told["restarts"],
        cause=told["cause"],
    )
