"""A launch that is under way, as users have it: wait for it, ask about it, end it."""

from __future__ import annotations

import signal
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from phalanx._core.stacks import RankStacks
from phalanx._launcher.result import LaunchResult
from phalanx._logs.lines import LogLine
from phalanx._specs import AppStatus

R = TypeVar("R")


class Run(Protocol[R]):
    """What an `App` is a handle on: an app that runs, or one that still waits for its hosts."""

    id: str

    @property
    def log_files(self) -> dict[int, Path]:
        """See `App.log_files`."""

    def wait(self, timeout: float | None = None) -> AppStatus:
        """See `App.wait`."""

    def result(self, timeout: float | None = None) -> LaunchResult[R]:
        """See `App.result`."""

    async def wait_async(self) -> LaunchResult[R]:
        """As `result`, in an asyncio program."""

    def cancel(self, grace: float | None = None, number: int = signal.SIGTERM) -> None:
        """See `App.cancel`."""

    def add_host(self, hostname: str, workers: int | None = None) -> None:
        """See `App.add_host`."""

    def signal(self, number: int) -> None:
        """See `App.signal`."""

    def stacks(self, seconds: float = 5.0, *, native: bool = False) -> tuple[RankStacks, ...]:
        """See `App.stacks`."""

    def status(self) -> AppStatus:
        """See `App.status`."""

    def logs(
        self, ranks: Collection[int] | None = None, *, follow: bool = False
    ) -> Iterator[LogLine]:
        """See `App.logs`."""

    def show_status(self, *, line: bool = True) -> None:
        """Say what is waited for, on a status line where there is a terminal."""

    def tell_failure(self, *, prints: bool = False) -> None:
        """See `AppRun.tell_failure`."""

    def describe_left(self) -> str:
        """What is left of it where, once it has ended."""

    def forget(self) -> None:
        """Leave no record of it, and no log files."""


class App(Generic[R]):
    """A handle on one launch. All methods may be called from any thread."""

    def __init__(self, run: Run[R]) -> None:
        """Made by `Launcher.start`."""
        self._run = run

    def __repr__(self) -> str:
        """The id, and how it stands."""
        return f"<App {self.id} {self.status().state.value}>"

    @property
    def id(self) -> str:
        """Names it for `phalanx status` and the other commands."""
        return self._run.id

    @property
    def log_files(self) -> dict[int, Path]:
        """The log file of each global rank that has one of its own."""
        return self._run.log_files

    def wait(self, timeout: float | None = None) -> AppStatus:
        """Wait for the end. What ended the app is not raised.

        Args:
            timeout: Seconds to wait at most; by default until the end.

        Returns:
            The status then; `status.state.is_final` says whether it has ended.
        """
        return self._run.wait(timeout)

    def result(self, timeout: float | None = None) -> LaunchResult[R]:
        """Wait for the end and return every rank's value.

        Args:
            timeout: Seconds to wait at most; by default until the end.

        Returns:
            Every rank's value.

        Raises:
            TimeoutError: It has not ended in `timeout` seconds; it goes on.
            PhalanxError: As `Launcher.run`.
            Exception: What the function raised, with its own type.
        """
        return self._run.result(timeout)

    def __await__(self) -> Generator[Any, None, LaunchResult[R]]:
        """As `result`, in an asyncio program. Cancelling the task cancels the app."""
        return self._run.wait_async().__await__()

    def cancel(self, grace: float | None = None, number: int = signal.SIGTERM) -> None:
        """Stop the workers: SIGTERM, and SIGKILL after the grace. Return at once; idempotent.

        Args:
            grace: Seconds between the two; by default `Launcher.stop_grace`.
            number: The signal to send first.

        Raises:
            ConfigError: `grace` is not a number of seconds, 0 or more.
        """
        self._run.cancel(grace, number)

    def add_host(self, hostname: str, workers: int | None = None) -> None:
        """Add a host, from the next round on, or as a spare if `max_hosts` are there already.

        Returns before it has come.

        Args:
            hostname: A name that your ssh knows, user@host or user@host:port.
            workers: How many workers it has; by default as the launcher's `workers_per_host`.

        Raises:
            ConfigError: It cannot be added, or the app has ended.
            StartFailed: It has to be asked how many workers it takes, and cannot be.
        """
        self._run.add_host(hostname, workers)

    def signal(self, number: int) -> None:
        """Pass a signal on to the workers that catch it. Return at once.

        Args:
            number: The signal, such as `signal.SIGUSR2`.
        """
        self._run.signal(number)

    def stacks(self, seconds: float = 5.0, *, native: bool = False) -> tuple[RankStacks, ...]:
        """The Python stacks of every rank, of all its threads. Block until they are there.

        Args:
            seconds: How long to wait for each rank.
            native: With native frames, where py-spy, eu-stack or gdb is installed on the hosts.
                Takes up to as long again; each worker stands still meanwhile.

        Returns:
            Each rank's stacks, or why they could not be had; empty once the app has ended.
        """
        return self._run.stacks(seconds, native=native)

    def status(self) -> AppStatus:
        """The status now: state, hosts, workers, rounds, and what went wrong."""
        return self._run.status()

    def logs(
        self, ranks: Collection[int] | None = None, *, follow: bool = False
    ) -> Iterator[LogLine]:
        """The lines that workers have printed, read from their log files.

        There are none where the log spec has no file for each rank.

        Args:
            ranks: The global ranks; by default all.
            follow: Also yield new lines as they come, until the app has ended.

        Yields:
            Lines, with rank, host and time.
        """
        return self._run.logs(ranks, follow=follow)
